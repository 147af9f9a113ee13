"""Who decides how much is verified, for the texts of one engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forerun.core.budget import FixedBudget
from forerun.core.chances import Records, reliance
from forerun.core.cost_budget import CostBudget, Experience
from forerun.core.curve import CostCurve
from forerun.core.protocols import Policy

MOST_DRAFTED = 16
"""Guesses that a step verifies at most, unless told otherwise."""


class Budgets:
    """Keeps what the texts of one engine share: the cost curve, and what drafting was worth in earlier ones.

    Args:
        measure: gives seconds of a forward by its rows; asked once, when it is first needed. Without it every
            step verifies up to MOST_DRAFTED guesses.
    """

    def __init__(self, measure: Callable[[], Mapping[int, float]] | None) -> None:
        self._measure = measure
        self._known: CostCurve | None = None
        self._experience: dict[tuple[str, float], Experience] = {}

    def policy(self, drafter: str, temperature: float, draft_tokens: int | None) -> Policy:
        """For one text, drafted by what has this name. `draft_tokens`: guesses to verify a step, or None for
        as many as pay."""
        if drafter == "none":
            return FixedBudget(0, 0)
        if draft_tokens is not None:
            return FixedBudget(draft_tokens, draft_tokens)
        curve = self._curve()
        if curve is None:
            return FixedBudget(MOST_DRAFTED, MOST_DRAFTED)
        if (drafter, temperature) not in self._experience:
            self._experience[drafter, temperature] = Experience(Records(reliance(temperature)))
        experience = self._experience[drafter, temperature]
        return CostBudget(curve, MOST_DRAFTED, MOST_DRAFTED, experience=experience)

    def _curve(self) -> CostCurve | None:
        if self._known is None and self._measure is not None:
            self._known = CostCurve(self._measure(), MOST_DRAFTED + 1)
        return self._known
