"""Grammars as they are asked for: what is refused and how, what is kept, how schemas are written."""

from __future__ import annotations

import json
import sys

import pytest
from grammar_samples import PROMPT, SCHEMA, constrain, grammars, ints, same, tokenizer

from forerun.errors import InputError
from forerun.sampling.grammar import MOST_KEPT, Grammars, reason
from forerun.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (SamplingParams(grammar='start: "a" start'), "never ends"),
        (SamplingParams(grammar='root ::= "a" root'), "never ends"),
        (SamplingParams(grammar='start: ("a"|"b") loop\nloop: "a" loop'), "never ends"),
        (SamplingParams(regex="a{300000}"), "regular expression cannot be used: it is too large"),
    ],
)
def test_what_is_too_much_is_told_before_an_answer(params: SamplingParams, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        grammars().of(params)


BAD: dict[str, tuple[SamplingParams, str]] = {
    "no JSON": (SamplingParams(json_schema='{"type": "obj'), "no JSON"),
    "a list": (SamplingParams(json_schema="[1]"), "no object"),
    "true": (SamplingParams(json_schema="true"), "no object"),
    "nothing": (SamplingParams(json_schema=""), "no JSON"),
    "objects inside": (SamplingParams(json_schema={"enum": [object()]}), "no JSON"),
    "deep JSON": (SamplingParams(json_schema="[" * 100_000), "no JSON"),
    "unknown type": (SamplingParams(json_schema={"type": "strin"}), "strin"),
    "not in llguidance": (SamplingParams(json_schema={"type": "array", "uniqueItems": True}), "uniqueItems"),
    "oneOf": (SamplingParams(json_schema={"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
    "no value": (SamplingParams(json_schema={"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
    "far away": (SamplingParams(json_schema={"$ref": "https://example.org/s.json"}), "example.org"),
    "regex": (SamplingParams(regex="(a"), "unclosed group"),
    "look-ahead": (SamplingParams(regex="a(?=b)"), "look-ahead"),
    "back reference": (SamplingParams(regex=r"(a)\1"), "backreference"),
    "empty regex": (SamplingParams(regex=""), "no text"),
    "regex of nothing": (SamplingParams(regex=r"[^\s\S]"), "no token"),
    "unknown rule": (SamplingParams(grammar='start: "a" b'), 'line 1, column 8: unknown name: "b"'),
    "lark": (SamplingParams(grammar='start: "a" ('), "line 1"),
    "no grammar": (SamplingParams(grammar="hello"), "GBNF with a rule root"),
    "empty grammar": (SamplingParams(grammar=""), "root"),
    "no root": (SamplingParams(grammar='leaf ::= "a"'), "root"),
    "gbnf, unknown rule": (SamplingParams(grammar="root ::= leaf"), "leaf"),
    "gbnf, backslash": (SamplingParams(grammar='root ::= "a\\'), "GBNF"),
    "deep gbnf": (SamplingParams(grammar="root ::= " + "(" * 100_000), "GBNF"),
    "cannot be taken back": (SamplingParams(grammar='start: a "!"\na[stop="x"]: /.*/'), "stop="),
    "cannot be taken back 2": (SamplingParams(grammar='start: a "!"\na[max_tokens=3]: /.*/'), "max_tokens="),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_in_a_line(name: str) -> None:
    params, words = BAD[name]
    with pytest.raises(InputError, match=words) as refused:
        grammars().of(params)
    assert "cannot be used" in str(refused.value) or "JSON schema is no" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"regex": "a", "grammar": "b"}, "regex and grammar"),
        ({"json_schema": {}, "regex": "a"}, "json_schema and regex"),
        ({"json_schema": 3}, "an object or its text"),
        ({"json_schema": [1]}, "an object or its text"),
        ({"regex": b"a"}, "a text"),
        ({"grammar": 1}, "a text"),
    ],
)
def test_parameters_of_the_wrong_kind(given_: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SamplingParams(**given_)  # type: ignore[arg-type]


def test_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match="pip install llguidance"):
        Grammars(tokenizer(), ()).of(SamplingParams(regex="a"))


def test_nothing_is_asked() -> None:
    assert grammars().of(SamplingParams()) is None


def test_grammars_are_kept() -> None:
    kept = Grammars(tokenizer(), (0,))
    first = kept.of(SamplingParams(regex="a"))
    assert kept.of(SamplingParams(regex="a")) is first
    assert kept.of(SamplingParams(grammar='start: "a"')) is not first
    for number in range(MOST_KEPT - 1):
        kept.of(SamplingParams(regex=f"a{{{number + 1}}}"))
        assert kept.of(SamplingParams(regex="a")) is first, "used lately"
    for number in range(MOST_KEPT):
        kept.of(SamplingParams(regex=f"b{{{number + 1}}}"))
    assert kept.of(SamplingParams(regex="a")) is not first
    assert len(kept._kept) == MOST_KEPT


def test_schemas_as_objects_and_as_texts() -> None:
    constraint = constrain(SamplingParams(json_schema=json.dumps(SCHEMA)))
    place = constrain(SamplingParams(json_schema=SCHEMA)).place(ints(PROMPT), [])
    assert same(constraint.place(ints(PROMPT), []), place)


def test_a_schema_may_say_how_it_is_written() -> None:
    compact = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
    constraint = constrain(SamplingParams(json_schema=compact))
    text: list[int] = []
    while (token := constraint.place(ints(PROMPT), text).only) >= 0:
        text.append(token)
    assert b'{"name":"'.startswith(b"".join(map(tokenizer().token_bytes, text)))
    assert len(text) > 2


def test_messages_are_short() -> None:
    assert reason("at 1(8): invalid\n   1 | start: /(a/\n              ^\n") == "line 1, column 8: invalid"
    assert reason("NoExtensionBias\n<state>\nTokens: ...") == "no token of the vocabulary fits it"
    assert reason("") == "it is not understood"
