"""The drafter that is told the answer."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.bench.simulated import SimulatedDrafter
from forerun.core.protocols import Budget

TRUTH = list(range(10, 40))


def begun(acceptance: float, seed: int = 0) -> SimulatedDrafter:
    drafter = SimulatedDrafter(TRUTH, acceptance, 50, seed)
    drafter.begin(np.array(TRUTH[:3], dtype=np.int32), None)
    return drafter


def test_it_says_what_it_is() -> None:
    assert begun(0.75).name == "simulated:0.75"


def test_with_certainty_it_goes_on_as_the_truth_does() -> None:
    drafter = begun(1.0)
    assert drafter.propose(Budget(4, 9)).tokens.tolist() == [12, 13, 14, 15, 16]
    drafter.observe([13, 14], None)
    assert drafter.propose(Budget(9, 2)).tokens.tolist() == [14, 15, 16]
    drafter.truncate(4)
    assert drafter.propose(Budget(1, 1)).tokens.tolist() == [13, 14]
    drafter.observe(TRUTH[4:], None)
    assert drafter.propose(Budget(4, 4)).tokens.tolist() == [39]  # the truth ends here


@pytest.mark.parametrize("acceptance", [0.0, 0.6])
def test_so_many_guesses_are_right(acceptance: float) -> None:
    right = checked = 0
    for seed in range(100):
        tree = begun(acceptance, seed).propose(Budget(20, 20))
        right += int((tree.tokens[1:] == TRUTH[3:23]).sum())
        checked += len(tree) - 1
        assert tree.chances is not None
        assert tree.chances[2] == pytest.approx(acceptance**2)
    assert right / checked == pytest.approx(acceptance, abs=0.04)
