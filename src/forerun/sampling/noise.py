"""Counter-based noise: any position's, any token's, at any time, from the seed alone.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a
bijection of a counter of four 32-bit words under a key of two. Here

    key     = (seed mod 2^32, seed div 2^32)
    counter = (index div 4, position, stream, 0)      word = output[index mod 4]

where `position` is the place in the text (prompt and answer, counted from 0) of the token to be chosen, and
streams keep uses apart: in stream GUMBEL `index` is a token id, in GROUP it is 2 group and 2 group + 1, in
the others it counts draws at the position.

    uniform(word)     = (word + 0.5) / 2^32              exact in double precision, never 0 or 1
    exponential(word) = -log(uniform)                    with `arithmetic.log`

A token's Gumbel noise is -log of its exponential noise, and that is made in groups of 64 tokens, from the
group's least one up:

    least  = exponential(word 2 group of GROUP) / 64     the least of 64 exponentials is one divided by 64,
    holder = word (2 group + 1) of GROUP mod 64          and any of the 64 has it;
    others = least + exponential(their word of GUMBEL)   what they have above it is exponential (no memory)

So all tokens' noise is independent, as if each had been drawn alone, and one number says of 64 tokens how
high noise can lift any of them: almost all groups are ruled out by it, and their tokens' words never made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forerun.sampling.arithmetic import Doubles, log

GUMBEL = 0
ACCEPT = 1
DRAFT = 2
GROUP = 3

GROUP_SIZE = 64

FEW = 2048
"""Below so many indices it pays to find out which blocks are wanted."""

LEAST_GUMBEL = -3.15  # gumbel of two words 0 is -3.1454..., of GROUP's word 2^32 - 1 it is 27.0327...
MOST_GUMBEL = 27.04

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


def words(seed: int, position: int, stream: int, indices: npt.NDArray[np.int64]) -> Words:
    """uint64: the 32-bit word of each index."""
    if indices.size < FEW:
        blocks, place = np.unique(indices >> 2, return_inverse=True)
    else:
        blocks, place = np.arange((indices.max() >> 2) + 1), indices >> 2
    c0 = blocks.astype(np.uint64)
    same = np.zeros_like(c0)
    four = philox(
        (c0, same + np.uint64(position), same + np.uint64(stream), same),
        (seed & 0xFFFFFFFF, seed >> 32),
    )
    result: Words = np.stack(four, axis=1)[place, indices & 3]
    return result


def uniforms(seed: int, position: int, stream: int, indices: npt.NDArray[np.int64]) -> Doubles:
    """float64, one in (0, 1) for each index."""
    result: Doubles = (words(seed, position, stream, indices).astype(np.float64) + 0.5) * 2.0**-32
    return result


def least_exponential(seed: int, position: int, groups: npt.NDArray[np.int64]) -> Doubles:
    """float64: the least exponential noise that any token of these groups has at this position."""
    return -log(uniforms(seed, position, GROUP, 2 * groups)) / GROUP_SIZE


def gumbel(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> Doubles:
    """float64: standard Gumbel noise of these tokens at this position."""
    groups = tokens // GROUP_SIZE
    least = least_exponential(seed, position, groups)
    holder = words(seed, position, GROUP, 2 * groups + 1).astype(np.int64) % GROUP_SIZE
    above = -log(uniforms(seed, position, GUMBEL, tokens))
    return -log(np.where(tokens % GROUP_SIZE == holder, least, least + above))
