"""How a conversation is framed: the chat template around a request, and prompts of the user's own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import InputError
from forerun.text.chat import render
from forerun.text.reading import is_unicode
from forerun.text.tokenizer import Tokenizer

MARK = "forerun\u2063request"
MOST_PROMPTS = 1_000_000


@dataclass(frozen=True)
class Frame:
    """What stands before a request and between it and its answer.

    Attributes:
        before: text that opens the user's turn.
        after: tokens that close it and open the answer's.
        ends: tokens by which the model ends its own request.
    """

    before: str
    after: tuple[int, ...]
    ends: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, end_tokens: tuple[int, ...]) -> Frame | None:
        """The frame of a model's chat template; None for a model without one, whose requests are just texts
        to go on with."""
        if tokenizer.chat_template is None:
            return None
        whole = render(tokenizer, [{"role": "user", "content": MARK}])
        before, mark, after = whole.partition(MARK)
        if not mark or MARK in after:
            raise InputError("the model's chat template changes what it is given; pass prompts without it")
        tokens = tuple(tokenizer.encode(after, add_special=False))
        return cls(before, tokens, frozenset({*tokens[:1], *end_tokens}))


def read_prompts(path: Path) -> list[str]:
    """Prompts of a file, or of all files in a folder: one a line in `.jsonl` (a string, or an object with
    "prompt"), one a paragraph in any other text.

    Raises:
        InputError: nothing to read, or not what it should be.
    """
    if path.exists() and not (path.is_dir() or path.is_file()):  # a device may go on and on
        raise InputError(f"{path} is neither a file nor a folder")
    files = sorted(x for x in path.rglob("*") if x.is_file()) if path.is_dir() else [path]
    found: dict[str, None] = {}
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(f"{file} is not UTF-8 text; give text files only") from None
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror or error}") from error
        prompts = _lines(file, text) if file.suffix == ".jsonl" else text.split("\n\n")
        found.update(dict.fromkeys(prompt.strip() for prompt in prompts if prompt.strip()))
    if not found:
        raise InputError(f"{path} holds no prompts")
    return list(found)[:MOST_PROMPTS]


def _lines(file: Path, text: str) -> list[str]:
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(f"{file}: line {number} is not JSON") from None
        prompt = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(prompt, str):
            raise InputError(f'{file}: line {number} has no text "prompt"')
        if not is_unicode(prompt):
            raise InputError(f"{file}: line {number} has half a surrogate pair; take it out")
        prompts.append(prompt)
    return prompts
