"""Whenever a generation breaks off, the cache holds exactly the text so far, and writing can go on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.chaos import ChaosDrafter
from conformance.writing import end_token, rule_for, write_plainly
from forerun.core import engine
from forerun.core.budget import FixedBudget
from forerun.core.engine import decode
from forerun.core.protocols import Budget
from forerun.core.report import Report
from forerun.core.tree import DraftTree, FloatArray
from forerun.models.backend import Backend
from forerun.models.sequence import NodeChoices
from forerun.models.sequence import Sequence as TargetSequence
from forerun.sampling.params import SamplingParams

PROMPT = [3, 1, 4, 1, 5]
PARAMS = SamplingParams(max_tokens=24, temperature=0.8, seed=11, banned_tokens=(23,))

many = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Fuse:
    """Burns down with every call that passes through it, then breaks it: before it happens, or after."""

    def __init__(self, calls: int, error: type[BaseException], after: bool) -> None:
        self.calls, self.error, self.after = calls, error, after

    def burn(self, after: bool) -> None:
        if after == self.after:
            self.calls -= 1
            if self.calls == 0:
                raise self.error


class FragileTarget(TargetSequence):
    fuse: Fuse

    def extend(self, tokens):  # type: ignore[no-untyped-def]
        self.fuse.burn(False)
        features = super().extend(tokens)
        self.fuse.burn(True)
        return features

    def verify(self, tree: DraftTree) -> NodeChoices:
        self.fuse.burn(False)
        verdict = super().verify(tree)
        self.fuse.burn(True)
        return verdict


class FragileCommit(FragileTarget):
    def commit(self, path):  # type: ignore[no-untyped-def]
        self.fuse.burn(False)
        super().commit(path)
        self.fuse.burn(True)


class FragileDrafter(ChaosDrafter):
    fuse: Fuse

    def propose(self, budget: Budget) -> DraftTree:
        self.fuse.burn(False)
        return super().propose(budget)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self.fuse.burn(False)
        super().observe(tokens, features)
        self.fuse.burn(True)


@many
@given(
    calls=st.integers(1, 60),
    error=st.sampled_from([KeyboardInterrupt, MemoryError, RuntimeError]),
    after=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from([FragileTarget, FragileCommit]),
    drafts=st.booleans(),
    again=st.booleans(),
)
def test_an_exception_anywhere(
    backend: Backend,
    calls: int,
    error: type[BaseException],
    after: bool,
    seed: int,
    kind: type[FragileTarget],
    drafts: bool,
    again: bool,
) -> None:
    plain = write_plainly(backend, PROMPT, PARAMS)
    target = kind(backend, rule_for(PARAMS, backend, PROMPT), context=64, capacity=100)
    drafter = FragileDrafter(seed, PROMPT + plain.tokens, 0.8, 12, 24)
    target.fuse = Fuse(calls, error, after)
    drafter.fuse = target.fuse if drafts else Fuse(10**9, error, after)

    def run(held: int) -> tuple[list[int], bool]:
        steps = decode(
            target,
            drafter,
            PROMPT,
            policy=FixedBudget(),
            stop=end_token(backend, PARAMS),
            max_tokens=PARAMS.max_tokens,
            report=Report(),
            held=held,
        )
        tokens: list[int] = []
        try:
            for step in steps:
                tokens += step.tokens
        except error:
            return tokens, True
        return tokens, False

    tokens, broken = run(0)
    text = PROMPT + tokens
    assert tokens == plain.tokens[: len(tokens)]
    assert broken or tokens == plain.tokens
    assert target.tokens.tolist() == text[: target.length]
    if tokens:
        assert target.length == len(text) - 1
    target.fuse.calls = 10**9
    assert run(len(PROMPT) if again and not broken else 0) == (plain.tokens, False)


@many
@given(steps=st.integers(0, 12), seed=st.integers(0, 2**32 - 1))
def test_an_abandoned_stream(backend: Backend, steps: int, seed: int) -> None:
    plain = write_plainly(backend, PROMPT, PARAMS)
    target = TargetSequence(backend, rule_for(PARAMS, backend, PROMPT), context=64, capacity=100)
    drafter = ChaosDrafter(seed, PROMPT + plain.tokens, 0.8, 12, 24)

    def stream():  # type: ignore[no-untyped-def]
        return decode(
            target,
            drafter,
            PROMPT,
            policy=FixedBudget(),
            stop=end_token(backend, PARAMS),
            max_tokens=PARAMS.max_tokens,
            report=Report(),
        )

    first = stream()
    text = list(PROMPT)
    for _, step in zip(range(steps), first, strict=False):
        text += step.tokens
    first.close()
    if steps:
        assert target.tokens.tolist() == text[:-1]
    assert [token for step in stream() for token in step.tokens] == plain.tokens


def test_going_on_from_an_earlier_text(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """What target and drafter hold is not computed again; the text is the same, and so are the features."""
    monkeypatch.setattr(engine, "PREFILL_ROWS", 4)
    first = SamplingParams(max_tokens=9, banned_tokens=(23,))
    target = TargetSequence(backend, rule_for(first, backend, PROMPT), context=64, capacity=100, taps=(0, 2))
    drafter = ChaosDrafter(1, [], 0.0, 9, 24, taps=(0, 2))

    def run(prompt: list[int], params: SamplingParams, held: int) -> tuple[list[int], Report]:
        target.rule = rule_for(params, backend, prompt)
        report = Report()
        steps = decode(
            target, drafter, prompt, policy=FixedBudget(), stop=end_token(backend, params),
            max_tokens=params.max_tokens, report=report, held=held,
        )  # fmt: skip
        return [token for step in steps for token in step.tokens], report

    tokens, _ = run(PROMPT, first, 0)
    kept = PROMPT + tokens[:6]
    longer = [*kept, 7, 8, 9, 7, 8, 9, 7]
    second = SamplingParams(max_tokens=12, temperature=0.9, seed=4, repetition_penalty=1.2)
    drafter.pairs = 0
    tokens, report = run(longer, second, len(kept))
    assert tokens == write_plainly(backend, longer, second).tokens
    assert report.prefilled == 7
    assert drafter.pairs == 7 + len(tokens)
    assert drafter._text == longer + tokens


@pytest.mark.parametrize("prompt", [[], [1] * 65])
def test_prompts_that_cannot_be(backend: Backend, prompt: list[int]) -> None:
    target = TargetSequence(backend, rule_for(PARAMS, backend, prompt), context=64)
    drafter = ChaosDrafter(0, [], 0, 1, 24)
    with pytest.raises(ValueError, match="context"):
        next(
            decode(
                target,
                drafter,
                prompt,
                policy=FixedBudget(),
                stop=lambda token: None,
                max_tokens=1,
                report=Report(),
            )
        )
