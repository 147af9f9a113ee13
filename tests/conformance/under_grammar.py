"""Answers under grammars with any drafter, as the engine writes them, by the readable rules."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jsonschema

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
from forerun.models.sequence import Sequence as TargetSequence
from forerun.sampling.constraint import ConstrainedEnd, ConstrainedRanker, ConstrainedRule, Constraint
from forerun.sampling.fused import FusedDrawingRanker, core_settings
from forerun.sampling.grammar import Grammars
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.ranking import CoupledRanker
from forerun.sampling.rules import CoupledRule, RejectionRule
from support.heads import Sizes

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
