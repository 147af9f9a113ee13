"""The project's own prompts: seven kinds of work, a file of JSON lines each, written for this package.

They are what speed is measured on, and what the drafters' constants are chosen on. Text that a prompt asks to
summarise, to search or to change is part of the prompt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from forerun.errors import InputError

WORKLOADS = ("code", "json", "extraction", "summarise", "rag", "chat", "creative")
"""The kinds of work, those whose answers are easiest to guess first."""


@dataclass(frozen=True)
class WorkloadPrompt:
    """One request.

    Attributes:
        name: unique among all workloads, such as "code-merge-intervals".
        workload: one of `WORKLOADS`.
        messages: of a chat, each with "role" and "content"; the last is the user's.
    """

    name: str
    workload: str
    messages: tuple[dict[str, str], ...]


def workload_prompts(workload: str) -> list[WorkloadPrompt]:
    """The prompts of one kind, in the order of their file.

    Raises:
        InputError: no such kind.
    """
    if workload not in WORKLOADS:
        raise InputError(f"there is no workload {workload!r}; there are {', '.join(WORKLOADS)}")
    text = files(__package__).joinpath(f"{workload}.jsonl").read_text(encoding="utf-8")
    return [_prompt(json.loads(line)) for line in text.split("\n") if line]


def _prompt(line: dict[str, object]) -> WorkloadPrompt:
    messages = line.get("messages") or [{"role": "user", "content": line["prompt"]}]
    assert isinstance(messages, list)
    return WorkloadPrompt(str(line["id"]), str(line["workload"]), tuple(messages))
