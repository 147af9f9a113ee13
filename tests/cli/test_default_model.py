"""The default model, as the README shows it. It is fetched once and stays in the user's cache."""

from __future__ import annotations

import pytest

import forerun
from forerun import Engine, SamplingParams
from support.program import process

pytestmark = pytest.mark.model

README = "Write a Python function that merges two sorted lists."
PROMPTS = [
    README,
    "Repeat this list three times: apples, pears, plums, cherries, apricots, quinces.",
    "Summarise: The ferry leaves the island at seven. The ferry returns to the island at nine. Nobody swims.",
    "Écris une phrase en français, puis la même phrase en majuscules. 😀",
]


DRAFTERS = (
    "auto",
    "head:smollm2-135m/eagle3",
    "head:smollm2-135m/medusa",
    "head:smollm2-135m/hydra",
    "draft:smollm2-135m/draft",
    "suffix,head:smollm2-135m/medusa,draft:smollm2-135m/draft",
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return forerun.load()


@pytest.fixture(scope="module")
def eager() -> Engine:
    """Verifies twelve guesses every step, whether they pay or not."""
    return forerun.load(draft_tokens=12)


def test_the_first_run() -> None:
    done = process("generate", README)
    assert done.returncode == 0
    assert "def merge" in done.stdout.decode()
    assert done.stderr.decode().endswith("finish: stop\n")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_lookup_changes_no_token(engine: Engine, prompt: str, temperature: float) -> None:
    message = [{"role": "user", "content": prompt}]
    params = SamplingParams(max_tokens=64, temperature=temperature, seed=11)
    plain = engine.generate(message, params, drafter="none")
    drafted = engine.generate(message, params, drafter="lookup")
    assert (drafted.text, drafted.tokens) == (plain.text, plain.tokens)
    assert drafted.report.target_forwards <= plain.report.target_forwards


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_packages_drafters_change_no_token(eager: Engine, drafter: str, temperature: float) -> None:
    message = [{"role": "user", "content": README}]
    params = SamplingParams(max_tokens=48, temperature=temperature, seed=3)
    plain = eager.generate(message, params, drafter="none")
    drafted = eager.generate(message, params, drafter=drafter)
    assert drafted.tokens == plain.tokens
    assert drafted.report.mean_accepted_length > 1.2
