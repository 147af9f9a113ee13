"""Under a grammar, too, the text is the one that plain decoding writes, whatever is drafted."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forerun
from conformance.chaos import ChaosDrafter
from forerun import _core
from forerun.backends.cpu import CpuBackend
from forerun.backends.cpu.heads import CpuHead
from forerun.core.budget import FixedBudget
from forerun.core.engine import decode
from forerun.core.protocols import Drafter, Stop
from forerun.core.report import Report
from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.guided import GuidedDrafter
from forerun.drafters.heads import HeadDrafter
from forerun.drafters.lookup import LookupDrafter
from forerun.drafters.model import ModelDrafter
from forerun.drafters.none import NoDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine import Engine
from forerun.errors import ForerunError
from forerun.models.guide import Guide
from forerun.models.heads import open_head
from forerun.models.rows import Rows
from forerun.models.sequence import Sequence as TargetSequence
from forerun.sampling.constraint import ConstrainedEnd, ConstrainedRanker, ConstrainedRule, Constraint
from forerun.sampling.fused import FusedDrawingRanker, core_settings
from forerun.sampling.grammar import Grammars
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.ranking import CoupledRanker
from forerun.sampling.rules import CoupledRule, RejectionRule
from support.heads import Sizes
from support.tiny import Tiny, write_tiny_gguf

SCHEMA = {
    "type": "object",
    "properties": {
        "return": {"type": "string", "maxLength": 6},
        "and": {"type": "array", "items": {"enum": ["the", "other", None, 3]}, "maxItems": 3},
        "in": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
            "additionalProperties": False,
        },
    },
    "required": ["return", "and", "in"],
    "additionalProperties": False,
}
NUMBERS = r"(?:0|[1-9][0-9]{0,2})(?:, (?:0|[1-9][0-9]{0,2})){2,5}"
CHOICE = "the answer is (yes|no|none)!"
FORMS: dict[str, dict[str, object]] = {
    "schema": {"json_schema": SCHEMA},
    "numbers": {"regex": NUMBERS},
    "choice": {"regex": CHOICE},
    "lark": {"grammar": 'start: "(" start* ")" | WORD\nWORD: /[a-e]{1,3}/'},
    "gbnf": {"grammar": 'root ::= "return " item (" and " item)*\nitem ::= [a-z]+ | "in the"'},
    "special": {"grammar": 'start: "a" <|im_start|> "he" "b"*'},
}


def follows(form: str, text: str) -> bool:
    """Whether the whole text is one that the grammar means."""
    if form == "schema":
        jsonschema.validate(json.loads(text), SCHEMA)
        return True
    if form == "lark":
        depth = 0
        for character in text:
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth < 0:
                return False
        return depth == 0 and bool(re.fullmatch(r"[a-e]{1,3}|\((\(|\)|[a-e]+)*\)", text))
    forms = {
        "numbers": NUMBERS,
        "choice": CHOICE,
        "gbnf": "return [a-z]+( and [a-z]+| and in the)*|return in the.*",
        "special": "aheb*",
    }
    return bool(re.fullmatch(forms[form], text))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", Tiny(hidden=64, inner=96))
    return forerun.load(str(path), threads=2, draft_tokens=12)


@dataclass
class Outcome:
    tokens: list[int]
    finish: str | None
    error: str | None
    report: Report


@dataclass
class Task:
    """One answer and what its drafters may know."""

    engine: Engine
    prompt: list[int]
    params: SamplingParams
    constraint: Constraint
    seed: int = 0
    truth: Sequence[int] = ()

    @property
    def vocab_size(self) -> int:
        return self.engine.backend.config.vocab_size

    def pipeline(self) -> Pipeline:
        return Pipeline(self.params, self.vocab_size, self.engine.end_tokens, len(self.prompt))


def chaos(task: Task, knows: float) -> Drafter:
    return ChaosDrafter(task.seed, task.truth, knows, 14, task.vocab_size)


def model(task: Task) -> Drafter:
    """The target as its own draft model; it sees the grammar."""
    rankers = {"coupled": CoupledRanker, "rejection": FusedDrawingRanker}
    ranker = rankers[task.params.acceptance](task.pipeline(), task.params.seed or 0, task.vocab_size)
    return ModelDrafter(Guide(task.engine.backend, 200), ConstrainedRanker(ranker, task.constraint))


def head(task: Task) -> Drafter:
    """A random EAGLE-3 head."""
    backend = task.engine.backend
    assert isinstance(backend, CpuBackend)
    if id(backend) not in _heads:
        with tempfile.TemporaryDirectory() as folder:
            tiny = Sizes(vocab=task.vocab_size, outputs=150).eagle3()
            _heads[id(backend)] = backend.load_head(open_head(tiny.save(Path(folder))))
    loaded = _heads[id(backend)]
    assert isinstance(loaded.core, _core.EagleHead)
    settings = core_settings(task.pipeline(), task.params.seed or 0)
    return HeadDrafter(_core.EagleDrafter(loaded.core, settings, loaded.kv, 200), loaded.taps, "head", 0.0)


_heads: dict[int, CpuHead] = {}


def guided(make: Callable[[Task], Drafter]) -> Callable[[Task], Drafter]:
    return lambda task: GuidedDrafter(make(task), task.constraint)


DRAFTERS: dict[str, Callable[[Task], Drafter]] = {
    "plain": lambda task: NoDrafter(),
    "forced": guided(lambda task: NoDrafter()),
    "lookup": guided(lambda task: LookupDrafter()),
    "suffix": guided(lambda task: SuffixDrafter()),
    "cascade": guided(lambda task: CascadeDrafter([SuffixDrafter(), chaos(task, 0.5), LookupDrafter()])),
    "model": guided(model),
    "head": guided(head),
    "blind head": head,
    "blind lookup": lambda task: LookupDrafter(),
    "blind garbage": lambda task: chaos(task, 0.0),
    "blind mixed": lambda task: chaos(task, 0.6),
    "blind knowing": lambda task: chaos(task, 0.97),
    "garbage": guided(lambda task: chaos(task, 0.0)),
    "knowing": guided(lambda task: chaos(task, 0.97)),
}


def write(
    engine: Engine,
    make: Callable[[Task], Drafter],
    prompt: list[int],
    params: SamplingParams,
    *,
    seed: int = 0,
    truth: Sequence[int] = (),
    budget: FixedBudget | None = None,
    stop_string: str = "",
) -> Outcome:
    """As the front door does it, with any drafter and the readable rules."""
    grammar = GRAMMARS(engine).of(params)
    assert grammar is not None
    ends = () if params.ignore_end else engine.end_tokens
    constraint = Constraint(grammar, engine.backend.config.vocab_size, ends, len(prompt))
    task = Task(engine, prompt, params, constraint, seed, truth)
    pipeline = task.pipeline()
    kind = CoupledRule if params.acceptance == "coupled" else RejectionRule
    rule = ConstrainedRule(kind(pipeline, params.seed or 0), constraint, pipeline.forbidden)
    drafter = make(task)
    target = TargetSequence(engine.backend, rule, context=160, capacity=160 + seed % 20, taps=drafter.taps)
    written: list[int] = []

    def end(token: int) -> str | None:
        written.append(token)
        if token in ends:
            return "stop"
        return "string" if stop_string and stop_string in engine.tokenizer.decode(written) else None

    stop: Stop = ConstrainedEnd(end, constraint, prompt, params.min_tokens)
    outcome = Outcome([], None, None, Report())
    policy = budget or FixedBudget(12, 12)
    try:
        for step in decode(
            target, drafter, prompt, policy=policy, stop=stop, max_tokens=params.max_tokens,
            report=outcome.report,
        ):  # fmt: skip
            outcome.tokens += step.tokens
            outcome.finish = step.finish
    except ForerunError as error:
        outcome.error = str(error)
    return outcome


_kept: dict[int, Grammars] = {}


def GRAMMARS(engine: Engine) -> Grammars:
    return _kept.setdefault(id(engine), Grammars(engine.tokenizer, engine.end_tokens))


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
        with pytest.raises(forerun.ForerunError, match="every token is forbidden"):
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
