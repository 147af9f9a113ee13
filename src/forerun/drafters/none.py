"""No drafter: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree, FloatArray, IntArray


class NoDrafter:
    """Proposes the root alone."""

    name = "none"
    taps: tuple[int, ...] = ()

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._last = int(tokens[-1])

    def propose(self, budget: Budget) -> DraftTree:
        return DraftTree.chain(self._last)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        if len(tokens):
            self._last = int(tokens[-1])

    def truncate(self, length: int) -> None:
        """Nothing is kept; what follows names the last token again."""
