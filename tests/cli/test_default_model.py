"""The default model, as the README shows it. It is fetched once and stays in the user's cache."""

from __future__ import annotations

import json

import pytest

from support.program import forerun

pytestmark = pytest.mark.model

README = "Write a Python function that merges two sorted lists."
PROMPTS = [
    README,
    "Repeat this list three times: apples, pears, plums, cherries, apricots, quinces.",
    "Summarise: The ferry leaves the island at seven. The ferry returns to the island at nine. Nobody swims.",
    "Écris une phrase en français, puis la même phrase en majuscules. 😀",
]


def test_the_first_run() -> None:
    done = forerun("generate", README)
    assert done.returncode == 0
    assert "def merge" in done.stdout.decode()
    assert done.stderr.decode().endswith("finish: stop\n")


@pytest.mark.parametrize("options", [[], ["--temperature", "1", "--seed", "11"]], ids=["greedy", "sampled"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_lookup_changes_no_byte(prompt: str, options: list[str]) -> None:
    given = [prompt, "--max-tokens", 96, "--json", *options]
    plain = json.loads(forerun("generate", *given, "--drafter", "none").stdout)
    drafted = json.loads(forerun("generate", *given, "--drafter", "lookup").stdout)
    assert (drafted["text"], drafted["tokens"]) == (plain["text"], plain["tokens"])
    assert drafted["report"]["target_forwards"] <= plain["report"]["target_forwards"]
