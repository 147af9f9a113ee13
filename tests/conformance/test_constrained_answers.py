"""What a caller gets under a grammar: text, tokens, origins, endings and errors."""

from __future__ import annotations

import re

import pytest

import forerun
from conformance.under_grammar import FORMS, follows
from forerun.engine import Engine
from forerun.sampling.params import SamplingParams


def test_the_front_door(engine: Engine) -> None:
    """Text, tokens, origins and log-probabilities belong together, and are those of plain decoding."""
    for form, given_ in FORMS.items():
        for temperature in (0.0, 1.0):
            for drafter in ("suffix", "lookup", "suffix,lookup"):
                asked = SamplingParams(max_tokens=90, temperature=temperature, seed=9, logprobs=2, **given_)  # type: ignore[arg-type]
                plain = engine.generate("the return", asked, drafter="none")
                result = engine.generate("the return", asked, drafter=drafter)
                assert (result.text, result.tokens) == (plain.text, plain.tokens)
                assert (result.logprobs, result.finish_reason) == (plain.logprobs, plain.finish_reason)
                assert result.text == engine.tokenizer.decode(result.tokens)
                assert set(result.origins) <= {"grammar", "target", *drafter.split(",")}
                if plain.finish_reason == "stop":
                    assert follows(form, result.text)


def test_forced_tokens_are_free(engine: Engine) -> None:
    asked = SamplingParams(regex="the return of the other inning (and|or) another", max_tokens=90)
    result = engine.generate("x", asked, drafter="suffix")
    assert result.finish_reason == "stop"
    assert result.origins.count("target") <= 1 + len(result.tokens) // 10
    assert result.report.target_forwards <= 4
    plain = engine.generate("x", asked, drafter="none")
    assert (plain.text, plain.report.target_forwards) == (result.text, len(result.tokens))


def test_log_probabilities_are_the_models_own(engine: Engine) -> None:
    """Also of a token that the grammar forces, and however unlikely it is."""
    asked = SamplingParams(regex="z{12}", max_tokens=20, logprobs=3)
    for drafter in ("none", "suffix"):
        result = engine.generate("the", asked, drafter=drafter)
        assert result.text == "z" * 12
        assert all(entry.logprob < 0 for entry in result.logprobs)
        assert any(entry.token not in dict(entry.top) for entry in result.logprobs)


def test_answers_may_end_without_an_end_token(engine: Engine) -> None:
    for ignore_end in (False, True):
        result = engine.generate("the", SamplingParams(regex="(yes|no)", ignore_end=ignore_end))
        assert result.finish_reason == "stop"
        assert result.text in ("yes", "no")
        assert not set(result.tokens) & set(engine.end_tokens)


def test_a_minimum_that_the_grammar_cannot_reach(engine: Engine) -> None:
    for drafter in ("none", "suffix"):
        with pytest.raises(forerun.InputError, match="min_tokens asks for 50"):
            engine.generate("the", SamplingParams(regex="(yes|no)", min_tokens=50), drafter=drafter)


def test_a_minimum_holds_off_the_end(engine: Engine) -> None:
    for drafter in ("none", "suffix"):
        result = engine.generate(
            "the", SamplingParams(regex="[ab]*", min_tokens=20, max_tokens=25), drafter=drafter
        )
        assert 20 <= len(result.tokens) <= 25
        assert re.fullmatch("[ab]*", result.text)


def test_every_token_that_may_follow_is_banned(engine: Engine) -> None:
    letters = tuple(engine.tokenizer.encode("b", add_special=False))
    for drafter in ("none", "suffix"):
        with pytest.raises(forerun.InputError, match=r"every token is forbidden; .* the grammar"):
            engine.generate("the", SamplingParams(regex="ab", banned_tokens=letters), drafter=drafter)
        stopped = SamplingParams(regex="ab", banned_tokens=letters, stop=("a",))
        assert engine.generate("the", stopped, drafter=drafter).text == "", "the text ends before that place"


def test_several_at_once(engine: Engine) -> None:
    """Each sequence of a batch has its own grammar, or none."""
    asked = [SamplingParams(max_tokens=40, seed=3, temperature=0.9, **form) for form in FORMS.values()]  # type: ignore[arg-type]
    asked.append(SamplingParams(max_tokens=40, seed=3, temperature=0.9))
    together = engine.generate_batch(["the return"] * len(asked), asked)
    for one, params in zip(together, asked, strict=True):
        assert one.tokens == engine.generate("the return", params).tokens
