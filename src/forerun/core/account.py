"""How deep a drafter that takes time is asked in one text. What it is worth is kept, and decided by, the
account that it has in this text and later ones (csrc/decoding/account.h)."""

from __future__ import annotations

from collections.abc import Sequence

from forerun import _core
from forerun._core import Account
from forerun.core.protocols import Budget
from forerun.core.report import Lap

__all__ = ["Account", "Pace"]

LEAST_CHANCE = 0.1
"""Below a guess that is less likely, what a look further takes is worth more than what it finds: measured
with an EAGLE-3 head on code and stories, in 16 and 4 bits, 0.06 to 0.16 took as long, none at all 3 to 5 %
longer."""


class Pace:
    """Decides, step by step, how deep one drafter is asked.

    Args:
        name: of the drafter, as in its trees' origins.
        account: is kept.
        plain: seconds of a plain step.
    """

    def __init__(self, name: str, account: Account, plain: float) -> None:
        self.name = name
        self.price = 1.0 / plain
        """Tokens a second that time is worth."""
        self.asked: Budget | None = None
        """What it was asked for in this step, if it was."""
        self._pace = _core.Pace(account, plain)
        self._lap = Lap()

    @property
    def hopeful(self) -> bool:
        """Whether reading along is worth the while."""
        return self._pace.hopeful

    def ask(self, budget: Budget) -> Budget | None:
        """How much of `budget` the drafter is asked for, None for nothing."""
        asked = self._pace.ask(self.price, budget.nodes, budget.depth, budget.beside)
        self.asked = None if asked is None else Budget(*asked, budget.beside, LEAST_CHANCE)
        self._lap = Lap()
        return self.asked

    def gained(self, gains: Sequence[float], nodes: int) -> None:
        """What came of asking, if it was asked. It took the time since: guesses must be judged, too.

        Args:
            gains: tokens that its guesses are worth, by depth, as deep as its tree is.
            nodes: of its guesses that are verified.
        """
        if self.asked is not None:
            self._pace.gained(gains, nodes, self._lap())

    def passed(self, seconds: float, right: bool) -> None:
        """A step took so long; `right`: the text went on with one of the drafter's guesses."""
        self._pace.passed(self.price, seconds, right and self.asked is not None)
