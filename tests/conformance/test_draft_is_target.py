"""A draft model that is the target itself is always right, at any temperature: each step emits all that was
drafted and one token more, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest

import forerun
from forerun import SamplingParams
from forerun.engine import Engine

pytestmark = pytest.mark.model

DEPTH = 4
STEPS = 5
PROMPT = "Tell a story about a fox who keeps a shop for lost buttons."


@pytest.fixture(scope="module")
def engine() -> Engine:
    return forerun.load(draft_tokens=DEPTH)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=1.0, seed=4, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.3),
    ],
    ids=["greedy", "sampled", "filtered and penalised"],
)
def test_accepted_length_is_depth_plus_one(engine: Engine, params: SamplingParams) -> None:
    asked = replace(params, max_tokens=STEPS * (DEPTH + 1), ignore_end=True)
    plain = engine.generate(PROMPT, asked, drafter="none")
    itself = engine.generate(PROMPT, asked, drafter="draft:smollm2-135m")
    assert itself.tokens == plain.tokens
    assert itself.report.target_forwards == STEPS
    assert itself.report.mean_accepted_length == DEPTH + 1
    assert itself.origins == [*["draft"] * DEPTH, "target"] * STEPS
