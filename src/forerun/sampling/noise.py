"""Counter-based noise: any position's, any token's, at any time, from the seed alone.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a
bijection of a counter of four 32-bit words under a key of two. Here

    key     = (seed mod 2^32, seed div 2^32)
    counter = (index div 4, position, stream, 0)      word = output[index mod 4]

where `position` is the place in the text (prompt and answer, counted from 0) of the token to be chosen, and
streams keep uses apart: in stream GUMBEL `index` is a token id, in the others it counts draws at the
position.

    uniform(word) = (word + 0.5) / 2^32                  exact in double precision, never 0 or 1
    gumbel        = -log(-log(uniform))                  with `arithmetic.log`
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forerun.sampling.arithmetic import Doubles, log

GUMBEL = 0
ACCEPT = 1
DRAFT = 2

FEW = 2048
"""Below so many indices it pays to find out which blocks are wanted."""

LEAST_GUMBEL = -3.13  # gumbel of word 0 is -3.1299..., of word 2^32 - 1 it is 22.8738...
MOST_GUMBEL = 22.88

_MULTIPLY_0 = np.uint64(0xD2511F53)
_MULTIPLY_2 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)

Words = npt.NDArray[np.uint64]
Block = tuple[Words, Words, Words, Words]


def philox(counter: Block, key: tuple[int, int]) -> Block:
    """Philox4x32-10. Counters and results are uint64 arrays of one shape that hold 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0 = c0 * _MULTIPLY_0
        product2 = c2 * _MULTIPLY_2
        c0 = (product2 >> _32) ^ c1 ^ np.uint64(k0)
        c1 = product2 & _LOW
        c2 = (product0 >> _32) ^ c3 ^ np.uint64(k1)
        c3 = product0 & _LOW
        k0 = (k0 + _WEYL_0) & 0xFFFFFFFF
        k1 = (k1 + _WEYL_1) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniforms(seed: int, position: int, stream: int, indices: npt.NDArray[np.int64]) -> Doubles:
    """float64, one in (0, 1) for each index."""
    if indices.size < FEW:
        blocks, place = np.unique(indices >> 2, return_inverse=True)
    else:
        blocks, place = np.arange((indices.max() >> 2) + 1), indices >> 2
    c0 = blocks.astype(np.uint64)
    same = np.zeros_like(c0)
    words = philox(
        (c0, same + np.uint64(position), same + np.uint64(stream), same),
        (seed & 0xFFFFFFFF, seed >> 32),
    )
    word = np.stack(words, axis=1)[place, indices & 3]
    result: Doubles = (word.astype(np.float64) + 0.5) * 2.0**-32
    return result


def gumbel(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> Doubles:
    """float64: standard Gumbel noise of these tokens at this position."""
    return -log(-log(uniforms(seed, position, GUMBEL, tokens)))
