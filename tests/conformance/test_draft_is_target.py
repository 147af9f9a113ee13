"""A draft model that is the target itself is always right, at any temperature: wherever a tree has guesses,
one of them is what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

import forerun
from forerun import SamplingParams
from forerun.engine import Engine

pytestmark = pytest.mark.model

PROMPT = "Tell a story about a fox who keeps a shop for lost buttons."


@pytest.fixture(scope="module")
def engine() -> Engine:
    return forerun.load(draft_tokens=4)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=1.0, seed=4, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.3),
    ],
    ids=["greedy", "sampled", "filtered and penalised"],
)
def test_every_step_is_accepted_to_the_end_of_its_tree(engine: Engine, params: SamplingParams) -> None:
    asked = replace(params, max_tokens=40, ignore_end=True)
    plain = engine.generate(PROMPT, asked, drafter="none")
    itself = engine.generate(PROMPT, asked, drafter="draft:smollm2-135m")
    assert itself.tokens == plain.tokens
    rates = itself.report.acceptance_by_depth
    assert rates == [1.0] * len(rates)
    assert len(rates) >= 2
    assert itself.report.mean_accepted_length > 2
