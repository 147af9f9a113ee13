"""An expensive drafter that is asked only as deep and as often as it pays, where the budget cannot see to it.

A budget that lets a drafter rest lets all rest. Under a grammar the cheap part must be asked every step, so
an expensive one beside or below it keeps its own account: what a proposal takes, and what it gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from forerun.core.protocols import Budget, Drafter
from forerun.core.tree import DraftTree, FloatArray, IntArray
from forerun.drafters.cascade import right_guesses

FADE = 0.8
"""How much of the account stays when a proposal is added to it."""

FIRST_DEPTH = 3
"""How deep it is asked before it is known what that gains."""

SHARE = 0.02
"""A drafter that does not pay is asked so rarely that it takes this part of the time."""


class SparingDrafter:
    """Another drafter, which takes seconds.

    A guess that is right saves a plain step at most, so a proposal pays if it has more right guesses than the
    plain steps that it takes the time of.

    Args:
        drafter: that is asked.
        plain: seconds of a plain step.
    """

    def __init__(self, drafter: Drafter, plain: float) -> None:
        self.name = drafter.name
        self.taps = drafter.taps
        self._drafter = drafter
        self._plain = plain
        self._gain: float | None = None  # right guesses a proposal, since the last rest
        self._cost = 0.0  # plain steps that a proposal takes, lately
        self._resting = 0
        self._tree: DraftTree | None = None
        self._last = 0

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._tree = None
        self._last = int(tokens[-1])
        self._drafter.begin(tokens, features)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        if self._tree is not None and len(tokens):
            self._settle(right_guesses(self._tree, tokens))
        if len(tokens):
            self._last = tokens[-1]
        self._drafter.observe(tokens, features)

    def truncate(self, length: int) -> None:
        self._tree = None
        self._drafter.truncate(length)

    def propose(self, budget: Budget) -> DraftTree:
        if self._resting > 0:
            self._resting -= 1
            return DraftTree.chain(self._last)
        depth = min(budget.depth, FIRST_DEPTH if self._gain is None else 1 + int(2 * self._gain))
        start = perf_counter()
        tree = self._drafter.propose(Budget(budget.nodes, depth))
        cost = (perf_counter() - start) / self._plain
        self._cost = cost if self._cost == 0 else FADE * self._cost + (1 - FADE) * cost
        self._tree = tree
        return tree

    def _settle(self, right: int) -> None:
        self._gain = right if self._gain is None else FADE * self._gain + (1 - FADE) * right
        self._tree = None
        if self._gain < self._cost:
            self._resting, self._gain = int(self._cost / SHARE), None
