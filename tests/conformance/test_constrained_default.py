"""JSON by schema from the default model: valid, as plain decoding writes it, in fewer forwards."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import forerun
from forerun import SamplingParams
from forerun.core.budget import FixedBudget
from forerun.core.engine import decode
from forerun.core.report import Report
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine import Engine
from forerun.models.rows import FloatArray, IntArray
from forerun.models.sequence import Sequence as TargetSequence

pytestmark = pytest.mark.model


def record(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text(longest: int) -> dict[str, object]:
    return {"type": "string", "maxLength": longest}


CASES: dict[str, tuple[str, dict[str, object]]] = {
    "person": (
        "Describe a person as JSON with name, age and hobbies.",
        record(
            name=text(30),
            age={"type": "integer", "minimum": 0, "maximum": 130},
            hobbies={"type": "array", "items": text(20), "maxItems": 4},
        ),
    ),
    "books": (
        "List three books with title, author, year and whether they are fiction, as JSON.",
        record(
            books={
                "type": "array",
                "minItems": 3,
                "maxItems": 3,
                "items": record(
                    title=text(40),
                    author=text(30),
                    publication_year={"type": "integer"},
                    is_fiction={"type": "boolean"},
                ),
            }
        ),
    ),
    "order": (
        "Extract the order as JSON: 'Maria Lopez here, please send 2 lamps and 3 chairs to 12 Hill Street.'",
        record(
            customer=record(first_name=text(20), last_name=text(20)),
            items={
                "type": "array",
                "maxItems": 3,
                "items": record(product=text(20), quantity={"type": "integer", "maximum": 50}),
            },
            shipping_address={"anyOf": [text(40), {"type": "null"}]},
            payment_method={"enum": ["card", "cash", "transfer"]},
        ),
    ),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return forerun.load(draft_tokens=8)


def ask(engine: Engine, case: str, temperature: float, drafter: str, **more: Any) -> forerun.Result:
    prompt, schema = CASES[case]
    params = SamplingParams(
        max_tokens=300, temperature=temperature, seed=5, json_schema=schema, logprobs=1, **more
    )
    return engine.generate([{"role": "user", "content": prompt}], params, drafter=drafter)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("case", CASES)
def test_valid_and_equal_to_plain(engine: Engine, case: str, temperature: float) -> None:
    plain = ask(engine, case, temperature, "none")
    assert plain.finish_reason == "stop"
    jsonschema.validate(json.loads(plain.text), CASES[case][1])
    for drafter in ("lookup", "suffix", "lookup,suffix"):
        result = ask(engine, case, temperature, drafter)
        assert (result.text, result.tokens, result.logprobs) == (plain.text, plain.tokens, plain.logprobs)
        assert result.report.target_forwards < plain.report.target_forwards
        assert "grammar" in result.report.drafters


@pytest.mark.parametrize("case", CASES)
def test_valid_by_rejection(engine: Engine, case: str) -> None:
    result = ask(engine, case, 1.0, "suffix", acceptance="rejection")
    assert result.finish_reason == "stop"
    jsonschema.validate(json.loads(result.text), CASES[case][1])


class Dictated:
    """Chooses a given text, whatever the model says: the text of a grammar, without the grammar."""

    def __init__(self, text: list[int], start: int) -> None:
        self._text, self._start = text, start

    def choose(
        self, logits: FloatArray, history: IntArray, path: list[int], candidates: list[int], proposal: object
    ) -> int:
        at = len(history) + len(path) - self._start
        return self._text[at] if at < len(self._text) else 0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("case", CASES)
def test_fewer_forwards_than_without_the_grammar(engine: Engine, case: str, temperature: float) -> None:
    result = ask(engine, case, temperature, "suffix")
    prompt = engine.encode([{"role": "user", "content": CASES[case][0]}])
    target = TargetSequence(
        engine.backend,
        Dictated(result.tokens, len(prompt)),
        context=engine.context,
        capacity=len(prompt) + 400,
    )
    report = Report()
    steps = decode(
        target,
        SuffixDrafter(),
        prompt,
        policy=FixedBudget(8, 8),
        stop=lambda token: None,
        max_tokens=len(result.tokens),
        report=report,
    )
    assert [token for step in steps for token in step.tokens] == result.tokens
    assert result.report.target_forwards < report.target_forwards
    assert np.isclose(result.report.mean_accepted_length, len(result.tokens) / result.report.target_forwards)


DOCUMENT = (Path(__file__).parents[2] / "docs/constrained.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL))
def test_the_documents_python(code: str) -> None:
    exec(code, {})


@pytest.mark.parametrize("code", re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL))
def test_the_documents_commands(code: str) -> None:
    program = f'set -e\nforerun() {{ "{sys.executable}" -m forerun "$@"; }}\n{code}'
    done = subprocess.run(["bash", "-c", program], capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().endswith("finish: stop\n")
