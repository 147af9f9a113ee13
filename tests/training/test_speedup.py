"""What training says a drafter should gain."""

from __future__ import annotations

import pytest

from forerun.core.curve import CostCurve
from forerun.core.expected import best_chain, best_speculation
from forerun.training.speedup import Costs


def test_the_best_chain() -> None:
    def cost(rows: int) -> float:
        return 1.0 if rows <= 3 else 2.0

    best = best_chain([0.5, 0.4, 0.3], cost, 0.1)
    assert (best.guesses, best.tokens, best.seconds) == (2, pytest.approx(1.9), pytest.approx(1.2))
    assert best_chain([0.01], cost, 0.1).guesses == 0
    half = best_chain([0.5, 0.4, 0.3], cost, 0.1, share=0.5)
    assert (half.guesses, half.tokens, half.seconds) == (2, pytest.approx(1.45), pytest.approx(1.1))
    assert best_speculation(0.5, cost, 0.1, 3) == best_chain([0.5, 0.25, 0.125], cost, 0.1)


def test_speed_up() -> None:
    costs = Costs(CostCurve({1: 2.0, 4: 2.0, 8: 4.0}), weights=1000)
    # two guesses cost 2 + 2 * 0.2 seconds and give 1.9 tokens; plain steps give one in 2
    assert costs.speed_up([0.5, 0.4], 100) == pytest.approx(1.9 / 2.4 * 2)
    assert costs.speed_up([0.0, 0.0], 100) == 1.0
