"""Grammars of every kind over a small tokenizer."""

from __future__ import annotations

from functools import cache

import numpy as np
from text_samples import (
    byte_level_metadata,
    sentencepiece_metadata,
    sentencepiece_tokenizer,
    spellings,
    train,
)
from tokenizers import pre_tokenizers

from forerun.sampling.constraint import (
    Constraint,
    Place,
)
from forerun.sampling.grammar import Grammars
from forerun.sampling.params import SamplingParams
from forerun.text import Tokenizer, from_gguf

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "cats": {"type": "integer", "maximum": 99}},
    "required": ["name", "cats"],
    "additionalProperties": False,
}
FORMS: dict[str, SamplingParams] = {
    "choice": SamplingParams(regex="yes|no|yellow|日本|day"),
    "regex": SamplingParams(regex=r"[a-d]{2,5}(-[a-d]+)*é?"),
    "schema": SamplingParams(json_schema=SCHEMA),
    "lark": SamplingParams(grammar='start: "(" start* ")" | WORD\nWORD: /[a-z]{1,4}/'),
    "gbnf": SamplingParams(grammar='root ::= item ("," item)*\nitem ::= [0-9]+ | "the" | "cat"'),
    "any": SamplingParams(regex=r"(?s:.*)"),
}
PROMPT = [1, 2, 3]


@cache
def tokenizer(kind: str = "bytes") -> Tokenizer:
    if kind == "bytes":
        return from_gguf(
            byte_level_metadata(train(pre_tokenizers.ByteLevel(add_prefix_space=False)), "gpt-2")
        )
    return from_gguf(sentencepiece_metadata(spellings(sentencepiece_tokenizer())))


@cache
def grammars(kind: str = "bytes") -> Grammars:
    return Grammars(tokenizer(kind), tokenizer(kind).eos_ids)


def constrain(
    params: SamplingParams, kind: str = "bytes", vocab_size: int | None = None, ends: tuple[int, ...] = (0,)
) -> Constraint:
    grammar = grammars(kind).of(params)
    assert grammar is not None
    return Constraint(grammar, vocab_size or tokenizer(kind).vocab_size, ends, len(PROMPT))


def ints(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def members(place: Place) -> list[int]:
    assert place.allowed is not None
    return np.flatnonzero(np.unpackbits(place.allowed.view(np.uint8), bitorder="little")).tolist()


def same(one: Place, other: Place) -> bool:
    equal = one.allowed is other.allowed is None or np.array_equal(one.allowed, other.allowed)  # type: ignore[arg-type]
    return equal and (one.only, one.complete) == (other.only, other.complete)
