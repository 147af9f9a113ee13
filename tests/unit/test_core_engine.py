"""The loop over a scripted target that counts upwards: every count and origin can be said beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from forerun.core.budget import FixedBudget
from forerun.core.engine import Step, decode
from forerun.core.protocols import Budget
from forerun.core.report import Report
from forerun.core.tree import DraftTree, FloatArray, IntArray


class Counting:
    """A target whose text is 0, 1, 2, ...: after n comes n + 1."""

    context, vocab_size = 40, 1000

    def __init__(self, room: int = 100) -> None:
        self.committed: list[int] = []
        self.tree = DraftTree.chain(0)
        self.trees: list[DraftTree] = []
        self.places = room

    features = None

    @property
    def length(self) -> int:
        return len(self.committed)

    @property
    def room(self) -> int:
        return self.places

    def extend(self, tokens: IntArray) -> None:
        self.committed += tokens.tolist()

    def verify(self, tree: DraftTree) -> Counting:
        self.tree = tree
        self.trees.append(tree)
        return self

    def walk(self) -> None:
        return None

    def choose(self, node: int, candidates: list[int]) -> int:
        return int(self.tree.tokens[node]) + 1

    def commit(self, path: list[int]) -> None:
        self.committed += self.tree.tokens[path].tolist()

    def truncate(self, length: int) -> None:
        del self.committed[length:]


class Ahead:
    """Guesses the right chain of `length`, in the names of two drafters, whatever the budget."""

    name, taps = "ahead", ()

    def __init__(self, length: int, wrong_at: int = 99) -> None:
        self.length, self.wrong_at = length, wrong_at
        self.heard: list[int] = []
        self.budgets: list[Budget] = []

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self.heard = tokens.tolist()

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self.heard += tokens

    def truncate(self, length: int) -> None:
        del self.heard[length:]

    def propose(self, budget: Budget) -> DraftTree:
        self.budgets.append(budget)
        last = self.heard[-1]
        guesses = [last + n + (500 if n >= self.wrong_at else 0) for n in range(1, self.length + 1)]
        chain = DraftTree.chain(last, guesses)
        names = ("root", *("odd" if n % 2 else "even" for n in range(1, len(chain))))
        return DraftTree(chain.tokens, chain.parents, names)


def run(
    target: Counting, drafter: Ahead, *, nodes: int = 4, max_tokens: int | None = 10, end: int = 999
) -> tuple[list[Step], Report]:
    report = Report()
    steps = decode(
        target,
        drafter,
        [0, 1, 2],
        policy=FixedBudget(nodes, nodes),
        stop=lambda token: "stop" if token == end else None,
        max_tokens=max_tokens,
        report=report,
    )
    return list(steps), report


def test_steps_origins_and_counts() -> None:
    target, drafter = Counting(), Ahead(4, wrong_at=3)
    steps, report = run(target, drafter)
    assert [step.tokens for step in steps] == [[3, 4, 5], [6, 7, 8], [9, 10, 11], [12]]
    assert [step.origins for step in steps] == [["odd", "even", ""]] * 3 + [[""]]
    assert [step.finish for step in steps] == [None, None, None, "length"]
    assert target.committed == list(range(12))
    assert drafter.heard == list(range(13))
    assert [(count.checked, count.accepted) for count in report.depths] == [(3, 3), (3, 3), (3, 0)]
    assert {name: (c.drafted, c.accepted) for name, c in report.drafters.items()} == {
        "odd": (6, 3),
        "even": (5, 3),
    }
    assert (report.drafted, report.target_forwards, report.tokens) == (
        11,
        4,
        10,
    )  # four are left: three guesses
    assert (report.prompt_tokens, report.prefilled) == (3, 2)


@pytest.mark.parametrize(("end", "reason", "emitted"), [(6, "stop", 4), (999, "length", 5), (7, "stop", 5)])
def test_a_guess_that_ends_the_text_is_a_guess(end: int, reason: str, emitted: int) -> None:
    """The cut falls on an accepted guess: it keeps its origin and is counted; what was accepted behind is
    not."""
    target = Counting()
    steps, report = run(target, Ahead(8), nodes=8, max_tokens=5, end=end)
    assert [step.tokens for step in steps] == [list(range(3, 3 + emitted))]
    assert steps[0].origins == ["odd", "even", "odd", "even", ""][:emitted]
    assert steps[0].finish == reason
    assert steps[0].nodes == list(range(emitted))
    guesses = min(emitted, 4)  # five tokens may be emitted, so a fifth guess is never verified
    assert [(count.checked, count.accepted) for count in report.depths] == [(1, 1)] * guesses
    assert target.committed == list(range(2 + emitted))


def test_budgets_end_with_the_text_and_with_the_room() -> None:
    target, drafter = Counting(room=3), Ahead(9)
    run(target, drafter, nodes=9, max_tokens=8)
    assert drafter.budgets == [Budget(2, 7), Budget(2, 4), Budget(2, 1)]
    assert [len(tree) for tree in target.trees] == [3, 3, 2]


def test_the_context_ends() -> None:
    steps, _ = run(Counting(), Ahead(4), max_tokens=None)
    assert steps[-1].finish == "context"
    assert sum(len(step.tokens) for step in steps) == 37


@pytest.mark.parametrize(("max_tokens", "reason"), [(None, "context"), (37, "length"), (38, "context")])
def test_the_nearer_limit_is_the_reason(max_tokens: int | None, reason: str) -> None:
    steps, _ = run(Counting(), Ahead(4), max_tokens=max_tokens)
    assert steps[-1].finish == reason


def test_a_prompt_that_fills_the_context() -> None:
    target = Counting()
    steps = list(
        decode(
            target,
            Ahead(4),
            list(range(40)),
            policy=FixedBudget(),
            stop=lambda token: None,
            max_tokens=5,
            report=Report(),
        )
    )
    assert [(step.tokens, step.finish) for step in steps] == [([], "context")]
    assert target.committed == list(range(39))


def test_plain_decoding_never_asks_the_drafter() -> None:
    drafter = Ahead(4)
    steps, report = run(Counting(), drafter, nodes=0)
    assert not drafter.budgets
    assert [len(step.tokens) for step in steps] == [1] * 10
    assert report.depths == []
    assert report.mean_accepted_length == 1


def test_steps_are_arrays_of_int32() -> None:
    target = Counting()
    run(target, Ahead(4))
    assert all(tree.tokens.dtype == tree.parents.dtype == np.int32 for tree in target.trees)
