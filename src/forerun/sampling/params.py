"""What a user may ask of sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Literal

from forerun.errors import InputError

LARGEST = 1e6
"""Penalties and biases beyond this say no more, and would leave single precision."""

LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-4, 1e6

NUMBERS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
CONSTRAINTS = ("json_schema", "regex", "grammar")
WHOLE = ("min_tokens", "top_k")
WHOLE_OR_NONE = ("max_tokens", "seed", "logprobs")


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is sampled and where it ends. Every field works with every drafter, and gives the text
    that plain decoding gives.

    Attributes:
        max_tokens: emit at most so many tokens; None for as many as the context holds.
        min_tokens: before so many tokens are emitted, no end token can be chosen and no stop string counts.
        temperature: 0 takes the most probable token; otherwise logits are divided by it.
        top_k: keep the k most probable tokens, and those tied with the k-th; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose probabilities sum to at least this; 1 keeps
            all.
        min_p: keep tokens at least this times as probable as the most probable one; 0 keeps all.
        seed: the same seed gives the same text; None draws one (`Result.seed` says which).
        repetition_penalty: divides positive and multiplies negative logits of tokens that occur in prompt or
            answer so far (Keskar et al., arXiv 1909.05858); 1 does nothing.
        presence_penalty: subtracted from the logits of tokens that occur in the answer so far.
        frequency_penalty: subtracted once for every time a token occurs in the answer so far.
        logit_bias: token id -> added to its logit, before everything else.
        banned_tokens: never chosen.
        allowed_tokens: if given, nothing else is chosen.
        stop: the text ends before the first of these strings.
        stop_tokens: end tokens besides the model's own.
        ignore_end: the model's own end tokens do not end the answer (they may still be chosen).
        acceptance: "coupled": the text depends on the seed alone, never on the drafter. "rejection": the text
            has exactly the target's distribution, but which text a seed gives depends on the drafter and on
            how many guesses a step verifies: on the machine's speed, unless `draft_tokens` says how many.
        logprobs: also give the log-probabilities of so many most probable tokens beside the chosen one's at
            each position (of the model's own distribution, before the pipeline); None gives none.
        json_schema: the answer is JSON that is valid against this schema, given as an object or as its text.
        regex: the answer matches this regular expression as a whole.
        grammar: the answer follows this grammar, in Lark or GBNF notation. At most one of the three is given;
            the answer then ends where it is complete and nothing may follow.

    Raises:
        InputError: a value out of range.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_tokens: tuple[int, ...] = ()
    allowed_tokens: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_end: bool = False
    acceptance: Literal["coupled", "rejection"] = "coupled"
    logprobs: int | None = None
    json_schema: Mapping[str, object] | str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        def check(fine: bool, name: str, what: str) -> None:
            if not fine:
                raise InputError(f"{name} is {getattr(self, name)!r}; it must be {what}")

        for name in (*NUMBERS, *WHOLE, *WHOLE_OR_NONE):
            object.__setattr__(self, name, _plain(getattr(self, name)))
        for name in NUMBERS:
            value = getattr(self, name)
            check(_is_number(value) and math.isfinite(value), name, "a finite number")
        for name in (*WHOLE, *WHOLE_OR_NONE):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            check(whole or (value is None and name in WHOLE_OR_NONE), name, "a whole number")
        check(isinstance(self.ignore_end, bool), "ignore_end", "True or False")
        check(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "at least 1")
        check(self.min_tokens >= 0, "min_tokens", "at least 0")
        fine = self.max_tokens is None or self.min_tokens <= self.max_tokens
        check(fine, "min_tokens", f"at most max_tokens, which is {self.max_tokens}")
        least, most = LEAST_TEMPERATURE, MOST_TEMPERATURE
        fine = self.temperature == 0 or least <= self.temperature <= most
        check(fine, "temperature", f"0, or between {least} and {most:.0f}")
        check(self.top_k >= 0, "top_k", "at least 0 (0 keeps all)")
        check(0 <= self.top_p <= 1, "top_p", "between 0 and 1 (1 keeps all)")
        check(0 <= self.min_p <= 1, "min_p", "between 0 and 1 (0 keeps all)")
        check(self.seed is None or 0 <= self.seed < 2**64, "seed", "between 0 and 2**64 - 1")
        fine = 1 / LARGEST <= self.repetition_penalty <= LARGEST
        check(fine, "repetition_penalty", f"between {1 / LARGEST:g} and {LARGEST:g} (1 does nothing)")
        for name in ("presence_penalty", "frequency_penalty"):
            check(abs(getattr(self, name)) <= LARGEST, name, f"between -{LARGEST:g} and {LARGEST:g}")
        check(self.logprobs is None or self.logprobs >= 0, "logprobs", "at least 0")
        fine = isinstance(self.acceptance, str) and self.acceptance in ("coupled", "rejection")
        check(fine, "acceptance", '"coupled" or "rejection"')
        strings = isinstance(self.stop, tuple) and all(isinstance(s, str) for s in self.stop)
        check(strings, "stop", "a tuple of strings")
        if "" in self.stop:
            raise InputError("stop has an empty string: every answer would end at once; take it out")
        for name in ("banned_tokens", "stop_tokens"):
            check(isinstance(getattr(self, name), tuple), name, "a tuple of token ids")
        allowed = self.allowed_tokens is None or isinstance(self.allowed_tokens, tuple)
        check(allowed, "allowed_tokens", "a tuple of token ids, or None")
        bias = self.logit_bias
        small = isinstance(bias, Mapping) and all(_is_number(x) and abs(x) <= LARGEST for x in bias.values())
        check(small, "logit_bias", f"numbers by token id, between -{LARGEST:g} and {LARGEST:g}")
        schema = self.json_schema
        check(schema is None or isinstance(schema, Mapping | str), "json_schema", "an object or its text")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            check(value is None or isinstance(value, str), name, "a text, or None")
        for text in (*self.stop, self.json_schema, self.regex, self.grammar):
            if isinstance(text, str) and not _is_unicode(text):
                raise InputError(f"{text!r} is not valid Unicode: it has half a surrogate pair; take it out")
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} cannot be followed at once; give one of them")


def _plain(value: object) -> object:
    """numpy's numbers as Python's; anything else as it is."""
    if isinstance(value, bool):
        return value
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
