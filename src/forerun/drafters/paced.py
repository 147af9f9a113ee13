"""A drafter that takes time, asked only as deep and as often as that pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forerun.core.protocols import Budget, Drafter
from forerun.core.tree import DraftTree, FloatArray, IntArray


class Pace(Protocol):
    """Decides what the drafter is asked for; see `core.account`."""

    def ask(self, budget: Budget) -> Budget | None:
        """How much of `budget` it is asked for, None for nothing."""


class PacedDrafter:
    """Another drafter, which reads along but proposes at a pace.

    Args:
        drafter: that is asked.
        pace: says when.
    """

    def __init__(self, drafter: Drafter, pace: Pace) -> None:
        self.name = drafter.name
        self.taps = drafter.taps
        self._drafter = drafter
        self._pace = pace
        self._last = 0

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._last = int(tokens[-1])
        self._drafter.begin(tokens, features)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        if len(tokens):
            self._last = tokens[-1]
            self._drafter.observe(tokens, features)

    def truncate(self, length: int) -> None:
        self._drafter.truncate(length)

    def propose(self, budget: Budget) -> DraftTree:
        asked = self._pace.ask(budget)
        return DraftTree.chain(self._last) if asked is None else self._drafter.propose(asked)
