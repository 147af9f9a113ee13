"""Rows: what one forward of a model computes. Several sequences in one pass are only more rows."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


class Cache(Protocol):
    """Keys and values of one sequence. A forward stages rows; only `commit` keeps them."""

    @property
    def length(self) -> int:
        """Committed tokens."""

    @property
    def capacity(self) -> int:
        """Committed and staged tokens that fit."""

    def commit(self, path: IntArray | list[int]) -> None:
        """Keep these staged rows: indices among this cache's own rows, root first, each
        the child of the one before. The other staged rows never happened."""

    def truncate(self, length: int) -> None:
        """Forget committed tokens from `length` on."""


class Rows(NamedTuple):
    """The rows of one forward.

    A forward that continues, which has one cache, stages its rows behind those that are staged already.

    Attributes:
        tokens: int32 [n].
        parents: int32 [n]; the row index of each row's parent, before it and of the same cache, or -1: the
            row follows its cache's last committed token. In a forward that continues rows are counted from
            the first one staged.
        caches: the sequences that the rows belong to.
        owner: int32 [n]; index into `caches`.
        continues: what is staged stays.
    """

    tokens: IntArray
    parents: IntArray
    caches: list[Cache]
    owner: IntArray
    continues: bool = False

    @classmethod
    def chain(cls, tokens: IntArray, cache: Cache) -> Rows:
        """Consecutive tokens of one sequence, as in a prefill."""
        ids = np.ascontiguousarray(tokens, dtype=np.int32)
        parents = np.arange(-1, ids.size - 1, dtype=np.int32)
        return cls(ids, parents, [cache], np.zeros_like(ids))


class Outputs(Protocol):
    """As `Output`, whose arrays may be made when they are asked for."""

    @property
    def logits(self) -> FloatArray: ...

    @property
    def features(self) -> FloatArray: ...


class Output(NamedTuple):
    """What a forward gives back. The arrays are good until the next forward of the same backend.

    Attributes:
        logits: float32 [rows asked, vocabulary].
        features: float32 [n, taps, hidden]; tap k is `hidden_states[k]` as Hugging Face counts them (0 =
            embedding output, ..., layers = after the final norm).
    """

    logits: FloatArray
    features: FloatArray
