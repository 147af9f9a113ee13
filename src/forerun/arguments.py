"""What callers pass, checked where it comes in: a wrong type is one clear line, not a failure deep inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import NoReturn, TypeVar

from forerun.errors import InputError
from forerun.sampling.params import SamplingParams

T = TypeVar("T")

MOST_DIGITS = 4000


def check_prompt(prompt: object) -> None:
    """A prompt is a text, or a list of chat messages (which are looked at where they are rendered).

    Raises:
        InputError: it is neither.
    """
    if isinstance(prompt, str):
        return
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        refuse(
            "the prompt", prompt, 'a text, or a list of chat messages: [{"role": "user", "content": "Hi"}]'
        )
    if any(isinstance(part, Integral) for part in prompt):
        raise InputError("the prompt is a list of numbers; stream_tokens takes token ids")


def check_params(params: object) -> SamplingParams:
    """What was given, or the defaults for None.

    Raises:
        InputError: it is no SamplingParams.
    """
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        refuse("params", params, "a SamplingParams, such as SamplingParams(max_tokens=40)")
    return params


def check_list(name: str, value: Iterable[T], of: str) -> list[T]:
    """The members of what must be several.

    Raises:
        InputError: it is one text or one object, or nothing that has members.
    """
    single = isinstance(value, str | bytes | Mapping) or getattr(value, "ndim", 1) == 0
    if single or not isinstance(value, Iterable):
        refuse(name, value, f"a list of {of}")
    return list(value)


def check_text(name: str, value: object) -> None:
    """Raises InputError for anything but a text."""
    if not isinstance(value, str):
        refuse(name, value, "a text")


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """A whole number from `least` to `most`; None is taken for one that was not given.

    Raises:
        InputError: it is no number, or outside.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(name, value, "a whole number")
    if value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"between {least} and {most}"
        raise InputError(f"{name} is {value}; it must be {limits}")


def whole_number(text: str) -> int:
    """The number that a text of decimal digits writes; -1 for any other text, and for more digits than Python
    converts."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else -1


def check_progress(value: object) -> None:
    """Raises InputError for anything but a function, or None."""
    if value is not None and not callable(value):
        refuse("progress", value, "a function of two numbers, done and total")


def check_tokens(tokens: Iterable[int], vocab_size: int) -> list[int]:
    """Token ids of a prompt.

    Raises:
        InputError: what is no list of whole numbers, or an id outside the vocabulary.
    """
    ids = check_list("the prompt", tokens, "token ids")
    for place, token in enumerate(ids):
        if type(token) is not int:
            if isinstance(token, bool) or not isinstance(token, Integral):
                refuse("a token id of the prompt", token, "whole numbers")
            ids[place] = int(token)
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise InputError(f"the prompt has token ids outside the model's vocabulary of {vocab_size}")
    return ids


def refuse(name: str, value: object, accepted: str) -> NoReturn:
    """Raise InputError: `value` is of a kind that cannot be used for `name`."""
    kind = "None" if value is None else f"of type {type(value).__name__}"
    raise InputError(f"{name} is {kind}; give {accepted}")
