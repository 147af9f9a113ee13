"""The target's own first layers as its draft model."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.tiny_cpu import tiny_cpu_backend
from conformance.writing import write, write_plainly
from forerun.core.budget import FixedBudget
from forerun.drafters.model import ModelDrafter
from forerun.models.guide import Guide
from forerun.models.rows import Rows
from forerun.roster import Layered
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.ranking import CoupledRanker

WHOLE = tiny_cpu_backend(layers=3)
assert isinstance(WHOLE, Layered)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def logits(backend, tap=None):  # type: ignore[no-untyped-def]
    cache = backend.new_cache(20)
    last = np.array([len(PROMPT) - 1], dtype=np.int32)
    taps = () if tap is None else (tap,)
    output = backend.forward(Rows.chain(np.array(PROMPT, dtype=np.int32), cache), last, taps)
    return output.features[:, 0] if taps else output.logits[0]


def test_first_layers_are_the_models_own() -> None:
    assert isinstance(WHOLE, Layered)
    assert (logits(WHOLE.first_layers(3)) == logits(WHOLE)).all()
    for layers in (1, 2):
        part = WHOLE.first_layers(layers)
        assert part.config.layers == layers
        assert (logits(part, layers - 1) == logits(WHOLE, layers - 1)).all()
        assert (logits(part) != logits(WHOLE)).any()
    for layers in (0, 4):
        with pytest.raises(ValueError, match="layers"):
            WHOLE.first_layers(layers)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_is_the_targets(layers: int, temperature: float) -> None:
    assert isinstance(WHOLE, Layered)
    params = SamplingParams(temperature=temperature, seed=4, max_tokens=40, banned_tokens=(23,))
    ranker = CoupledRanker(Pipeline(params, 24, (23,), len(PROMPT)), 4, 24)
    drafter = ModelDrafter(Guide(WHOLE.first_layers(layers), 100), ranker, "skip")
    written = write(WHOLE, drafter, PROMPT, params, budget=FixedBudget(3, 3))
    assert written.tokens == write_plainly(WHOLE, PROMPT, params).tokens
    rates = written.report.acceptance_by_depth
    assert rates == [1.0] * len(rates) or layers < 3
