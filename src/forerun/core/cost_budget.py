"""A budget by cost: ask and verify what pays, and nothing else.

Time has a price: the tokens a second that were written lately, and at least those of plain decoding. A step
over a tree of which k nodes are verified emits 1 + p_1 + ... + p_k tokens on average, where p_i is the chance
that the text goes through node i, and takes t(1 + k) seconds and the drafters'. The nodes with the largest
chances are the best k, so the step that is worth most is the k with the largest

    p_1 + ... + p_k - price * (t(1 + k) - t(1))        (Leviathan et al., arXiv 2211.17192, for trees and a
                                                        measured t as in Sequoia, 2402.12374)

k = 0 is plain decoding and always among them: a drafter that does not pay is not verified. Its guesses are
still compared with the text, which costs nothing, so it comes back when it would pay again. How deep a
drafter that takes time is asked is decided by the same price (see `core.account`).

To maximise tokens by seconds over a whole text is to maximise, in each step, tokens less price times seconds,
if the price is the text's own tokens a second (Dinkelbach 1967): seconds saved in a step that has poor
guesses are spent in steps that have good ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.core.account import Account, Pace
from forerun.core.chances import Judged, Records
from forerun.core.curve import CostCurve
from forerun.core.protocols import Budget
from forerun.core.report import Report
from forerun.core.tree import DraftTree

PROBE = Budget(2, 2)
"""Guesses a step of drafters that are watched but not verified."""

PROMISING = 0.6
"""A drafter that takes time reads the prompt if so much of what drafters promise comes true."""

RECENT = 0.95
"""How much of the price's tokens and seconds stays when a step is added."""

STEPS_BEFORE = 10.0
"""Plain steps in whose time a text's price begins as earlier texts' was."""

PLAIN_EVERY = 24
"""Steps after which one is plain where none was, unless guesses pay SURELY: what a plain step takes now is
known by no other means."""

SURELY = 1.6
"""How many times the speed of plain steps leaves no doubt that guesses pay."""


@dataclass
class Experience:
    """What earlier texts taught of some drafters: how likely their guesses are, and for those that take time,
    by name, what they are worth; and how many tokens a plain step's time gives (`speedup`). It changes the
    time a text takes, never the text."""

    records: Records = field(default_factory=Records)
    accounts: dict[str, Account] = field(default_factory=dict)
    speedup: float = 1.0


class CostBudget:
    """Implements `core.protocols.Policy`.

    Args:
        curve: of the target.
        nodes, depth: the most ever proposed.
        experience: of earlier texts; what this text teaches is added to it.
    """

    def __init__(
        self, curve: CostCurve, nodes: int = 15, depth: int = 12, *, experience: Experience | None = None
    ) -> None:
        self._curve = curve
        self._most = Budget(nodes, depth)
        self._known = Experience() if experience is None else experience
        self._known.records.begin()
        self._paces: list[Pace] = []
        self._tokens = STEPS_BEFORE * self._known.speedup
        self._seconds = STEPS_BEFORE * curve(1)
        self._price = self._tokens / self._seconds
        self._drafting = 0.0
        self._unseen = PLAIN_EVERY // 2  # steps since a plain one
        self._begun = False
        self._judged: Judged | None = None
        self._pays = True

    def pace(self, name: str) -> Pace:
        """Who decides how deep this drafter is asked."""
        promising = self._known.records.reliance > PROMISING
        account = self._known.accounts.setdefault(name, Account(promising))
        self._paces.append(Pace(name, account, self._curve(1)))
        return self._paces[-1]

    def plan(self, report: Report, room: int) -> Budget:
        for pace in self._paces:
            pace.price, pace.asked = self._price, None
        if self._unseen >= PLAIN_EVERY and self._price * self._curve(1) < SURELY:
            return Budget(0, 0)
        return self._most if self._pays or self._paces else PROBE

    def trim(self, tree: DraftTree, seconds: float) -> DraftTree:
        """The part of the proposed tree that is worth verifying; `seconds`: what proposing took."""
        self._drafting = seconds
        self._judged, kept = None, []
        if len(tree) > 1:
            self._judged = self._known.records.judge(tree)
            kept = self._judged.worth_most(self._curve, self._price)
        self._pays = bool(kept)
        for pace in self._paces:
            if pace.asked is not None:
                self._tell(pace, pace.asked, kept)
        return tree.only([0, *kept]).likely_first()

    def learn(self, tree: DraftTree, tokens: Sequence[int], rows: int, seconds: float | None) -> None:
        """What came of a step.

        Args:
            tree: as it was proposed.
            tokens: that were emitted.
            rows, seconds: of the target's forward, if it was for this tree alone.
        """
        if seconds is not None:
            self._curve.saw(rows, seconds)
        self._unseen = 0 if rows == 1 else self._unseen + 1
        plain = self._curve(1)
        # a drafter reads the prompt but once
        spent = self._curve(rows) + (self._drafting if self._begun else min(self._drafting, plain))
        self._begun = True
        self._tokens = RECENT * self._tokens + len(tokens)
        self._seconds = RECENT * self._seconds + spent
        self._price = max(self._tokens / self._seconds, 1.0 / plain)
        self._known.speedup = self._price * plain
        guesser = None
        if self._judged is not None:
            guesser = self._known.records.learn(self._judged, tokens)
        for pace in self._paces:
            pace.passed(spent, guesser in ("", pace.name))

    def _tell(self, pace: Pace, asked: Budget, kept: list[int]) -> None:
        """A drafter that was asked: what its part of `kept` is worth, beyond what there was without it."""
        if self._judged is None:
            pace.gained([], 0)
            return
        without = 0.0
        if kept and asked.beside is not None and len(asked.beside) > 1:
            beside = self._known.records.judge(asked.beside)
            without = beside.worth(beside.worth_most(self._curve, self._price), self._curve, self._price)
        pace.gained(*self._judged.part_of(pace.name, kept, self._curve, self._price, without))
