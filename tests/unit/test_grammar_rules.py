"""Rules, rankers and ends under a grammar."""

from __future__ import annotations

import numpy as np
import pytest
from grammar_samples import FORMS, PROMPT, constrain, ints, members, tokenizer

from forerun.errors import ForerunError, InputError
from forerun.sampling.constraint import (
    ConstrainedEnd,
    ConstrainedRanker,
    ConstrainedRule,
    Constraint,
)
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.ranking import CoupledRanker
from forerun.sampling.rules import CoupledRule


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
