"""A drafter that knows nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree, FloatArray, IntArray


class RandomDrafter:
    """Proposes chains of random tokens, as long as it may."""

    name = "random"
    taps: tuple[int, ...] = ()

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._draw = np.random.default_rng(seed)
        self._vocab = vocab_size
        self._last = 0

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._last = int(tokens[-1])

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        if tokens:
            self._last = int(tokens[-1])

    def truncate(self, length: int) -> None:
        """Nothing is remembered."""

    def propose(self, budget: Budget) -> DraftTree:
        count = min(budget.nodes, budget.depth)
        return DraftTree.chain(self._last, self._draw.integers(0, self._vocab, count).tolist())
