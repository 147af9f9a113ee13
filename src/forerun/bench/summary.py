"""What a bench found, as numbers: one run for each workload, engine, drafter and temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.bench.contest import OWN, Sample
from forerun.core.report import depths_together


@dataclass(frozen=True)
class Run:
    """The answers of one contestant to one workload's prompts.

    Attributes:
        tokens_per_second: the median over answers; `low` and `high` are the 10th and 90th percentile.
        speedup: the median over prompts of its speed over this engine's plain decoding of the same prompt.
        mean_accepted_length: emitted tokens by target forward, or None for other engines.
        acceptance_by_depth: of all answers together; empty for plain decoding and other engines.
        seconds: spent in the parts of the loop, all answers together; empty for other engines.
        equal: every text is what the same engine wrote plainly.
        simulated: the drafter was told the answer.
    """

    workload: str
    engine: str
    drafter: str
    temperature: float
    prompts: int
    tokens: int
    tokens_per_second: float
    low: float
    high: float
    speedup: float
    mean_accepted_length: float | None
    acceptance_by_depth: list[float]
    seconds: dict[str, float]
    equal: bool

    @property
    def simulated(self) -> bool:
        return self.drafter.startswith("simulated")

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        length = self.mean_accepted_length
        return {
            "workload": self.workload,
            "engine": self.engine,
            "drafter": self.drafter,
            "temperature": self.temperature,
            "tokens": self.tokens,
            "tokens_per_second": round(self.tokens_per_second, 2),
            "speedup": round(self.speedup, 4),
            "mean_accepted_length": None if length is None else round(length, 4),
            "acceptance_by_depth": [round(rate, 4) for rate in self.acceptance_by_depth],
            "equal": self.equal,
            "prompts": self.prompts,
            "tokens_per_second_p10": round(self.low, 2),
            "tokens_per_second_p90": round(self.high, 2),
            "seconds": {name: round(part, 4) for name, part in self.seconds.items()},
            "simulated": self.simulated,
        }


def summarise(samples: Sequence[Sample]) -> list[Run]:
    """Runs, by workload, this engine's first. Answers of one step have no speed and are left out of it."""
    plain: dict[tuple[str, float], list[float]] = {}
    for sample in samples:
        if sample.engine == OWN and sample.drafter == "none" and sample.written.tokens_per_second:
            speeds = plain.setdefault((sample.prompt.name, sample.temperature), [])
            speeds.append(sample.written.tokens_per_second)
    medians = {key: float(np.median(speeds)) for key, speeds in plain.items()}
    groups: dict[tuple[str, str, str, float], list[Sample]] = {}
    for sample in samples:
        key = (sample.prompt.workload, sample.engine, sample.drafter, sample.temperature)
        groups.setdefault(key, []).append(sample)
    workloads = list(dict.fromkeys(sample.prompt.workload for sample in samples))
    order = sorted(groups, key=lambda key: (workloads.index(key[0]), key[3], key[1] != OWN))
    return [_run(groups[key], medians) for key in order]


def _run(samples: list[Sample], plain: dict[tuple[str, float], float]) -> Run:
    first = samples[0]
    speeds = [s.written.tokens_per_second for s in samples if s.written.tokens_per_second] or [0.0]
    by_prompt: dict[tuple[str, float], list[float]] = {}
    for sample in samples:
        key = (sample.prompt.name, sample.temperature)
        if key in plain and sample.written.tokens_per_second:
            by_prompt.setdefault(key, []).append(sample.written.tokens_per_second)
    gains = [float(np.median(found)) / plain[key] for key, found in by_prompt.items()] or [0.0]
    reports = [s.written.report for s in samples if s.written.report is not None]
    forwards = sum(report.target_forwards for report in reports)
    names = ("prompt", "draft", "verify", "choose", "other") if reports else ()
    low, middle, high = (float(v) for v in np.percentile(speeds, [10, 50, 90]))
    return Run(
        workload=first.prompt.workload,
        engine=first.engine,
        drafter=first.drafter,
        temperature=first.temperature,
        prompts=len({s.prompt.name for s in samples}),
        tokens=sum(len(s.written.tokens) for s in samples),
        tokens_per_second=middle,
        low=low,
        high=high,
        speedup=float(np.median(gains)),
        mean_accepted_length=sum(report.tokens for report in reports) / forwards if forwards else None,
        acceptance_by_depth=[count.rate for count in depths_together(reports)],
        seconds={name: sum(getattr(report, name) for report in reports) for name in names},
        equal=all(s.equal for s in samples),
    )


def against_peers(runs: Sequence[Run]) -> list[dict[str, object]]:
    """This engine's fastest run of each workload at temperature 0 over the best mode of each peer."""
    found: list[dict[str, object]] = []
    for workload in dict.fromkeys(run.workload for run in runs):
        here = [
            run for run in runs if run.workload == workload and run.temperature == 0 and not run.simulated
        ]
        own = max((run for run in here if run.engine == OWN), key=lambda r: r.tokens_per_second, default=None)
        for peer in dict.fromkeys(run.engine for run in here if run.engine != OWN):
            best = max((run for run in here if run.engine == peer), key=lambda r: r.tokens_per_second)
            if own is not None and best.tokens_per_second > 0:
                found.append(
                    {
                        "workload": workload,
                        "drafter": own.drafter,
                        "peer": peer,
                        "peer_drafter": best.drafter,
                        "speedup": round(own.tokens_per_second / best.tokens_per_second, 4),
                    }
                )
    return found
