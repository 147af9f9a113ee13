"""Grammars: what they say of a text depends on the text alone, and is what they mean."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from grammar_samples import FORMS, PROMPT, SCHEMA, constrain, grammars, ints, members, same, tokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun.errors import ForerunError, InputError
from forerun.sampling.constraint import (
    Constraint,
    Place,
    bits,
)
from forerun.sampling.grammar import Grammars, _Words
from forerun.sampling.params import SamplingParams
from forerun.text import Tokenizer, from_gguf


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


def test_an_interruption_while_a_grammar_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """llguidance asks for tokens meanwhile, and takes Ctrl-C there for a fault of the grammar."""

    vocabulary, presses = tokenizer(), iter([True])
    encode = type(vocabulary).encode

    def interrupted(self: Tokenizer, text: str, add_special: bool = True) -> list[int]:
        if next(presses, False):
            raise KeyboardInterrupt
        return encode(self, text, add_special)

    monkeypatch.setattr(type(vocabulary), "encode", interrupted)
    compiler, params = Grammars(vocabulary, (0,)), SamplingParams(regex="a stretch of text")
    with pytest.raises(KeyboardInterrupt):
        compiler.of(params)
    assert compiler.of(params) is not None


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


def test_sets_of_tokens() -> None:
    assert bits([0, 31, 32, 63], 2).tolist() == [1 | 1 << 31, 1 | 1 << 31]
    assert bits([], 3).tolist() == [0, 0, 0]
