"""The cost curve t(n): what a forward over n rows costs at a given context, for this engine and for others.

All subjects and widths are measured in one interleaved run, so that a machine that gets slower or faster
meanwhile does so for all of them. The rows of a measured forward are staged and never committed: the context
stays as it is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal, Protocol, TypeVar, cast

import numpy as np

from forerun import _core
from forerun.backends.cpu import CpuBackend
from forerun.models.rows import IntArray, Rows

T = TypeVar("T")
Shape = Literal["chain", "tree"]
Progress = Callable[[int, int], None]

CHUNK = 512
"""Rows of a forward that fills the context."""

FEWEST_ROUNDS = 5


class Subject(Protocol):
    """An engine with a model, whose forwards are timed."""

    @property
    def name(self) -> str: ...

    def fill(self, context: int) -> None:
        """Compute `context` tokens and keep them."""

    def forward(self, rows: int) -> Timing:
        """Compute `rows` more tokens, with the logits of each, and drop them again."""

    def prefill(self, rows: int) -> Timing:
        """Compute a prompt of `rows` tokens in an empty sequence, and drop it again."""


@dataclass(frozen=True)
class Timing:
    """Seconds that one forward took; `stages` are the parts of it that the engine tells apart."""

    seconds: float
    stages: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """The cost of a forward over `n` rows: milliseconds at the median, the 10th and the 90th percentile,
    and the medians of its stages."""

    n: int
    ms: float
    ms_p10: float
    ms_p90: float
    stages: dict[str, float]


@dataclass(frozen=True)
class Curve:
    """The costs of one subject: of `points` at the context, and of a whole prompt."""

    name: str
    points: list[Point]
    prompt: Point | None


class Forerun:
    """This engine as a subject.

    Args:
        backend: the model.
        capacity: context and rows that must fit.
        shape: "chain", or "tree": every row has two children.
    """

    name = "forerun"

    def __init__(self, backend: CpuBackend, capacity: int, shape: Shape = "chain") -> None:
        self.backend = backend
        self.cache = cast(_core.Cache, backend.new_cache(capacity))
        self._shape = shape
        self._tokens = some_tokens(capacity, backend.config.vocab_size)

    def fill(self, context: int) -> None:
        for start in range(0, context, CHUNK):
            count = min(CHUNK, context - start)
            self.backend.forward(Rows.chain(self._tokens[start : start + count], self.cache), _none())
            self.cache.commit(np.arange(count, dtype=np.int32))

    def forward(self, rows: int) -> Timing:
        start = perf_counter()
        staged = Rows.chain(self._tokens[:rows], self.cache)
        if self._shape == "tree":
            parents = (np.arange(rows, dtype=np.int32) - 1) // 2
            staged = Rows(staged.tokens, parents, staged.caches, staged.owner)
        self.backend.forward(staged, np.arange(rows, dtype=np.int32))
        return self._timing(perf_counter() - start)

    def prefill(self, rows: int) -> Timing:
        cache = self.backend.new_cache(rows)
        seconds = 0.0
        stages: dict[str, float] = {}
        for first in range(0, rows, CHUNK):
            count = min(CHUNK, rows - first)
            start = perf_counter()
            self.backend.forward(Rows.chain(self._tokens[first : first + count], cache), _none())
            cache.commit(np.arange(count, dtype=np.int32))
            chunk = self._timing(perf_counter() - start)
            seconds += chunk.seconds
            stages = {name: stages.get(name, 0.0) + part for name, part in chunk.stages.items()}
        return Timing(seconds, stages)

    def _timing(self, seconds: float) -> Timing:
        """With what the core says of its last forward; `python` is the rest: rows built, and the binding."""
        stages = self.backend.profile()
        return Timing(seconds, {**stages, "python": max(0.0, seconds - sum(stages.values()))})


class Measurement:
    """Forwards timed round by round; the curves can be had after any round.

    Args:
        subjects: whose forwards.
        widths: rows of the forwards.
        context: tokens before them.
        prompt: also time a prompt of so many tokens; 0 does not.

    Attributes:
        rounds: that are done.
    """

    def __init__(
        self, subjects: Sequence[Subject], widths: Sequence[int], *, context: int, prompt: int = 0
    ) -> None:
        self._subjects, self._widths, self._context, self._prompt = subjects, widths, context, prompt
        self._kept: dict[tuple[str, int], list[Timing]] = {}
        self._prompts: dict[str, list[Timing]] = {}
        self.rounds = 0

    def run(self, rounds: int, seconds: float = 60.0, progress: Progress | None = None) -> None:
        """Measure each forward so many times: fewer, but at least five, when `seconds` have passed.

        `progress` is called with (rounds done, rounds in all).
        """
        for subject in self._subjects:
            subject.fill(self._context)
            for width in self._widths:
                subject.forward(width)
            if self._prompt:
                subject.prefill(self._prompt)
        start = perf_counter()
        gc.collect()
        while self.rounds < rounds:
            if self.rounds >= FEWEST_ROUNDS and perf_counter() - start > seconds:
                break
            self._round()
            if progress is not None:
                progress(self.rounds, rounds)

    def _round(self) -> None:
        for subject in _turned(self._subjects, self.rounds):
            subject.forward(1)  # its threads wake, its weights replace the other's in the processor's cache
            for width in _turned(self._widths, self.rounds):
                self._kept.setdefault((subject.name, width), []).append(subject.forward(width))
            if self._prompt and self.rounds % 4 == 0:
                self._prompts.setdefault(subject.name, []).append(subject.prefill(self._prompt))
        self.rounds += 1

    def curves(self) -> list[Curve]:
        """Those of the subjects, one each; there must have been a round."""
        return [
            Curve(
                subject.name,
                [_point(width, self._kept[subject.name, width]) for width in self._widths],
                _point(self._prompt, self._prompts[subject.name]) if self._prompt else None,
            )
            for subject in self._subjects
        ]


def read_bandwidth(threads: int) -> float:
    """Bytes per second that so many threads read from this machine's memory."""
    return _core.read_bandwidth(_core.Team(threads))


def some_tokens(count: int, vocab_size: int) -> IntArray:
    """The same arbitrary tokens every time; int32 [count]."""
    return np.random.default_rng(0).integers(0, vocab_size, count, dtype=np.int32)


def _turned(items: Sequence[T], by: int) -> list[T]:
    at = by % len(items)
    return [*items[at:], *items[:at]]


def _point(n: int, timings: list[Timing]) -> Point:
    low, middle, high = np.percentile([timing.seconds for timing in timings], [10, 50, 90]) * 1000
    stages = {
        name: float(np.median([timing.stages[name] for timing in timings])) * 1000
        for name in timings[0].stages
    }
    return Point(n, float(middle), float(low), float(high), stages)


def _none() -> IntArray:
    return np.zeros(0, dtype=np.int32)
