"""Measures what the budget by cost promises, on one machine.

    python scripts/measure_budget.py never [--prompts N] # drafters, a random one too, over plain decoding
    python scripts/measure_budget.py grid [--prompts N]  # auto over the best fixed drafter, depth and nodes

Prompts are the package's own, or those of a file as for `forerun bench`. All ways write the same answer to a
prompt, one after another; speeds are of decoding alone. The best fixed way is the one that turned out fastest
over a workload's prompts: with many ways and few prompts, chance is on its side.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import forerun
from forerun import SamplingParams
from forerun.bench.contest import encoded
from forerun.bench.prompts import read_prompts
from forerun.bench.workloads import WORKLOADS, WorkloadPrompt, workload_prompts
from forerun.core.budget import FixedBudget
from forerun.core.protocols import Drafter, Policy
from forerun.engine import Engine
from support.random_drafter import RandomDrafter

SHAPES = ((2, 2), (4, 4), (8, 8), (8, 3), (12, 12), (12, 4))
"""Nodes and depths of fixed budgets."""


@dataclass(frozen=True)
class Way:
    """A way of decoding: a drafter, and what it is asked for each step (None: by cost)."""

    name: str
    drafter: Callable[[], str | Drafter]
    shape: tuple[int, int] | None = None

    def seconds_a_token(self, engine: Engine, prompt: list[int], params: SamplingParams) -> float:
        """Of decoding: of the tokens after the first step's."""
        budgets = engine._budgets
        if self.shape is not None:
            engine._budgets = Fixed(self.shape)  # type: ignore[assignment]
        try:
            with engine.stream_tokens(prompt, params, drafter=self.drafter()) as stream:
                next(stream)
                start, first = perf_counter(), stream.report.tokens
                for _ in stream:
                    pass
                took = perf_counter() - start
        finally:
            engine._budgets = budgets
        return took / max(stream.report.tokens - first, 1)


class Fixed:
    """In the place of an engine's budgets."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape

    def policy(self, drafter: str, temperature: float, draft_tokens: int | None) -> Policy:
        return FixedBudget(*self._shape)


def prompts_of(names: str, count: int) -> Iterator[tuple[str, list[WorkloadPrompt]]]:
    """By workload."""
    for name in names.split(","):
        if name in WORKLOADS:
            yield name, list(workload_prompts(name)[:count])
            continue
        kinds: dict[str, list[WorkloadPrompt]] = {}
        for p in read_prompts(Path(name)):
            message = {"role": "user", "content": p.text}
            kinds.setdefault(p.category, []).append(WorkloadPrompt(p.name, p.category, (message,)))
        for kind, found in kinds.items():
            yield kind, found[:count]


def measure(
    engine: Engine,
    ways: Sequence[Way],
    prompts: Sequence[WorkloadPrompt],
    params: SamplingParams,
    repeats: int = 1,
) -> np.ndarray:
    """[prompts, ways]: seconds a token, the least of the repeats. Who begins changes from turn to turn."""
    found = np.full((len(prompts), len(ways)), np.inf)
    for at, prompt in enumerate(prompts):
        ids = encoded(engine, prompt)
        for turn in range(len(ways) * repeats):
            way = (turn + at + turn // len(ways)) % len(ways)
            found[at, way] = min(found[at, way], ways[way].seconds_a_token(engine, ids, params))
    return found


def never(engine: Engine, sets: list[tuple[str, list[WorkloadPrompt]]], asked: argparse.Namespace) -> None:
    vocab = engine.backend.config.vocab_size
    names = ["none", "none", "lookup", "suffix", "auto", *filter(None, asked.drafters.split(","))]
    ways = [Way(name, lambda name=name: name) for name in names]  # type: ignore[misc]
    ways.append(Way("random", lambda: RandomDrafter(vocab)))
    for temperature in map(float, asked.temperatures.split(",")):
        params = SamplingParams(max_tokens=asked.max_tokens, temperature=temperature, seed=1)
        measure(engine, ways, sets[0][1][:1], SamplingParams(max_tokens=8, temperature=temperature))
        whole = []
        for name, prompts in sets:
            times = measure(engine, ways, prompts, params, asked.repeats)
            ratios = times / times[:, :2].mean(axis=1, keepdims=True)
            whole.append(ratios)
            means = times.sum(axis=0) / times[:, :2].mean(axis=1).sum()
            print(f"{name}, T = {temperature:g}: {listed(ways[1:], means[1:])}", flush=True)
        together = np.concatenate(whole)
        for what, values in (("median", np.median(together, axis=0)), ("mean", together.mean(axis=0))):
            print(f"all, T = {temperature:g}, {what}: {listed(ways[1:], values[1:])}", flush=True)


def listed(ways: Sequence[Way], values: np.ndarray) -> str:
    return ", ".join(f"{way.name} {value:.3f}" for way, value in zip(ways, values, strict=True))


def grid(engine: Engine, sets: list[tuple[str, list[WorkloadPrompt]]], asked: argparse.Namespace) -> None:
    drafters = dict.fromkeys(
        ["lookup", "suffix", engine.auto.drafter, *filter(None, asked.drafters.split(","))]
    )
    ways = [Way("auto", lambda: "auto"), Way("none", lambda: "none")]
    ways += [
        Way(f"{name} {shape[0]}x{shape[1]}", lambda name=name: name, shape)  # type: ignore[misc]
        for name in drafters
        for shape in SHAPES
    ]
    params = SamplingParams(max_tokens=asked.max_tokens)
    measure(engine, ways, sets[0][1][:1], SamplingParams(max_tokens=4))
    for name, prompts in sets:
        times = measure(engine, ways, prompts, params, asked.repeats).sum(axis=0)
        best = int(np.argmin(times[1:])) + 1
        second = sorted(range(1, len(ways)), key=lambda way: float(times[way]))[1]
        print(
            f"{name}: auto {times[best] / times[0]:.3f} of {ways[best].name} "
            f"({len(prompts) / times[best]:.0f} tokens/s; "
            f"next {ways[second].name} {len(prompts) / times[second]:.0f}, "
            f"plain {len(prompts) / times[1]:.0f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("never", "grid"))
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--workloads", default="code,json,extraction,summarise,creative")
    parser.add_argument("--drafters", default="", help="others besides")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=1, help="of which the fastest counts")
    parser.add_argument("--temperatures", default="0,1.5", help="for never")
    arguments = parser.parse_args()
    engine = forerun.load(arguments.model, tuned=False)
    sets = list(prompts_of(arguments.workloads, arguments.prompts))
    run = never if arguments.what == "never" else grid
    run(engine, sets, arguments)


if __name__ == "__main__":
    main()
