"""Whatever is drafted, the text is the one that plain decoding writes, token for token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.chaos import ChaosDrafter
from conformance.tiny_model import TinyBackend
from conformance.writing import Written, write, write_plainly
from forerun.core.budget import FixedBudget
from forerun.core.protocols import Drafter
from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.lookup import LookupDrafter
from forerun.drafters.model import ModelDrafter
from forerun.drafters.none import NoDrafter
from forerun.drafters.suffix import SuffixConstants, SuffixDrafter
from forerun.models.backend import Backend
from forerun.models.guide import Guide
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.ranking import CoupledRanker

VOCAB = 24
CONTEXT = 64

MakeDrafter = Callable[[int, list[int], SamplingParams, int], Drafter]
OTHER = TinyBackend(seed=7, sharpness=5.0)


def model(seed: int, truth: list[int], params: SamplingParams, prompt: int) -> ModelDrafter:
    """A draft model that is not the target, whose own context may end early."""
    ranker = CoupledRanker(Pipeline(params, VOCAB, (VOCAB - 1,), prompt), params.seed or 0, VOCAB)
    return ModelDrafter(Guide(OTHER, 30 + seed % 60), ranker)


def suffix(seed: int, truth: list[int], params: SamplingParams, prompt: int) -> Drafter:
    return SuffixDrafter(constants=SuffixConstants(least_chance=0.001 + seed % 9 / 40))


def cascade(seed: int, truth: list[int], params: SamplingParams, prompt: int) -> CascadeDrafter:
    """Drafters with and without chances, with and without taps, that merge and extend."""
    some: list[Drafter] = [
        SuffixDrafter(constants=SuffixConstants(least_chance=0.02)),
        ChaosDrafter(seed, truth, 0.5, 9, VOCAB, taps=(1,)),
        model(seed, truth, params, prompt),
        LookupDrafter(),
    ]
    start = seed % 4
    return CascadeDrafter([*some[start:], *some[:start]])


DRAFTERS: dict[str, MakeDrafter] = {
    "none": lambda seed, truth, params, prompt: NoDrafter(),
    "lookup": lambda seed, truth, params, prompt: LookupDrafter(max_ngram=1 + seed % 4),
    "suffix": suffix,
    "model": model,
    "cascade": cascade,
    "garbage": lambda seed, truth, params, prompt: ChaosDrafter(seed, truth, 0.0, 12, VOCAB),
    "mixed": lambda seed, truth, params, prompt: ChaosDrafter(seed, truth, 0.6, 20, VOCAB),
    "knowing": lambda seed, truth, params, prompt: ChaosDrafter(seed, truth, 0.97, 30, VOCAB),
    "reading": lambda seed, truth, params, prompt: ChaosDrafter(seed, truth, 0.6, 20, VOCAB, taps=(0, 2)),
}

tokens = st.integers(0, VOCAB - 1)
prompts = st.lists(tokens, min_size=1, max_size=12)
seeds = st.integers(0, 2**64 - 1)


def sampling(max_tokens: int | None, min_tokens: int, **others: Any) -> SamplingParams:
    """Parameters whose least length is not above their greatest."""
    least = min_tokens if max_tokens is None else min(min_tokens, max_tokens)
    return SamplingParams(max_tokens=max_tokens, min_tokens=least, **others)


params = st.builds(
    sampling,
    max_tokens=st.none() | st.integers(1, 40),
    min_tokens=st.just(0) | st.integers(0, 12),
    temperature=st.sampled_from([0.0, 0.0, 0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 1, 3, 10]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.4, 0.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
    seed=seeds,
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4, -0.2]),
    logit_bias=st.dictionaries(tokens, st.floats(-4, 4, width=32), max_size=3),
    banned_tokens=st.lists(tokens, max_size=3).map(tuple),
    allowed_tokens=st.none() | st.just(tuple(range(4, VOCAB))),
    stop_tokens=st.just(()) | st.tuples(tokens),
)

many = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(written: Written, plain: Written, prompt: list[int]) -> None:
    """The text, and what must hold of counts and cache after any generation."""
    assert written.tokens == plain.tokens
    assert written.finish == plain.finish
    report = written.report
    assert report.tokens == len(written.tokens) == len(written.origins)
    assert report.target_forwards <= plain.report.target_forwards
    guessed = sum(origin != "" for origin in written.origins)
    ended_by_a_guess = written.origins[-1:] != [
        ""
    ]  # otherwise every forward adds a token of the target's own
    assert report.tokens == guessed + report.target_forwards - (ended_by_a_guess and report.tokens > 0)
    assert sum(count.accepted for count in report.depths) == guessed
    assert sum(count.accepted for count in report.drafters.values()) == guessed
    for shallow, deep in zip(report.depths, report.depths[1:], strict=False):
        assert deep.checked <= shallow.accepted
    assert all(count.accepted <= count.checked <= report.target_forwards for count in report.depths)
    assert written.target.tokens.tolist() == [*prompt, *written.tokens][:-1]


@pytest.mark.parametrize("name", DRAFTERS)
@many
@given(prompt=prompts, params=params, seed=st.integers(0, 2**32 - 1), nodes=st.integers(1, 24))
def test_every_drafter_and_every_parameter(
    backend: Backend, name: str, prompt: list[int], params: SamplingParams, seed: int, nodes: int
) -> None:
    plain = write_plainly(backend, prompt, params, context=CONTEXT)
    drafter = DRAFTERS[name](seed, prompt + plain.tokens, params, len(prompt))
    slack = seed % 3  # almost no place for drafts at the end of the context
    budget = FixedBudget(nodes, 1 + seed % 16)
    written = write(backend, drafter, prompt, params, context=CONTEXT, slack=slack, budget=budget)
    check(written, plain, prompt)
    if isinstance(drafter, ChaosDrafter) and drafter.taps:
        assert drafter.pairs == len(prompt) - 1 + len(written.tokens)


@many
@given(prompt=prompts, params=params, seed=st.integers(0, 2**32 - 1), room=st.integers(0, 6))
def test_context_ends_inside_a_draft(
    backend: Backend, prompt: list[int], params: SamplingParams, seed: int, room: int
) -> None:
    params = replace(params, max_tokens=None, min_tokens=0)
    context = len(prompt) + room
    plain = write_plainly(backend, prompt, params, context=context)
    drafter = ChaosDrafter(seed, prompt + plain.tokens, 0.95, 30, VOCAB)
    written = write(backend, drafter, prompt, params, context=context, slack=seed % 9)
    assert (written.tokens, written.finish) == (plain.tokens, plain.finish)
    assert len(prompt) + len(written.tokens) <= context
    assert written.finish == "stop" or len(prompt) + len(written.tokens) == context


@many
@given(prompt=prompts, params=params, seed=st.integers(0, 2**32 - 1))
def test_exact_numbers_of_tokens(
    backend: Backend, prompt: list[int], params: SamplingParams, seed: int
) -> None:
    """Least and most tokens hold to the token; an end token inside an accepted block ends the text there."""
    params = replace(params, max_tokens=20, allowed_tokens=None, banned_tokens=(), stop_tokens=())
    plain = write_plainly(backend, prompt, params)
    written = write(backend, ChaosDrafter(seed, prompt + plain.tokens, 0.9, 30, VOCAB), prompt, params)
    check(written, plain, prompt)
    ends = [place for place, token in enumerate(written.tokens) if token == VOCAB - 1]
    if written.finish == "stop":
        assert ends == [len(written.tokens) - 1]
        assert len(written.tokens) > params.min_tokens
    else:
        assert not ends
        assert len(written.tokens) == 20


@many
@given(
    prompt=prompts,
    params=params,
    seed=st.integers(0, 2**32 - 1),
    phrase=st.lists(tokens, min_size=1, max_size=3),
)
def test_stop_condition_with_memory(
    backend: Backend, prompt: list[int], params: SamplingParams, seed: int, phrase: list[int]
) -> None:
    """The condition hears every emitted token once, in order, and nothing behind the end."""

    class Phrase:
        def __init__(self) -> None:
            self.heard: list[int] = []

        def __call__(self, token: int) -> str | None:
            self.heard.append(token)
            return "phrase" if self.heard[-len(phrase) :] == phrase else None

    plain = write_plainly(backend, prompt, params, context=CONTEXT, stop=(one := Phrase()))
    drafter = ChaosDrafter(seed, prompt + plain.tokens, 0.8, 30, VOCAB)
    written = write(backend, drafter, prompt, params, context=CONTEXT, stop=(two := Phrase()))
    check(written, plain, prompt)
    assert one.heard == two.heard == written.tokens


def test_knowing_drafts_are_accepted_whole(backend: Backend) -> None:
    """A drafter that is right every time gives depth + 1 tokens a forward, at any temperature."""
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=48, temperature=temperature, seed=5, banned_tokens=(VOCAB - 1,))
        prompt = [3, 1, 4]
        plain = write_plainly(backend, prompt, params)

        class Knowing(ChaosDrafter):
            def propose(self, budget):  # type: ignore[no-untyped-def]
                from forerun.core.tree import DraftTree

                place = len(self._text)
                return DraftTree.chain(self._text[-1], self._truth[place : place + budget.depth])

        drafter = Knowing(0, prompt + plain.tokens, 1.0, 0, VOCAB)
        written = write(backend, drafter, prompt, params, budget=FixedBudget(3, 3))
        assert written.tokens == plain.tokens
        assert written.report.mean_accepted_length == 4.0
        assert written.report.acceptance_by_depth == [1.0, 1.0, 1.0]
