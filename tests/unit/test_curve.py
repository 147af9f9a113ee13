"""A cost curve that was measured at another time: kept while it is right, measured again when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.backends.cpu import curve as cpu_curve
from forerun.backends.cpu import remembered_curve
from forerun.core.cost_budget import CostBudget
from forerun.core.curve import CostCurve
from forerun.core.report import Report
from forerun.core.tree import DraftTree

TRUE = {1: 3.3, 2: 3.4, 4: 3.8, 8: 5.8, 16: 10.8}
"""Milliseconds."""


class Machine:
    """Its clock is moved by forwards, which take what the true curve says, and some part more."""

    def __init__(self, slower: float = 1.0) -> None:
        self.now, self.slower, self.forwards = 0.0, slower, 0
        self.curve = CostCurve({n: ms / 1000 for n, ms in TRUE.items()})

    def new_cache(self, capacity: int) -> Machine:
        return self

    def commit(self, path: object) -> None:
        pass

    def forward(self, rows, wanted):  # type: ignore[no-untyped-def]
        self.forwards += 1
        self.now += self.curve(len(rows.tokens)) * self.slower


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    """The curve that one start of the program has, on this machine."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))

    def start(machine: Machine) -> dict[int, float]:
        monkeypatch.setattr(cpu_curve, "perf_counter", lambda: machine.now)
        return remembered_curve(machine, {"model": "m"})  # type: ignore[arg-type]

    return start


def test_measured_once(on) -> None:  # type: ignore[no-untyped-def]
    first = on(Machine())
    assert first == pytest.approx({n: ms / 1000 for n, ms in TRUE.items()})
    later = Machine()
    assert on(later) == first
    assert later.forwards <= 2
    busy = Machine(slower=2.0)
    assert on(busy) == first
    assert busy.forwards <= 2


def test_measured_again_after_a_busy_time(on) -> None:  # type: ignore[no-untyped-def]
    on(Machine(slower=2.0))
    right = {n: ms / 1000 for n, ms in TRUE.items()}
    assert on(Machine()) == pytest.approx(right)
    again = Machine()
    assert on(again) == pytest.approx(right)
    assert again.forwards <= 2


@pytest.mark.parametrize(
    "wrong",
    [
        {n: 2 * ms for n, ms in TRUE.items()},
        {n: ms / 2 for n, ms in TRUE.items()},
        {1: 3.3, 2: 4.5, 4: 6.5, 8: 11.6, 16: 21.0},
        {1: 3.3, 16: 3.6},
    ],
)
def test_steps_set_a_wrong_curve_right(wrong: dict[int, float]) -> None:
    """Within a few dozen steps the text is written as fast as with the right curve."""

    def speed(known: dict[int, float]) -> float:
        true = CostCurve(TRUE)
        budget, tokens, ms = CostBudget(CostCurve(known), 16, 16), 0, 0.0
        for step in range(60):
            budget.plan(Report(), 1000)
            tree = DraftTree(
                list(range(17)), list(range(-1, 16)), ("d",) * 17, {}, [0.85**depth for depth in range(17)]
            )
            kept = budget.trim(tree, 0.0)
            right = (2, 12, 4, 8)[step % 4]
            reached = min(right, len(kept) - 1)
            last = reached + 1 if reached < right else 99
            budget.learn(tree, [*range(1, reached + 1), last], len(kept), true(len(kept)))
            if step >= 40:
                tokens, ms = tokens + reached + 1, ms + true(len(kept))
        return tokens / ms

    assert speed(wrong) > 0.95 * speed(TRUE)
