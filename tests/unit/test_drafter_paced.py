"""An expensive drafter is asked often while it is right, rarely while it is wrong, and again later."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core import account
from forerun.core.cost_budget import CostBudget, Experience
from forerun.core.curve import CostCurve
from forerun.core.protocols import Budget
from forerun.core.report import Report
from forerun.core.tree import DraftTree
from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.paced import PacedDrafter

FLAT = {1: 1.0, 16: 1.05}


class Slow:
    """Guesses 7, 7, ...; takes `each` seconds a depth by the clock that it moves, and for the first proposal
    of a text ten times as long."""

    name = "slow"
    taps = ()

    def __init__(self, each: float, slow_start: float = 1.0) -> None:
        self.now, self.each, self.slow_start = 0.0, each, slow_start
        self.asked: list[int] = []
        self.heard: list[int] = []
        self.begun = False

    def begin(self, tokens, features):  # type: ignore[no-untyped-def]
        self.heard = tokens.tolist()
        self.begun = True

    def observe(self, tokens, features):  # type: ignore[no-untyped-def]
        self.heard += tokens

    def truncate(self, length):  # type: ignore[no-untyped-def]
        del self.heard[length:]

    def propose(self, budget):  # type: ignore[no-untyped-def]
        self.asked.append(budget.depth)
        self.least_chance = budget.least_chance
        self.now += self.each * budget.depth * (self.slow_start if self.begun else 1.0)
        self.begun = False
        return DraftTree.chain(self.heard[-1], [7] * budget.depth)


class Text:
    """Steps of a text with a slow drafter; all seconds are the drafter's and the curve's."""

    def __init__(
        self, slow: Slow, monkeypatch: pytest.MonkeyPatch, experience: Experience, curve: dict[int, float]
    ) -> None:
        monkeypatch.setattr(account, "Lap", lambda: self.lap())
        self.slow = slow
        self.curve = CostCurve(curve)
        self.budget = CostBudget(self.curve, 16, 16, experience=experience)
        self.drafter = PacedDrafter(slow, self.budget.pace(slow.name))
        self.drafter.begin(np.array([1, 2], dtype=np.int32), None)

    def lap(self):  # type: ignore[no-untyped-def]
        start = self.slow.now
        return lambda: self.slow.now - start

    def steps(self, token: int, count: int) -> int:
        """The text goes on with `token`; how often the drafter was asked."""
        before = len(self.slow.asked)
        for _ in range(count):
            start = self.slow.now
            plan = self.budget.plan(Report(), 1000)
            tree = self.drafter.propose(plan)
            kept = self.budget.trim(tree, self.slow.now - start)
            right = 0 if token != 7 else len(kept) - 1
            tokens = [token] * (right + 1)
            self.drafter.observe(tokens, None)
            self.budget.learn(tree, tokens, len(kept), self.curve(len(kept)))
        return len(self.slow.asked) - before


def test_asked_as_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(Slow(0.3), monkeypatch, Experience(), FLAT)
    assert text.steps(7, 300) == 300
    assert min(text.slow.asked[-50:]) > 1  # a guess saves a step and takes a third of one
    text.steps(3, 30)
    assert text.steps(3, 1000) * 0.3 < 0.02 * 1000  # it is asked for one guess at a time
    assert text.steps(7, 1500) > 300  # it was tried again
    assert text.slow.heard[:2] == [1, 2]
    assert text.slow.least_chance == account.LEAST_CHANCE  # looking further takes time


@pytest.mark.parametrize("each", [0.1, 0.4, 1.5])
def test_what_does_not_pay_takes_little_time(each: float, monkeypatch: pytest.MonkeyPatch) -> None:
    experience = Experience()
    slow, spent = Slow(each, slow_start=10.0), []
    for _ in range(40):
        start = slow.now
        Text(slow, monkeypatch, experience, FLAT).steps(3, 100)
        spent.append(slow.now - start)
    assert spent[0] < 45 * each + 8  # what it takes to know; the prompt is read once
    assert 0 < sum(spent[10:]) < 0.015 * 30 * 100


def test_a_slow_start_is_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    experience = Experience()
    slow = Slow(0.3, slow_start=10.0)
    for _ in range(3):
        assert Text(slow, monkeypatch, experience, FLAT).steps(7, 100) > 90


def test_dearer_than_what_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(Slow(1.5), monkeypatch, Experience(), FLAT)
    text.steps(7, 50)
    assert text.steps(7, 1000) * 1.5 < 0.02 * 1000


def test_rows_that_cost_more_than_they_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses that are right, cheap to make and dear to verify."""
    text = Text(Slow(0.1), monkeypatch, Experience(), {1: 1.0, 16: 16.0})
    text.steps(7, 50)
    assert text.steps(7, 1000) < 0.2 * 1000


def test_where_another_is_sure_nothing_is_left_to_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a drafter that guesses the same it is not asked, and where that one has no guess, it is."""
    slow = Slow(0.02)
    text = Text(slow, monkeypatch, Experience(), FLAT)

    class Quick:
        name = "quick"
        taps = ()
        knows = True

        def begin(self, tokens, features):  # type: ignore[no-untyped-def]
            pass

        observe = truncate = lambda *_: None

        def propose(self, budget):  # type: ignore[no-untyped-def]
            guesses = [7] * budget.depth if self.knows else []
            return DraftTree.chain(slow.heard[-1], guesses)

    quick = Quick()
    text.drafter = CascadeDrafter([quick, text.drafter])  # type: ignore[assignment]
    depths = {True: 0, False: 0}
    for step in range(400):
        quick.knows = step % 2 == 0
        if text.steps(7, 1):
            depths[quick.knows] += slow.asked[-1]
    assert depths[True] < 0.3 * depths[False]


def test_going_back(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(Slow(0.3), monkeypatch, Experience(), FLAT)
    text.drafter.propose(Budget(4, 4))
    text.drafter.observe([5, 6], None)
    text.drafter.truncate(3)
    text.drafter.observe([9], None)
    assert text.slow.heard == [1, 2, 5, 9]
    assert text.drafter.propose(Budget(2, 2)).tokens[0] == 9


def test_a_step_without_room_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a text nobody is asked, and the account stays as it was."""
    experience = Experience()
    text = Text(Slow(0.3), monkeypatch, experience, FLAT)
    text.steps(7, 20)
    levels = experience.accounts["slow"].levels[0]
    before = list(levels)
    text.budget.plan(Report(), 1)
    kept = text.budget.trim(DraftTree.chain(7), 0.0)
    text.budget.learn(kept, [7], 1, text.curve(1))
    assert experience.accounts["slow"].levels[0] == before
