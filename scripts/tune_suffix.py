"""Choose the suffix drafter's constants on greedy answers to the project's own prompts.

    python scripts/tune_suffix.py ANSWERS.jsonl            # search (answers that are missing first)
    python scripts/tune_suffix.py ANSWERS.jsonl --compare  # the constants in use, and prompt lookup

Answers are computed once (greedy text of the default model, which no drafter changes) and kept in
ANSWERS.jsonl, a line each as it is done; a run that is broken off goes on where it was. Drafters are then
replayed on them without a model: what they propose is compared with what the answer says, under the budget by
cost and a cost curve that was measured. What is maximised is tokens a second by that curve, as a geometric
mean over the kinds of work.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from forerun.bench.workloads import WORKLOADS, workload_prompts
from forerun.core.budget import FixedBudget
from forerun.core.cost_budget import CostBudget
from forerun.core.curve import CostCurve
from forerun.core.protocols import Drafter, Policy
from forerun.core.report import Report
from forerun.drafters.lookup import LookupDrafter
from forerun.drafters.suffix import SuffixConstants, SuffixDrafter

CURVE_MS = {1: 4.1, 2: 4.8, 4: 6.2, 8: 9.3, 12: 11.7, 16: 15.2}
"""Of the default model in 4 bits (README), milliseconds of a forward by rows."""

GRID: dict[str, Sequence[float]] = {
    "doubt": (0.5, 1.0, 1.5, 2.5, 4.0, 6.0),
    "shorter": (0.1, 0.2, 0.3, 0.45),
    "prior": (2, 4, 8, 16, 32),
    "window": (32, 64, 128, 256),
    "recent": (0, 2, 8, 32),
    "span": (8, 32, 128),
    "least_chance": (0.01, 0.03, 0.05, 0.08, 0.1),
}


@dataclass(frozen=True)
class Answered:
    """One prompt and its greedy answer, as token ids."""

    name: str
    workload: str
    prompt: list[int]
    answer: list[int]


@dataclass
class Tally:
    """What replaying gave."""

    tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    milliseconds: float = 0.0

    @property
    def per_forward(self) -> float:
        return self.tokens / self.forwards

    @property
    def speed(self) -> float:
        """Tokens a second, were drafting free."""
        return 1000 * self.tokens / self.milliseconds


def write_answers(path: Path, max_tokens: int) -> list[Answered]:
    """The file's answers, and those that it lacks, added to it one by one."""
    known = {}
    if path.exists():
        known = {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}
    prompts = [prompt for workload in WORKLOADS for prompt in workload_prompts(workload)]
    missing = [prompt for prompt in prompts if prompt.name not in known]
    if missing:
        import forerun
        from forerun import SamplingParams

        engine = forerun.load(drafter="suffix", draft_tokens=6)
        with path.open("a") as file:
            for count, prompt in enumerate(missing, start=1):
                ids = engine.encode(list(prompt.messages))
                result = engine.stream_tokens(ids, SamplingParams(max_tokens=max_tokens))
                with result as stream:
                    for _ in stream:
                        pass
                row = {
                    "name": prompt.name,
                    "workload": prompt.workload,
                    "prompt": ids,
                    "answer": stream.result.tokens,
                }
                known[prompt.name] = row
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"\r{count} of {len(missing)} answers", end="", flush=True)
        print()
    return [Answered(**known[prompt.name]) for prompt in prompts]


def replay(drafter: Drafter, policy: Policy, case: Answered, curve: CostCurve) -> Tally:
    """The decode loop over a text that is known."""
    drafter.begin(np.array(case.prompt, dtype=np.int32), None)
    report, tally, at = Report(prompt_tokens=len(case.prompt)), Tally(), 0
    root, left = case.prompt[-1], case.answer
    while at < len(left):
        wish = policy.plan(report, len(left) - at)
        proposed = drafter.propose(wish).fit(root, nodes=wish.nodes, depth=wish.depth, vocab_size=1 << 30)
        tree = policy.trim(proposed, 1e-5)
        ids, children, node = tree.ids, tree.children, 0
        emitted: list[int] = []
        while at + len(emitted) < len(left):
            emitted.append(left[at + len(emitted)])
            node = next((c for c in children[node] if ids[c] == emitted[-1]), -1)
            if node < 0:
                break
        drafter.observe(emitted, None)
        policy.learn(proposed, emitted, len(tree), None)
        at, root = at + len(emitted), emitted[-1]
        tally.tokens += len(emitted)
        tally.forwards += 1
        tally.drafted += len(tree) - 1
        tally.milliseconds += 1000 * curve(len(tree))
    return tally


def by_workload(
    cases: Sequence[Answered], drafter: Callable[[], Drafter], policy: Callable[[CostCurve], Policy]
) -> dict[str, Tally]:
    """Replays all, each case with a drafter and a policy of its own."""
    found = {workload: Tally() for workload in dict.fromkeys(case.workload for case in cases)}
    for case in cases:
        curve = CostCurve({n: ms / 1000 for n, ms in CURVE_MS.items()})
        one, total = replay(drafter(), policy(curve), case, curve), found[case.workload]
        for field in fields(Tally):
            setattr(total, field.name, getattr(total, field.name) + getattr(one, field.name))
    return found


def score(tallies: dict[str, Tally]) -> float:
    """Geometric mean of the speeds."""
    return math.exp(sum(math.log(tally.speed) for tally in tallies.values()) / len(tallies))


def search(cases: Sequence[Answered]) -> Iterator[tuple[SuffixConstants, float]]:
    """Coordinate by coordinate to the best of each grid, until none moves; every improvement."""

    def judge(constants: SuffixConstants) -> float:
        return score(
            by_workload(cases, lambda: SuffixDrafter(constants=constants), lambda c: CostBudget(c, 16, 16))
        )

    best = SuffixConstants()
    value = judge(best)
    yield best, value
    moved = True
    while moved:
        moved = False
        for name, values in GRID.items():
            tried = [(judge(c), c) for c in (replace(best, **{name: v}) for v in values) if c != best]
            top = max(tried, key=lambda pair: pair[0])
            if top[0] > value * 1.0005:  # less is chance
                value, best, moved = *top, True
                yield best, value


def compare(cases: Sequence[Answered]) -> None:
    """Lookup and suffix under a fixed budget of 8 and under the budget by cost."""
    print(f"{'workload':12} {'drafter':14} {'tokens/forward':>14} {'drafted/forward':>15} {'tokens/s':>9}")
    rows: list[tuple[str, Callable[[], Drafter], Callable[[CostCurve], Policy]]] = [
        ("lookup, 8", LookupDrafter, lambda c: FixedBudget(8, 8)),
        ("suffix, 8", SuffixDrafter, lambda c: FixedBudget(8, 8)),
        ("lookup, cost", LookupDrafter, lambda c: CostBudget(c, 16, 16)),
        ("suffix, cost", SuffixDrafter, lambda c: CostBudget(c, 16, 16)),
    ]
    found = {name: by_workload(cases, drafter, policy) for name, drafter, policy in rows}
    for workload in found["suffix, 8"]:
        for name, tallies in found.items():
            tally = tallies[workload]
            drafted = tally.drafted / tally.forwards
            print(f"{workload:12} {name:14} {tally.per_forward:14.2f} {drafted:15.2f} {tally.speed:9.0f}")
    print({name: round(score(tallies), 1) for name, tallies in found.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=192)
    arguments = parser.parse_args()
    cases = write_answers(arguments.answers, arguments.max_tokens)
    if arguments.compare:
        compare(cases)
        return
    for constants, value in search(cases):
        print(f"{value:8.2f} tokens/s  {constants}", flush=True)


if __name__ == "__main__":
    main()
