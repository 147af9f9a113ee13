"""Grammars: what they say of a text depends on the text alone, and is what they mean."""

from __future__ import annotations

import json
import re
import sys
from functools import cache

import jsonschema
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text_samples import (
    byte_level_metadata,
    sentencepiece_metadata,
    sentencepiece_tokenizer,
    spellings,
    train,
)
from tokenizers import pre_tokenizers

from forerun.errors import ForerunError, InputError
from forerun.sampling.constraint import (
    ConstrainedEnd,
    ConstrainedRanker,
    ConstrainedRule,
    Constraint,
    Place,
    bits,
)
from forerun.sampling.grammar import MOST_KEPT, Grammars, _Words, reason
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.ranking import CoupledRanker
from forerun.sampling.rules import CoupledRule
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


def walk(constraint: Constraint, choices: list[int]) -> list[int]:
    """A text that the grammar allows."""
    text: list[int] = []
    for choice in choices:
        place = constraint.place(ints(PROMPT), text)
        allowed = [token for token in members(place) if token]
        if place.complete or not allowed:
            break
        text.append(allowed[choice % len(allowed)])
    return text


choices = st.lists(st.integers(0, 10**6), max_size=12)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=40, deadline=None)
@given(
    journeys=st.lists(
        st.tuples(choices, st.integers(0, 12), st.lists(st.integers(0, 499), max_size=3)), max_size=6
    )
)
def test_a_place_depends_on_the_text_alone(
    name: str, journeys: list[tuple[list[int], int, list[int]]]
) -> None:
    """Wherever the matcher has been, however a text is cut into what is committed and what is drafted, and
    also after texts that the grammar does not allow."""
    traveller = constrain(FORMS[name])
    for picks, cut, wrong in journeys:
        text = walk(constrain(FORMS[name]), picks)
        whole = [*PROMPT, *text, *(wrong if cut % 2 else [])]
        at = len(PROMPT) - 1 + min(cut, len(text) + 1)
        seen = traveller.place(ints(whole[:at]), whole[at:])
        assert same(seen, constrain(FORMS[name]).place(ints(whole), []))


words = st.text(alphabet="ab tcé日", min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(language=st.sets(words, min_size=1, max_size=6), picks=choices)
def test_what_may_follow_is_what_the_language_says(language: set[str], picks: list[int]) -> None:
    known = tokenizer()
    constraint = constrain(
        SamplingParams(regex="|".join(sorted(map(re.escape, language), key=lambda w: (-len(w), w))))
    )
    spelt = {word.encode() for word in language}
    text: list[int] = []
    for pick in [*picks, 0, 0]:
        place = constraint.place(ints(PROMPT), text)
        done = b"".join(map(known.token_bytes, text))
        rests = [word[len(done) :] for word in spelt if word.startswith(done)]
        ends = b"" in rests
        fitting = {
            token
            for token in range(known.vocab_size)
            if not known.is_special(token)
            and (data := known.token_bytes(token))
            and any(rest.startswith(data) for rest in rests)
        }
        assert place.complete == (ends and not fitting)
        allowed = set(members(place))
        assert (0 in allowed) == ends, "an end token is allowed exactly where the text may end"
        assert allowed - {0} <= fitting
        if (
            ends or len({rest[0] for rest in rests}) > 1
        ):  # else some bytes are forced, cut as the tokenizer would
            assert allowed - {0} == fitting
        assert bool(allowed - {0}) == bool(fitting)
        if place.complete:
            return
        following = sorted(allowed - {0})
        text.append(following[pick % len(following)])


@settings(max_examples=80, deadline=None)
@given(kind=st.sampled_from(["bytes", "pieces"]), text=st.text(min_size=1, max_size=20))
@example("pieces", " a")
@example("bytes", "<|end|>")
@example("pieces", "</s>")
@example("pieces", "\n\n")
def test_forced_text_is_cut_into_tokens_of_that_text(kind: str, text: str) -> None:
    """No space of a text of its own is put before it, and no special token stands for its own name."""
    constrain(FORMS["any"], kind)
    cut = _Words(tokenizer(kind), (0,))
    cut.greedy = grammars(kind)._tokens
    tokens = list(cut(text))
    assert b"".join(map(tokenizer(kind).token_bytes, tokens)) == text.encode()
    assert not any(map(tokenizer(kind).is_special, tokens))


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_forced_text_is_cut_as_the_tokenizer_does(kind: str) -> None:
    constraint = constrain(SamplingParams(regex="catacomb(s|ed)"), kind)
    text: list[int] = []
    while (token := constraint.place(ints(PROMPT), text).only) >= 0:
        text.append(token)
    whole = tokenizer(kind).encode("\ncatacombs", add_special=False)
    assert text
    at = next(i for i in range(len(whole)) if whole[i : i + len(text)] == text)
    assert b"catacombs".startswith(b"".join(map(tokenizer(kind).token_bytes, whole[at : at + len(text)])))


@settings(max_examples=40, deadline=None)
@given(picks=st.lists(st.integers(0, 10**6), min_size=60, max_size=60))
def test_json_is_valid(picks: list[int]) -> None:
    constraint = constrain(FORMS["schema"])
    text = walk(constraint, picks)
    written = b"".join(map(tokenizer().token_bytes, text))
    if constraint.place(ints(PROMPT), text).complete:
        jsonschema.validate(json.loads(written), SCHEMA)
    assert not re.search(rb"\s{45}", written), "whitespace comes to an end"


def test_the_end_of_a_text() -> None:
    yes = tokenizer().encode("yes", add_special=False)
    both = constrain(FORMS["choice"], ends=(0, 1))
    place = both.place(ints([*PROMPT, *yes]), [])
    assert (place.complete, members(place)) == (True, [0, 1])
    assert same(both.place(ints(PROMPT), yes), place)
    without = constrain(FORMS["choice"], ends=())
    assert same(without.place(ints(PROMPT), yes), Place(None, complete=True))
    for beyond in ([0], [0, 7], [9]):  # drafts may go on behind the end; nothing there is ever emitted
        assert both.place(ints(PROMPT), yes + beyond).allowed is None
    assert same(both.place(ints(PROMPT), yes), place)


def test_a_text_that_may_go_on_may_also_end() -> None:
    place = constrain(SamplingParams(regex="a+")).place(
        ints(PROMPT), tokenizer().encode("a", add_special=False)
    )
    assert not place.complete
    assert {0, *tokenizer().encode("a", add_special=False)} <= set(members(place))
    assert place.only == -1


@pytest.mark.parametrize("extra", [-7, 0, 1, 31, 32, 100])
def test_models_of_more_or_fewer_tokens(extra: int) -> None:
    """Embeddings are often padded, and some tokenizers know more tokens than their model."""
    size = tokenizer().vocab_size
    usual = members(constrain(FORMS["any"]).place(ints(PROMPT), []))
    place = constrain(FORMS["any"], vocab_size=size + extra, ends=(0, size + 5000)).place(ints(PROMPT), [])
    assert place.allowed is not None
    assert place.allowed.size == -(-(size + extra) // 32)
    assert members(place) == [token for token in usual if token < size + extra]


def test_no_token_fits() -> None:
    """The letter is in no token of this vocabulary."""
    small = from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": ["a", "b", "<end>"],
            "tokenizer.ggml.token_type": [1, 1, 3],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": 2,
        }
    )
    grammar = Grammars(small, (2,)).of(SamplingParams(regex="a(c|ab)"))
    assert grammar is not None
    constraint = Constraint(grammar, 3, (2,), 0)
    assert members(constraint.place(ints([0]), [])) == [0]
    assert members(constraint.place(ints([0, 0]), [])) == [1]
    with pytest.raises(InputError, match="no token of the vocabulary"):
        Grammars(small, (2,)).of(SamplingParams(regex="c"))
    dead = Grammars(small, (2,)).of(SamplingParams(regex="a[cd]|b"))
    assert dead is not None
    constraint = Constraint(dead, 3, (2,), 0)
    for _ in range(2):  # also when asked again
        with pytest.raises(ForerunError, match="cannot follow the regular expression any further"):
            constraint.place(ints([0]), [])
        assert constraint.place(ints([1]), []).complete


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


def test_what_becomes_too_much_later_is_told_then() -> None:
    constraint = constrain(SamplingParams(grammar='start: /[ab]{60}/ "c" loop\nloop: "a" loop'))
    text: list[int] = []

    def write() -> None:
        while True:
            text.append(members(constraint.place(ints(PROMPT), text))[0])

    with pytest.raises(InputError, match="cannot follow the grammar any further: it has a stretch"):
        write()
    assert text


def test_fitting() -> None:
    constraint = constrain(FORMS["schema"])
    good = tokenizer().encode('{"name": "x', add_special=False)
    assert constraint.fitting(ints(PROMPT), good) == len(good)
    assert constraint.fitting(ints(PROMPT), [*good[:2], 99]) == 2
    assert constraint.fitting(ints(PROMPT), [0, 5]) == 1, "end tokens are not judged"
    assert constraint.fitting(ints(PROMPT[:2]), [PROMPT[2], *good]) == 1 + len(good), (
        "the prompt is not judged"
    )
    constraint.place(ints(PROMPT), good[:4])
    assert constraint.fitting(ints(PROMPT), good) == len(good), "from where the matcher is"
    assert constraint.fitting(ints([*PROMPT, *good[:2]]), [good[2], 99]) == 1, "and before it"
    assert constraint.fitting(ints([*PROMPT, *good[:2]]), []) == 0
    assert constraint.fitting(ints([*PROMPT, 99]), good) == 0
    for wrong in (-1, -(2**31), 2**31 - 1, tokenizer().vocab_size):
        assert constraint.fitting(ints(PROMPT), [*good[:1], wrong, *good[1:]]) == 1
        assert constraint.place(ints(PROMPT), [*good[:1], wrong]).allowed is None
    complete = tokenizer().encode("yes", add_special=False)
    behind = [*complete, tokenizer().vocab_size]  # the id that stands for an end inside
    assert constrain(FORMS["choice"]).place(ints(PROMPT), behind).allowed is None


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


def test_sets_of_tokens() -> None:
    assert bits([0, 31, 32, 63], 2).tolist() == [1 | 1 << 31, 1 | 1 << 31]
    assert bits([], 3).tolist() == [0, 0, 0]


def rule(params: SamplingParams, constraint: Constraint) -> ConstrainedRule:
    pipeline = Pipeline(params, tokenizer().vocab_size, (0,), len(PROMPT))
    return ConstrainedRule(CoupledRule(pipeline, 0), constraint, pipeline.forbidden)


def choose(params: SamplingParams, form: str) -> int:
    logits = np.zeros(tokenizer().vocab_size, dtype=np.float32)
    return rule(params, constrain(FORMS[form])).choose(logits, ints(PROMPT), [], [], None)


def test_rules_choose_among_what_is_allowed() -> None:
    allowed = members(constrain(FORMS["choice"]).place(ints(PROMPT), []))
    assert choose(SamplingParams(), "choice") == min(allowed)
    banned = SamplingParams(banned_tokens=(min(allowed),))
    assert choose(banned, "choice") == sorted(allowed)[1]
    with pytest.raises(ForerunError, match="forbid"):
        choose(SamplingParams(banned_tokens=tuple(allowed)), "choice")


def test_a_forced_token_that_is_banned() -> None:
    (only,) = members(constrain(SamplingParams(regex="cat")).place(ints(PROMPT), []))
    logits = np.zeros(tokenizer().vocab_size, dtype=np.float32)
    forced = SamplingParams(regex="cat")
    assert rule(forced, constrain(forced)).choose(logits, ints(PROMPT), [], [], None) == only
    with pytest.raises(ForerunError):
        rule(SamplingParams(banned_tokens=(only,)), constrain(forced)).choose(
            logits, ints(PROMPT), [], [], None
        )


def test_answers_end_where_they_are_complete() -> None:
    yes = tokenizer().encode("yes", add_special=False)
    heard: list[int] = []

    def end(min_tokens: int = 0) -> ConstrainedEnd:
        heard.clear()
        stop = lambda token: heard.append(token)  # noqa: E731
        return ConstrainedEnd(stop, constrain(FORMS["choice"]), PROMPT, min_tokens)  # type: ignore[arg-type, return-value]

    asked = end(len(yes))
    assert [asked(token) for token in yes] == [*([None] * (len(yes) - 1)), "stop"]
    assert heard == yes
    asked = end(len(yes) + 1)
    assert [asked(token) for token in yes[:-1]] == [None] * (len(yes) - 1)
    with pytest.raises(InputError, match=f"complete after {len(yes)} tokens and min_tokens asks for"):
        asked(yes[-1])
    other = ConstrainedEnd(lambda token: "length", constrain(FORMS["choice"]), PROMPT, 0)
    assert other(yes[0]) == "length"


def test_draft_models_see_the_grammar() -> None:
    size = tokenizer().vocab_size
    constraint = constrain(FORMS["choice"])
    allowed = members(constraint.place(ints(PROMPT), []))
    draw = np.random.default_rng(0)
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        pipeline = Pipeline(params, size, (0,), len(PROMPT))
        ranker = ConstrainedRanker(CoupledRanker(pipeline, 0, size), constraint)
        for width in (size, size + 40, size - 40):  # draft models may be padded otherwise
            ranked = ranker.rank(draw.normal(size=width).astype(np.float32), ints(PROMPT), [], 8)
            assert ranked.tokens
            assert set(ranked.tokens) <= set(allowed)
        behind = [*tokenizer().encode("yes", add_special=False), 0]
        assert ranker.rank(draw.normal(size=size).astype(np.float32), ints(PROMPT), behind, 4).tokens
