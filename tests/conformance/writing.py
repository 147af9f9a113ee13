"""Writes texts with any backend, drafter and parameters, through the same parts as the front door uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.budget import FixedBudget
from forerun.core.engine import decode
from forerun.core.protocols import Drafter, Policy, Stop
from forerun.core.report import Report
from forerun.drafters.none import NoDrafter
from forerun.models.backend import Backend
from forerun.models.sequence import Rule
from forerun.models.sequence import Sequence as TargetSequence
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.rules import CoupledRule, RejectionRule


@dataclass
class Written:
    tokens: list[int]
    origins: list[str]
    finish: str | None
    report: Report
    target: TargetSequence


def rule_for(params: SamplingParams, backend: Backend, prompt: Sequence[int]) -> Rule:
    config = backend.config
    pipeline = Pipeline(params, config.vocab_size, config.eos_token_ids, len(prompt))
    kind = CoupledRule if params.acceptance == "coupled" else RejectionRule
    return kind(pipeline, params.seed or 0)


def end_token(backend: Backend, params: SamplingParams) -> Stop:
    ends = {*backend.config.eos_token_ids, *params.stop_tokens}
    return lambda token: "stop" if token in ends else None


def write(
    backend: Backend,
    drafter: Drafter,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    context: int = 256,
    slack: int = 16,
    budget: Policy | None = None,
    stop: Stop | None = None,
) -> Written:
    target = TargetSequence(
        backend,
        rule_for(params, backend, prompt),
        context=context,
        capacity=context + slack,
        taps=drafter.taps,
    )
    report = Report()
    written = Written([], [], None, report, target)
    for step in decode(
        target,
        drafter,
        prompt,
        policy=budget or FixedBudget(16, 16),
        stop=stop or end_token(backend, params),
        max_tokens=params.max_tokens,
        report=report,
    ):
        written.tokens += step.tokens
        written.origins += step.origins
        written.finish = step.finish
    return written


def write_plainly(
    backend: Backend,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    context: int = 256,
    stop: Stop | None = None,
) -> Written:
    return write(
        backend, NoDrafter(), prompt, params, context=context, slack=0, budget=FixedBudget(0, 0), stop=stop
    )
