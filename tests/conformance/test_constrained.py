"""Under a grammar, too, the text is the one that plain decoding writes, whatever is drafted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.under_grammar import DRAFTERS, FORMS, GRAMMARS, follows, write
from forerun.core.budget import FixedBudget
from forerun.engine import Engine
from forerun.models.rows import Rows
from forerun.sampling.constraint import Constraint
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline

many = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
tokens = st.integers(0, 290)
prompts = st.lists(tokens, min_size=1, max_size=8)
forms = st.sampled_from(sorted(FORMS))
temperatures = st.sampled_from([0.0, 0.7, 1.3])


def sampling(max_tokens: int | None, min_tokens: int, **others: Any) -> SamplingParams:
    """Parameters whose least length is not above their greatest."""
    least = min_tokens if max_tokens is None else min(min_tokens, max_tokens)
    return SamplingParams(max_tokens=max_tokens, min_tokens=least, **others)


params = st.builds(
    sampling,
    max_tokens=st.just(60) | st.integers(1, 40),
    min_tokens=st.sampled_from([0, 0, 0, 4, 30]),
    temperature=temperatures,
    top_k=st.sampled_from([0, 0, 1, 5]),
    top_p=st.sampled_from([1.0, 1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    logit_bias=st.dictionaries(tokens, st.floats(-4, 4, width=32), max_size=3),
    banned_tokens=st.lists(tokens, max_size=6).map(tuple),
    ignore_end=st.booleans(),
)


@pytest.mark.parametrize("name", DRAFTERS)
@many
@given(
    form=forms,
    prompt=prompts,
    params=params,
    seed=st.integers(0, 2**32 - 1),
    stop_string=st.sampled_from(["", "", "a", "e,", '"on', "1"]),
)
def test_every_drafter_and_every_parameter(
    engine: Engine,
    name: str,
    form: str,
    prompt: list[int],
    params: SamplingParams,
    seed: int,
    stop_string: str,
) -> None:
    params = replace(params, **FORMS[form])  # type: ignore[arg-type]
    plain = write(engine, DRAFTERS["plain"], prompt, params, stop_string=stop_string)
    truth = prompt + plain.tokens
    budget = FixedBudget(1 + seed % 16, 1 + seed % 11)
    other = write(
        engine, DRAFTERS[name], prompt, params, seed=seed, truth=truth, budget=budget, stop_string=stop_string
    )
    assert (other.error, other.finish) == (plain.error, plain.finish)
    if plain.error is None:
        assert other.tokens == plain.tokens
    else:  # what stands before the place of the mistake may come in longer steps, and be lost with the last
        assert other.tokens == plain.tokens[: len(other.tokens)]
    assert other.report.target_forwards <= plain.report.target_forwards
    if plain.finish == "stop":
        assert follows(form, engine.tokenizer.decode(plain.tokens))


@many
@given(form=forms, prompt=prompts, seed=st.integers(0, 2**32), temperature=temperatures)
def test_rejection_follows_the_grammar_too(
    engine: Engine, form: str, prompt: list[int], seed: int, temperature: float
) -> None:
    for name in ("forced", "suffix", "model", "blind garbage", "knowing"):
        params = SamplingParams(
            max_tokens=80, temperature=temperature, seed=seed, acceptance="rejection", **FORMS[form]  # type: ignore[arg-type]
        )  # fmt: skip
        outcome = write(engine, DRAFTERS[name], prompt, params, seed=seed % 1000)
        assert outcome.error is None
        if outcome.finish == "stop":
            assert follows(form, engine.tokenizer.decode(outcome.tokens))
        if temperature == 0:
            assert outcome.tokens == write(engine, DRAFTERS["plain"], prompt, params).tokens


@pytest.mark.parametrize("name", ["forced", "blind mixed", "model"])
def test_rejection_has_the_distribution_of_plain_decoding(engine: Engine, name: str) -> None:
    """Texts of two steps, each text's chance enumerated: chi-square over 500 seeds."""
    draws, prompt = 500, [5, 6, 7]
    params = SamplingParams(
        temperature=1.0, regex="[at](h|hen|nd|e)", acceptance="rejection", ignore_end=True
    )
    chances = enumerate_texts(engine, prompt, params)
    assert sum(chances.values()) == pytest.approx(1)
    assert len(chances) > 6
    truth = [*prompt, *max(chances, key=lambda text: chances[text])]
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(draws):
        seeded = replace(params, seed=seed)
        counts[tuple(write(engine, DRAFTERS[name], prompt, seeded, seed=seed, truth=truth).tokens)] += 1
    assert set(counts) <= set(chances)
    likely = {text: chance for text, chance in chances.items() if draws * chance >= 2}
    rest = draws * (1 - sum(likely.values()))
    unlikely = draws - sum(counts[text] for text in likely)
    chi = sum((counts[text] - draws * chance) ** 2 / (draws * chance) for text, chance in likely.items())
    freedom = len(likely) - 1
    assert chi < freedom + 4 * np.sqrt(2 * freedom)
    assert abs(unlikely - rest) < 4 * np.sqrt(rest + 1) + 4


def enumerate_texts(
    engine: Engine, prompt: list[int], params: SamplingParams
) -> dict[tuple[int, ...], float]:
    """Every text that the grammar allows, with its chance under plain decoding."""
    grammar = GRAMMARS(engine).of(params)
    assert grammar is not None
    size = engine.backend.config.vocab_size
    constraint = Constraint(grammar, size, (), len(prompt))
    pipeline = Pipeline(params, size, (), len(prompt))
    found: dict[tuple[int, ...], float] = {}

    def go(text: list[int], chance: float) -> None:
        whole = np.array([*prompt, *text], dtype=np.int32)
        place = constraint.place(whole, [])
        if place.complete:
            found[tuple(text)] = chance
            return
        output = engine.backend.forward(
            Rows.chain(whole, engine.backend.new_cache(len(whole))),
            np.array([len(whole) - 1], dtype=np.int32),
        )
        after = pipeline.probabilities(output.logits[0], whole, [], place.allowed)
        for token in np.flatnonzero(after).tolist():
            go([*text, token], chance * after[token])

    go([], 1.0)
    return found
