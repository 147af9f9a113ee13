"""What a drafter that takes time is worth, and how deep it is asked.

Asking for one depth more takes seconds, which plain steps and the other drafters would turn into tokens at
some price (tokens a second). It gives the guesses of that depth: tokens that the step emits more on average,
less what their rows cost. Both are kept by depth, and by what the drafters asked before promise already, for
where these are sure of much nothing is left to gain. A drafter is asked as deep as the sum of gains less
costs grows. Where it does not pay it is asked when a hundredth of the time since covers it (less where it
is unlikely to pay), and goes on for a few steps while it is right: so it is known when it would pay again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from forerun.core.protocols import Budget
from forerun.core.report import Lap
from forerun.core.tree import DraftTree

SHARE = 0.01
"""The part of the time that drafters which do not pay may take, each."""

TRIAL = 2.5
"""Plain steps that a drafter may take before it is known, and the most that is saved up for it."""

UNLIKELY = 0.4
"""Which part of both there is for a drafter that is unlikely to pay, as at a high temperature."""

LEAST_GAIN = 0.1
"""Tokens that asking must be worth: less is noise, or what the steps around it take."""

PROBE_DEPTH = 1
"""How deep a drafter is asked that does not pay, or of which nothing is known: if one guess pays, it is asked
for more."""

DEEPER = 0.7
"""What the guesses of the next depth are taken to be worth at least, as part of those of the last known."""

DRIFT = 0.05
"""How far what was measured of a depth that is not asked for goes back to that, a time."""

WEIGHT = 0.25
"""Of a new observation."""

OUTLIER = 3.0
"""A measurement counts at most as this many times what was expected."""

SAME_PRICE = 0.02
"""A depth is not chosen anew for less of a change of the price."""

PROMISES = (0.25, 1.0, 2.5)
"""Guesses that other drafters expect to be accepted are told apart at these numbers."""


@dataclass
class Level:
    """One depth of a drafter's trees: tokens that its guesses are worth, and seconds that asking takes."""

    gain: float = 0.0
    seconds: float = 0.0
    seen: int = 0

    def add(self, gain: float, seconds: float) -> None:
        if self.seconds > 0.0:  # other programs run too
            seconds = min(seconds, OUTLIER * self.seconds)
        self.seen += 1
        weight = max(WEIGHT, 1.0 / self.seen)
        self.gain += weight * (gain - self.gain)
        self.seconds += weight * (seconds - self.seconds)


@dataclass
class Account:
    """Of one drafter, in this text and earlier ones.

    Attributes:
        levels: by what others promise, by depth.
        nodes: of its guesses that are verified where it pays, lately.
        saved: plain steps that may be spent on asking it where it does not pay.
        promising: whether it is likely to pay, before anything is known.
    """

    levels: dict[int, list[Level]] = field(default_factory=dict)
    nodes: float = 0.0
    saved: float = TRIAL
    promising: bool = True
    _found: dict[tuple[int, int], tuple[float, int]] = field(
        default_factory=dict
    )  # at what price, what depth

    @classmethod
    def of_a_drafter(cls, promising: bool) -> Account:
        """Of one about which nothing is known."""
        return cls(saved=TRIAL if promising else UNLIKELY * TRIAL, promising=promising)

    def save(self, steps: float) -> None:
        """So many plain steps' time has passed."""
        part = 1.0 if self.promising else UNLIKELY
        self.saved = min(self.saved + SHARE * part * steps, TRIAL * part)

    def depth(self, promise: int, price: float, most: int) -> int:
        """The depth that is worth most, 0 if none is worth anything. `price`: tokens a second."""
        then, depth = self._found.get((promise, most), (0.0, 0))
        if abs(price - then) > SAME_PRICE * price:
            depth = self._best_depth(promise, price, most)
            self._found[promise, most] = price, depth
        return depth

    def _best_depth(self, promise: int, price: float, most: int) -> int:
        best, value, total = 0, LEAST_GAIN, 0.0
        levels = self.levels.get(promise)
        if not levels:
            return 0
        for depth, level in enumerate(levels[:most], start=1):
            total += level.gain - price * level.seconds
            if total > value:
                best, value = depth, total
        last = levels[-1]
        before = levels[-2].gain if len(levels) > 1 else 0.0
        next_gain = last.gain * max(DEEPER, min(last.gain / before, 1.0) if before > 0.0 else 0.0)
        deeper = total + next_gain - price * last.seconds
        return len(levels) + 1 if len(levels) < most and deeper > value else best

    def add(self, promise: int, gains: list[float], seconds: list[float]) -> None:
        """What asking so deep gave and took, by depth."""
        self._found.clear()
        levels = self.levels.setdefault(promise, [])
        levels += [Level() for _ in range(len(gains) - len(levels))]
        last = levels[len(gains) - 1]
        before = last.gain
        for level, gain, took in zip(levels, gains, seconds, strict=False):
            level.add(gain, took)
        for level in levels[len(gains) :]:  # what was not seen changed alike, and may be as usual again
            level.gain *= last.gain / before if 0.0 < before < last.gain else 1.0
            level.gain = min(level.gain + DRIFT * (DEEPER * last.gain - level.gain), last.gain)
            last = level


class Pace:
    """Decides, step by step, how deep one drafter is asked in one text.

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
        self._account = account
        self._plain = plain
        self._paying = True
        self._steps = 0  # in a row that it was asked; in the first it has to catch up with the text
        self._right = False
        self._lap = Lap()
        self._seconds = 0.0

    @property
    def hopeful(self) -> bool:
        """Whether reading along is worth the while."""
        return self._account.nodes > 0.1 if self._account.levels else self._account.promising

    def ask(self, budget: Budget) -> Budget | None:
        """How much of `budget` the drafter is asked for, None for nothing."""
        account, promise = self._account, promised(budget.beside)
        most = min(budget.nodes, budget.depth)
        depth = account.depth(promise, self.price, most)
        self._paying = depth > 0
        if not self._paying and account.saved <= 0.0:
            goes_on = self._steps == 1 or (self._right and account.saved > -TRIAL)
            if not goes_on:
                self._steps, self.asked = 0, None
                return None
        self._steps += 1
        self._lap = Lap()
        if not self._paying:
            depth = min(PROBE_DEPTH, most)
        enough = max(depth, int(2.0 * account.nodes) + 2) if self._paying else depth + 1
        self.asked = Budget(min(budget.nodes, enough), depth, budget.beside)
        return self.asked

    def gained(self, gains: list[float], nodes: int) -> None:
        """What came of asking, if it was asked. It took the time since: guesses must be judged, too.

        Args:
            gains: tokens that its guesses are worth, by depth, as deep as its tree is.
            nodes: of its guesses that are verified.
        """
        if self.asked is None:
            return
        account, asked, self._seconds = self._account, self.asked.depth, self._lap()
        if not self._paying:
            most = 1.0 if not account.levels else math.inf  # the prompt is read once, whatever comes of it
            account.saved -= min(self._seconds / self._plain, most)
        if nodes or account.nodes:
            account.nodes += (nodes - account.nodes) * (WEIGHT if account.nodes else 1.0)
        if self._steps > 1:
            reached = max(len(gains), 1)
            each = self._seconds / reached
            account.add(
                promised(self.asked.beside),
                gains + [0.0] * (asked - len(gains)),
                [each] * reached + [0.0] * (asked - reached),
            )

    def passed(self, seconds: float, right: bool) -> None:
        """A step took so long; `right`: the text went on with one of the drafter's guesses."""
        # and what such a guess saves is more than it costs
        self._right = right and self.asked is not None and self.price * self._seconds < self.asked.depth
        self._account.save(seconds / self._plain)


def promised(tree: DraftTree | None) -> int:
    """How much a tree promises, in steps of PROMISES."""
    if tree is None or len(tree) == 1:
        return 0
    odds = tree.odds
    if tree.drawn or odds is None:
        return 1
    accepted = sum(odds) - odds[0]
    return sum(accepted > bound for bound in PROMISES)
