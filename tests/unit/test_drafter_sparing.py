"""An expensive drafter is asked often while it is right, rarely while it is wrong, and again later."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree
from forerun.drafters import sparing
from forerun.drafters.sparing import SparingDrafter


class Slow:
    """Guesses 7, 7, ...; takes half a second a depth by the clock that it moves."""

    name = "slow"
    taps = ()

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[int] = []
        self.heard: list[int] = []

    def clock(self) -> float:
        return self.now

    def begin(self, tokens, features):  # type: ignore[no-untyped-def]
        self.heard = tokens.tolist()

    def observe(self, tokens, features):  # type: ignore[no-untyped-def]
        self.heard += tokens

    def truncate(self, length):  # type: ignore[no-untyped-def]
        del self.heard[length:]

    def propose(self, budget):  # type: ignore[no-untyped-def]
        self.asked.append(budget.depth)
        self.now += 0.5 * budget.depth
        return DraftTree.chain(self.heard[-1], [7] * budget.depth)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    drafter = Slow()
    monkeypatch.setattr(sparing, "perf_counter", drafter.clock)
    return drafter


def steps(drafter: SparingDrafter, token: int, count: int) -> int:
    """How often it guessed."""
    guessed = 0
    for _ in range(count):
        tree = drafter.propose(Budget(8, 8))
        guessed += len(tree) > 1
        node = 0
        while node + 1 < len(tree) and tree.tokens[node + 1] == token:
            node += 1
        drafter.observe([token] * (node + 1), None)
    return guessed


def test_asked_as_it_pays(slow: Slow) -> None:
    drafter = SparingDrafter(slow, plain=1.0)
    drafter.begin(np.array([1, 2], dtype=np.int32), None)
    assert steps(drafter, 7, 50) == 50  # a guess saves a step and takes half of one
    assert max(slow.asked) == 8
    wrong = steps(drafter, 3, 400)
    assert 0 < wrong < 40
    assert steps(drafter, 7, 400) > 100  # it was tried again
    assert slow.heard[:2] == [1, 2]


def test_dear_drafters_rest_at_once(slow: Slow) -> None:
    drafter = SparingDrafter(slow, plain=0.01)
    drafter.begin(np.array([1], dtype=np.int32), None)
    assert steps(drafter, 7, 1000) == 1
    assert drafter.propose(Budget(4, 4)).tokens.tolist() == [7]


def test_going_back(slow: Slow) -> None:
    drafter = SparingDrafter(slow, plain=1.0)
    drafter.begin(np.array([1, 2], dtype=np.int32), None)
    drafter.propose(Budget(4, 4))
    drafter.observe([5, 6], None)
    drafter.truncate(3)
    drafter.observe([9], None)
    assert slow.heard == [1, 2, 5, 9]
    assert drafter.propose(Budget(2, 2)).tokens[0] == 9
