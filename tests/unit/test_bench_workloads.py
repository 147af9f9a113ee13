"""The project's own prompts are many, distinct, and as long as their kind asks."""

import re

import pytest

from forerun.bench.workloads import WORKLOADS, workload_prompts
from forerun.errors import InputError

WITH_SOURCE = {"extraction", "summarise", "rag"}


def _words(prompt):
    return re.findall(r"\w+", " ".join(message["content"] for message in prompt.messages).lower())


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_kind_has_enough_prompts_with_what_they_ask_about(workload):
    prompts = workload_prompts(workload)
    assert len(prompts) >= 12
    for prompt in prompts:
        assert prompt.workload == workload
        assert prompt.name.startswith(f"{workload}-")
        assert prompt.messages[-1]["role"] == "user"
        assert all(set(message) == {"role", "content"} for message in prompt.messages)
        assert len(_words(prompt)) >= (150 if workload in WITH_SOURCE else 8)


def test_names_and_texts_differ():
    prompts = [prompt for workload in WORKLOADS for prompt in workload_prompts(workload)]
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    assert len({tuple(_words(prompt)) for prompt in prompts}) == len(prompts)


def test_no_prompt_repeats_a_passage_of_another():
    seen = {}
    for workload in WORKLOADS:
        for prompt in workload_prompts(workload):
            words = _words(prompt)
            for i in range(len(words) - 11):
                assert seen.setdefault(tuple(words[i : i + 12]), prompt.name) == prompt.name


def test_some_inputs_are_long():
    lengths = [len(_words(p)) for workload in WITH_SOURCE for p in workload_prompts(workload)]
    assert sum(length > 400 for length in lengths) >= 3


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="there is no workload 'poetry'"):
        workload_prompts("poetry")
