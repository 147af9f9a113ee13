"""Runs of several engines and drafters on the same prompts, taking turns.

For every prompt each contestant writes the same answer, in an order that turns from prompt to prompt, so
that a machine that gets slower or faster meanwhile does so for all. A text that should be equal is compared
as it comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from forerun.bench.peer_process import PeerProcess
from forerun.bench.simulated import SimulatedDrafter
from forerun.bench.workloads import WorkloadPrompt
from forerun.core.protocols import Drafter
from forerun.core.report import Report
from forerun.engine import Engine
from forerun.errors import InputError
from forerun.sampling.params import SamplingParams

OWN = "forerun"


@dataclass(frozen=True)
class Written:
    """One answer of one contestant.

    Attributes:
        tokens: of the answer.
        times: seconds from the start to the arrival of each.
        report: of the decode loop, if it is this engine's.
    """

    tokens: list[int]
    times: list[float]
    report: Report | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: the tokens after the first step's, by the time since; 0 if there are none."""
        later = sum(time > self.times[0] for time in self.times)
        return later / (self.times[-1] - self.times[0]) if later else 0.0


class Contestant(Protocol):
    """An engine with a way of decoding."""

    @property
    def engine(self) -> str: ...

    @property
    def drafter(self) -> str: ...

    @property
    def only_greedy(self) -> bool:
        """Whether it takes part at temperature 0 alone."""

    def write(self, prompt: list[int], params: SamplingParams) -> Written: ...


@dataclass
class Own:
    """This engine with a drafter.

    Attributes:
        acceptance: for a simulated drafter (then `truth` holds what plain decoding has written), else None.
    """

    target: Engine
    drafter: str
    acceptance: float | None = None
    truth: list[int] = field(default_factory=list)
    engine: str = OWN
    only_greedy: bool = False

    def write(self, prompt: list[int], params: SamplingParams) -> Written:
        drafter: str | Drafter = self.drafter
        if self.acceptance is not None:
            vocabulary = self.target.backend.config.vocab_size
            drafter = SimulatedDrafter([*prompt, *self.truth], self.acceptance, vocabulary)
        times: list[float] = []
        start = perf_counter()
        with self.target.stream_tokens(prompt, params, drafter=drafter) as stream:
            for _ in stream:
                arrived = stream.report.tokens - len(times)
                times += [perf_counter() - start] * arrived
        result = stream.result
        return Written(result.tokens, times, result.report)


@dataclass
class Peer:
    """Another engine. When it fails, `fault` says why, and from then on it writes nothing."""

    process: PeerProcess
    ends: list[int]
    only_greedy: bool = True
    peak_bytes: int = 0
    fault: str = ""

    @property
    def engine(self) -> str:
        return self.process.engine

    @property
    def drafter(self) -> str:
        return "none" if self.process.mode == "plain" else self.process.mode

    def write(self, prompt: list[int], params: SamplingParams) -> Written:
        assert params.max_tokens is not None
        if self.fault:
            return Written([], [])
        try:
            ends = [] if params.ignore_end else self.ends
            text = self.process.write(prompt, params.max_tokens, ends)
        except InputError as error:
            self.fault = str(error)
            return Written([], [])
        self.peak_bytes = max(self.peak_bytes, text.peak_bytes)
        return Written(text.tokens, text.times)


@dataclass(frozen=True)
class Sample:
    """One answer, and whether it is what the same engine's plain decoding wrote."""

    prompt: WorkloadPrompt
    engine: str
    drafter: str
    temperature: float
    written: Written
    equal: bool


def encoded(engine: Engine, prompt: WorkloadPrompt) -> list[int]:
    """A prompt's tokens; without a chat template its messages are continued as text."""
    if engine.tokenizer.chat_template is None:
        return engine.encode("\n".join(message["content"] for message in prompt.messages))
    return engine.encode([{"role": m["role"], "content": m["content"]} for m in prompt.messages])


def contest(
    engine: Engine,
    contestants: Sequence[Contestant],
    prompts: Sequence[WorkloadPrompt],
    temperatures: Sequence[float],
    *,
    max_tokens: int,
    rounds: int = 1,
    seed: int = 0,
    ignore_end: bool = False,
) -> Iterator[Sample]:
    """Every prompt at every temperature by every contestant, `rounds` times.

    Plain decoding comes first of each engine (simulated drafters need its text), and the engines take turns
    to be first. One short answer of each, not counted, warms everything up.
    """
    first = encoded(engine, prompts[0])
    for contestant in contestants:
        contestant.write(first, SamplingParams(max_tokens=8))
    turn = 0
    for _ in range(rounds):
        for prompt in prompts:
            ids = encoded(engine, prompt)
            for temperature in temperatures:
                params = SamplingParams(
                    max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_end=ignore_end
                )
                turn += 1
                yield from _one(prompt, ids, params, _turned(contestants, turn))


def _turned(contestants: Sequence[Contestant], turn: int) -> list[Contestant]:
    engines = list(dict.fromkeys(contestant.engine for contestant in contestants))
    at = turn % len(engines)
    order = [*engines[at:], *engines[:at]]
    return sorted(contestants, key=lambda c: (order.index(c.engine), c.drafter != "none"))


def _one(
    prompt: WorkloadPrompt, ids: list[int], params: SamplingParams, contestants: list[Contestant]
) -> Iterator[Sample]:
    plain: dict[str, list[int]] = {}
    for contestant in contestants:
        if params.temperature > 0 and contestant.only_greedy:
            continue
        if isinstance(contestant, Own):
            contestant.truth = plain.get(OWN, [])
        written = contestant.write(ids, params)
        if not written.tokens:
            continue
        text = plain.setdefault(contestant.engine, written.tokens)
        yield Sample(
            prompt, contestant.engine, contestant.drafter, params.temperature, written, written.tokens == text
        )
