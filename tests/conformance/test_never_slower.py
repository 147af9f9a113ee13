"""A drafter that knows nothing costs next to nothing: counted in rows, which do not depend on the machine."""

from __future__ import annotations

import pytest

from conformance.tiny_cpu import tiny_cpu_backend
from conformance.writing import write, write_plainly
from forerun.core.cost_budget import CostBudget, Experience
from forerun.core.curve import CostCurve
from forerun.sampling.params import SamplingParams
from support.random_drafter import RandomDrafter

CURVES = {
    "memory-bound": {1: 1.0, 16: 1.05},
    "usual": {1: 1.0, 2: 1.1, 8: 1.6, 16: 2.4},
    "compute-bound": {1: 1.0, 16: 16.0},
}


class SteadyCurve(CostCurve):
    """The machine behaves as it was measured."""

    def saw(self, n: int, seconds: float) -> None:
        pass


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("curve", CURVES)
def test_a_random_drafter_fades_out(curve: str, temperature: float) -> None:
    backend = tiny_cpu_backend(vocab_size=997)
    cost = SteadyCurve(CURVES[curve])
    experience = Experience()
    params = SamplingParams(max_tokens=120, temperature=temperature, seed=3, ignore_end=True)
    overheads = []
    for text in range(4):
        prompt = [5 + text, 6, 7]
        plain = write_plainly(backend, prompt, params, context=256)
        drafter = RandomDrafter(backend.config.vocab_size, seed=text)
        budget = CostBudget(cost, 16, 16, experience=experience)
        found = write(backend, drafter, prompt, params, context=256, budget=budget)
        assert found.tokens == plain.tokens
        assert found.report.target_forwards <= plain.report.target_forwards
        nodes = found.report.drafted / found.report.target_forwards
        overheads.append(nodes * (cost(2) - cost(1)) / cost(1))  # the first row beyond one is the dearest
    assert overheads[0] < 0.05  # while it is not known yet
    assert max(overheads[1:]) < 0.015  # and afterwards
