"""The budget by cost: what pays is verified, what does not is not, and comes back when it pays again."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.cost_budget import PLAIN_EVERY, CostBudget, Experience
from forerun.core.curve import CostCurve
from forerun.core.report import Report
from forerun.core.tree import DraftTree

FLAT = {1: 1.0, 16: 1.05}
STEEP = {1: 1.0, 2: 2.0, 16: 16.0}


def run(budget: CostBudget, curve: CostCurve, right: list[int], width: int = 8) -> list[int]:
    """Steps whose guesses are right down to the given depths; the rows verified in each."""
    rows = []
    for depth in right:
        plan = budget.plan(Report(), 1000)
        count = min(width, plan.nodes)
        tree = DraftTree.chain(0, range(1, count + 1))
        kept = budget.trim(tree, 0.0)
        reached = min(depth, len(kept) - 1)
        tokens = [*range(1, reached + 1), reached + 1 if reached < depth else 99]
        budget.learn(tree, tokens, len(kept), curve(len(kept)))
        rows.append(len(kept))
    return rows


def test_the_curve_is_linear_between_points_and_beyond_them() -> None:
    curve = CostCurve({1: 2.0, 4: 5.0, 8: 5.0})
    assert [curve(n) for n in (1, 2, 4, 6, 8, 9)] == pytest.approx([2, 3, 5, 5, 5, 5])
    assert CostCurve({1: 2.0})(3) == pytest.approx(6)
    assert CostCurve({1: 2.0, 3: 1.0})(3) == pytest.approx(2)  # never falls: that is noise
    for points in ({}, {2: 1.0}, {1: 0.0}):
        with pytest.raises(ValueError, match="cost curve"):
            CostCurve(points)


def test_the_curve_follows_what_steps_take() -> None:
    curve = CostCurve({1: 1.0, 8: 2.0})
    for _ in range(200):
        curve.saw(1, 3.0)
    assert curve(1) == pytest.approx(3.0, rel=0.05)
    assert curve(8) / curve(1) > 1.2
    curve.saw(1, 1e9)
    assert curve(1) < 5.0


def test_several_rows_tell_of_themselves_where_a_single_one_was_seen_lately() -> None:
    curve = CostCurve({1: 1.0, 8: 2.0})
    for _ in range(100):
        curve.saw(1, 0.7)
        curve.saw(4, 2.0)
    assert curve(1) == pytest.approx(0.7, rel=0.1)
    assert curve(4) == pytest.approx(2.0, rel=0.15)


def test_a_step_is_plain_now_and_then_where_guesses_pay_little() -> None:
    little = CostCurve({1: 1.0, 2: 1.5, 16: 10.0})
    rows = run(CostBudget(little), little, [1] * 100, width=1)
    assert 100 // (PLAIN_EVERY + 1) - 1 <= rows.count(1) <= 100 // PLAIN_EVERY + 1
    much = CostCurve(FLAT)
    assert run(CostBudget(much), much, [8] * 100).count(1) == 0


def test_a_text_begins_with_the_price_that_earlier_texts_came_to() -> None:
    curve, experience = CostCurve(FLAT), Experience()
    run(CostBudget(curve, experience=experience), curve, [8] * 60)
    assert experience.speedup > 6.0
    assert CostBudget(curve, experience=experience)._price == pytest.approx(experience.speedup / curve(1))


def test_good_guesses_are_all_verified_where_rows_are_cheap() -> None:
    curve = CostCurve(FLAT)
    assert run(CostBudget(curve), curve, [8] * 40)[-1] == 9


def test_bad_guesses_fade_out_where_rows_cost() -> None:
    curve = CostCurve({1: 1.0, 16: 2.0})
    rows = run(CostBudget(curve), curve, [0] * 60)
    assert rows[-1] == 1
    assert sum(rows[-30:]) == 30


def test_guesses_come_back_when_they_pay_again() -> None:
    curve = CostCurve({1: 1.0, 16: 2.0})
    budget = CostBudget(curve)
    assert run(budget, curve, [0] * 60)[-1] == 1
    assert run(budget, curve, [8] * 80)[-1] > 5


def test_rows_as_dear_as_tokens_leave_plain_decoding() -> None:
    curve = CostCurve(STEEP)
    assert set(run(CostBudget(curve), curve, [8] * 50)[5:]) == {1}


def test_time_is_worth_what_it_gives_elsewhere() -> None:
    """The same poor guess is verified in a text where no other is better, and not in one whose steps give
    many tokens each."""

    def verified(right: int) -> int:
        curve = CostCurve({1: 1.0, 2: 1.3, 16: 1.5})
        budget = CostBudget(curve)
        run(budget, curve, [right] * 60)
        budget.plan(Report(), 1000)
        return len(budget.trim(tree, 0.0)) - 1

    tree = DraftTree(
        np.array([0, 1]), np.array([-1, 0]), ("other",) * 2, {}, np.array([1.0, 0.5], dtype=np.float32)
    )
    assert verified(0) == 1
    assert verified(8) == 0


def test_the_likeliest_branches_are_kept() -> None:
    curve = CostCurve({1: 1.0, 2: 1.1, 3: 1.2, 4: 3.0})
    tree = DraftTree(
        np.array([0, 1, 2, 3, 4]),
        np.array([-1, 0, 0, 1, 2]),
        chances=np.array([1.0, 0.2, 0.7, 0.1, 0.6], dtype=np.float32),
    )
    budget = CostBudget(curve)
    budget.plan(Report(), 100)
    kept = budget.trim(tree, 0.0)
    assert kept.tokens.tolist() == [0, 2, 4]
    assert kept.parents.tolist() == [-1, 0, 1]


def test_drawn_candidates_are_cut_by_whole_depths() -> None:
    """Which of the drawn ones are verified must not depend on what was drawn."""
    q = np.full(8, 1 / 8)
    tree = DraftTree(
        np.array([0, 1, 2, 3, 4]),
        np.array([-1, 0, 0, 1, 2]),
        proposals={0: q, 1: q, 2: q},
        chances=np.array([1.0, 0.9, 0.1, 0.8, 0.01], dtype=np.float32),
    )
    for last in (1.05, 1.2, 1.5, 2.0, 4.0):
        budget = CostBudget(CostCurve({1: 1.0, 5: last}))
        budget.plan(Report(), 100)
        assert len(budget.trim(tree, 0.0)) in (1, 3, 5)
