"""The search for the fastest way of drafting on this machine, by successive halving (Jamieson and Talwalkar,
arXiv 1502.07943).

Every way writes the same few answers; the slower half drops out; the others go on with more prompts. Plain
decoding takes part to the end: nothing slower is ever chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from forerun.bench.contest import Own, Written, encoded
from forerun.bench.workloads import WorkloadPrompt
from forerun.core.report import Report, depths_together
from forerun.engine import Engine
from forerun.sampling.params import SamplingParams

FIRST_PROMPTS = 4
LEAST_PROMPTS = 6
"""With fewer prompts nothing is chosen: one or two tell more about themselves than about a drafter."""
SURE = 0.8
"""The share of the time that is planned with: answers are of different lengths."""
CLEARLY = 0.01
"""Another way must be so much faster than plain decoding to be chosen (one hundredth)."""


@dataclass
class Arm:
    """A way of drafting, and what it has written: by prompt."""

    drafter: str
    draft_tokens: int | None
    written: dict[str, Written] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        return self.drafter == "none"

    @property
    def tokens_per_second(self) -> float:
        """Of all answers together, decoding alone."""
        seconds = sum(report.seconds for report in self._reports)
        return sum(report.tokens for report in self._reports) / seconds if seconds else 0.0

    @property
    def acceptance(self) -> float | None:
        """Accepted over checked, all depths together."""
        counts = depths_together(self._reports)
        checked = sum(count.checked for count in counts)
        return sum(count.accepted for count in counts) / checked if checked else None

    @property
    def share(self) -> float | None:
        """Steps with guesses over all steps."""
        counts = depths_together(self._reports)
        return counts[0].checked / sum(report.target_forwards for report in self._reports) if counts else None

    def gain(self, plain: Arm) -> float:
        """Mean logarithm of the speed over plain decoding's, over the prompts that both have."""
        gains = self._gains(plain)
        return sum(gains) / len(gains) if gains else 0.0

    def doubt(self, plain: Arm) -> float:
        """The standard error of `gain`; 0 for a single prompt."""
        gains, mean = self._gains(plain), self.gain(plain)
        count = len(gains)
        return (
            math.sqrt(sum((gain - mean) ** 2 for gain in gains) / count / (count - 1)) if count > 1 else 0.0
        )

    @property
    def _reports(self) -> list[Report]:
        return [written.report for written in self.written.values() if written.report is not None]

    def _gains(self, plain: Arm) -> list[float]:
        return [
            math.log(written.tokens_per_second / plain.written[name].tokens_per_second)
            for name, written in self.written.items()
            if name in plain.written and written.tokens_per_second and plain.written[name].tokens_per_second
        ]


class Clock:
    """The time that there is, and what an answer takes of it.

    Args:
        seconds: that there are.
    """

    def __init__(self, seconds: float) -> None:
        self._begin = monotonic()
        self._seconds = seconds
        self._answers = 0
        self._spent = 0.0

    @contextmanager
    def answer(self) -> Iterator[None]:
        """Take the time of an answer."""
        start = monotonic()
        yield
        self._answers += 1
        self._spent += monotonic() - start

    @property
    def used(self) -> float:
        """The share of the time that is gone; above 1 when it is over."""
        return (monotonic() - self._begin) / self._seconds

    def ways(self, prompts: int) -> float:
        """How many ways of drafting there is time for, if each writes so many more answers."""
        took = prompts * self._spent / self._answers
        return SURE * (1 - self.used) * self._seconds / took if took else math.inf

    def lacking(self) -> float:
        """Seconds that there are too few of for plain decoding and another way to write what it takes."""
        return 2 * LEAST_PROMPTS * self._spent / self._answers / SURE - self._seconds


def make_arms(drafters: Sequence[str], sizes: Sequence[int | None]) -> list[Arm]:
    """Plain decoding, and every drafter with every size of draft, all with the first size first."""
    return [Arm("none", None), *(Arm(name, size) for size in sizes for name in drafters if name != "none")]


def tune(
    engine: Engine,
    arms: Sequence[Arm],
    prompts: Sequence[WorkloadPrompt],
    *,
    max_tokens: int,
    clock: Clock,
    progress: Callable[[int, int], None],
) -> Arm | None:
    """The fastest of `arms`, of which the first is plain decoding; each arm keeps what it wrote. None where
    the time was over before there were LEAST_PROMPTS, or would have been.

    Where there is no time for that many prompts with all arms, fewer take part: at first the earlier ones,
    then those that are best so far.

    Args:
        clock: when its time is over the best so far is taken.
        progress: called with (done, in all), in thousandths.
    """
    plain, left, begun, count = arms[0], list(arms), 0, FIRST_PROMPTS
    params = SamplingParams(max_tokens=max_tokens)
    for arm in {arm.drafter: arm for arm in reversed(arms)}.values():  # loads and measures what it needs once
        _write(engine, arm, encoded(engine, prompts[0]), SamplingParams(max_tokens=4))

    def write(arm: Arm, prompt: WorkloadPrompt) -> None:
        with clock.answer():
            arm.written[prompt.name] = _write(engine, arm, encoded(engine, prompt), params)
        part = max(clock.used, (begun + 1) / len(prompts) * 0.9)
        progress(int(1000 * min(part, 1)), 1000)

    while begun < len(prompts) and len(left) > 1:
        for prompt in prompts[begun : begun + count]:
            write(plain, prompt)
            if begun < LEAST_PROMPTS:
                ways = clock.ways(LEAST_PROMPTS - begun)
                if not begun and ways < 1:
                    return None
                left = _foremost(left, min(ways, len(left)))
            for arm in left[1:]:
                write(arm, prompt)
            begun += 1
            if clock.used > (1 if begun >= LEAST_PROMPTS else 1 / SURE):
                return _best(left, plain)
        left = _foremost(left, 1 + len(left[1:]) // 2)
        count *= 2
    return _best(left, plain)


def _foremost(left: Sequence[Arm], count: float) -> list[Arm]:
    """Plain decoding and the fastest of the others, about `count` together and two at least."""
    plain, *others = left
    return [plain, *sorted(others, key=lambda arm: -arm.gain(plain))[: max(1, int(count) - 1)]]


def _best(left: Sequence[Arm], plain: Arm) -> Arm | None:
    if len(plain.written) < LEAST_PROMPTS:
        return None
    best = max(left, key=lambda arm: arm.gain(plain))
    return best if best.gain(plain) > max(CLEARLY, best.doubt(plain)) else plain


def _write(engine: Engine, arm: Arm, ids: list[int], params: SamplingParams) -> Written:
    engine.draft_tokens = arm.draft_tokens
    return Own(engine, arm.drafter).write(ids, params)
