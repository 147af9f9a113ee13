"""Prompts from files: a JSON object a line, or plain text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import InputError, one_line
from forerun.text.reading import is_unicode, read_some, read_text

OWN = (
    "Write a Python function that merges two sorted lists.",
    "Write a JSON object that describes a book: title, author, year, and three chapters with page numbers.",
    "List the names and ages in this text as CSV: Ada is 36, Grace is 85, and Alan is 41 years old.",
    "Summarise in two sentences: The mill at the river had ground the village's grain for two hundred years. "
    "When the dam broke in spring, the wheel stopped, and the miller went from house to house to say so.",
    "Tell the beginning of a story about a lighthouse keeper who collects forgotten words.",
    "What is the difference between a list and a tuple in Python?",
)
"""A few prompts of each kind, for a check that needs no file."""


@dataclass(frozen=True)
class Prompt:
    """A user's message, what it is called and which kind of work it is."""

    name: str
    category: str
    text: str


def own_prompts() -> list[Prompt]:
    """The built-in ones."""
    return [Prompt(str(i + 1), "own", text) for i, text in enumerate(OWN)]


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file.

    A line is an object with `prompt` (a string) or `turns` (strings, of which the first is taken), and
    optionally `question_id` or `id` and `category`.

    Raises:
        InputError: a file that cannot be read, or a line that is no such object.
    """
    try:
        with open(path, "rb") as file:
            lines = read_text(read_some(file)).split("\n")
    except OSError as error:
        raise InputError(f"cannot read prompts from {path}: {error.strerror or error}") from error
    except InputError as error:
        raise InputError(f"cannot read prompts from {path}: {error}") from error
    prompts = [_prompt(line, f"{path}, line {i}", i) for i, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InputError(f"{path} holds no prompts")
    return prompts


def _prompt(line: str, place: str, number: int) -> Prompt:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not JSON: {error}") from error
    text = found.get("prompt") if isinstance(found, dict) else None
    if text is None and isinstance(found, dict) and isinstance(found.get("turns"), list) and found["turns"]:
        text = found["turns"][0]
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{place} has neither a 'prompt' nor 'turns' with a text")
    if not is_unicode(text):
        raise InputError(f"{place} is not valid Unicode: it has half a surrogate pair; take it out")
    name, category = found.get("question_id", found.get("id", number)), found.get("category", "prompts")
    return Prompt(one_line(str(name)), one_line(str(category)), text)  # both are printed
