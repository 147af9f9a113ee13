"""A second model beside the target: one sequence that runs ahead along branches."""

from __future__ import annotations

import numpy as np

from forerun.models.backend import Backend
from forerun.models.draft_vocabulary import DraftVocabulary
from forerun.models.memory import PREFILL_ROWS
from forerun.models.rows import FloatArray, IntArray, Rows


class Guide:
    """Implements `drafters.model.Guide` over a backend.

    Ids that this model does not know (its vocabulary may be padded less than the target's) are read as 0.

    Args:
        backend: the model.
        capacity: place for this many tokens, branches included.
        part: the model's tokens where they are a part of the target's, under ids of their own.
    """

    def __init__(self, backend: Backend, capacity: int, part: DraftVocabulary | None = None) -> None:
        self._backend = backend
        self._part = part
        self._wide = np.zeros((0, 0), dtype=np.float32)
        self._cache = backend.new_cache(capacity)
        self._vocab = backend.config.vocab_size

    @property
    def length(self) -> int:
        return self._cache.length

    @property
    def capacity(self) -> int:
        return self._cache.capacity

    def advance(self, tokens: IntArray) -> FloatArray:
        for start in range(0, len(tokens), PREFILL_ROWS):
            piece = self._known(tokens[start : start + PREFILL_ROWS])
            last = np.array([len(piece) - 1], dtype=np.int32)
            logits = self._spread(self._backend.forward(Rows.chain(piece, self._cache), last).logits)
            self._cache.commit(np.arange(len(piece), dtype=np.int32))
        at_last: FloatArray = logits[0]
        return at_last

    def look(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        n = len(tokens)
        rows = Rows(self._known(tokens), parents, [self._cache], np.zeros(n, dtype=np.int32), continues=True)
        return self._spread(self._backend.forward(rows, np.arange(n, dtype=np.int32)).logits)

    def keep(self, path: IntArray) -> None:
        self._cache.commit(path)

    def truncate(self, length: int) -> None:
        if length < self._cache.length:
            self._cache.truncate(length)

    def _spread(self, logits: FloatArray) -> FloatArray:
        """Good until the next time, as a forward's output is."""
        if self._part is None:
            return logits
        if len(self._wide) < len(logits):
            self._wide = self._part.blank(len(logits))
        return self._part.spread(logits, self._wide)

    def _known(self, tokens: IntArray) -> IntArray:
        if self._part is not None:
            return self._part.read(tokens)
        known: IntArray = np.where(tokens < self._vocab, tokens, 0).astype(np.int32)
        return known
