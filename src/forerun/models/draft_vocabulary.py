"""The part of a target's vocabulary that a draft model has.

A draft model made for one target needs not know all of its tokens: those that the target hardly ever says
cost as much room and time as others (FR-Spec, Zhao et al., arXiv 2502.14856; EAGLE-3's `d2t`). Such a draft
model numbers its tokens by itself. What it reads in place of a token that it lacks is a similar one's row.

In a GGUF file these are the keys `forerun.draft.tokens`, `forerun.draft.reads` and `tokenizer.ggml.tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forerun.errors import InputError
from forerun.models.rows import FloatArray, IntArray

TOKENS, READS, PIECES = "forerun.draft.tokens", "forerun.draft.reads", "tokenizer.ggml.tokens"
UNSAID = -1e9
"""The logit of a token that a draft model lacks."""


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """A draft model's tokens.

    Attributes:
        tokens: int32 [n], ascending: the target's id of each.
        reads: int32 [target's vocabulary]: the draft model's id of each of the target's tokens, its own or
            the one that is read in its place.
        pieces: [n]: what the target's tokenizer calls each.
    """

    tokens: IntArray
    reads: IntArray
    pieces: list[str]

    def read(self, tokens: IntArray) -> IntArray:
        """The draft model's ids of the target's, padding of the target's vocabulary included."""
        known = np.where(tokens < self.reads.size, tokens, self.tokens[0])
        found: IntArray = self.reads[known]
        return found

    def blank(self, rows: int) -> FloatArray:
        """Logits of no model, float32 [rows, target's vocabulary], for `spread`. What the draft model cannot
        say has a chance only where nothing else is allowed."""
        return np.full((rows, self.reads.size), UNSAID, dtype=np.float32)

    def spread(self, logits: FloatArray, wide: FloatArray) -> FloatArray:
        """float32 [rows, n] to [rows, target's vocabulary], in an array that `blank` made, or that was given
        here before."""
        for row, said in zip(wide, logits, strict=False):
            row[self._columns] = said
        return wide[: len(logits)]

    @cached_property
    def _columns(self) -> npt.NDArray[np.intp]:
        return self.tokens.astype(np.intp)  # indices of another type are converted each time


def draft_vocabulary(metadata: Mapping[str, object], size: int, source: Path) -> DraftVocabulary | None:
    """The vocabulary that a GGUF file's metadata give to a model of `size` tokens; None if they give none.

    Raises:
        InputError: they make no sense; one line.
    """
    if TOKENS not in metadata and READS not in metadata:
        return None
    tokens, reads = _ids(metadata, TOKENS, source), _ids(metadata, READS, source)
    pieces = metadata.get(PIECES)
    if not isinstance(pieces, list) or len(pieces) != size:
        raise InputError(f"{source}: {PIECES} does not name the {size} tokens of this draft model")
    if tokens.size != size or (np.diff(tokens) <= 0).any() or not 0 <= tokens[0] <= tokens[-1] < reads.size:
        raise InputError(
            f"{source}: {TOKENS} does not give {size} different ids, ascending, below {reads.size}"
        )
    if reads.min() < 0 or reads.max() >= size or (reads[tokens] != np.arange(size)).any():
        raise InputError(f"{source}: {READS} does not lead from the model's tokens to the draft model's own")
    return DraftVocabulary(tokens.astype(np.int32), reads.astype(np.int32), pieces)


def _ids(metadata: Mapping[str, object], key: str, source: Path) -> npt.NDArray[np.int64]:
    found = metadata.get(key)
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or not found.size:
        raise InputError(f"{source}: {key} is not a list of token ids")
    return found.astype(np.int64)
