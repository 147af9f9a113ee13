"""Both rules write texts with exactly the target's distribution: counted over many seeds, through the whole
loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forerun.core.budget import FixedBudget
from forerun.core.engine import decode
from forerun.core.protocols import Budget, Drafter
from forerun.core.report import Report
from forerun.core.tree import DraftTree, FloatArray, IntArray
from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.lookup import LookupDrafter
from forerun.drafters.model import ModelDrafter
from forerun.drafters.suffix import SuffixConstants, SuffixDrafter
from forerun.models.backend import Backend
from forerun.models.guide import Guide
from forerun.models.rows import Cache, Output, Rows
from forerun.models.sequence import Sequence as TargetSequence
from forerun.sampling.fused import FusedDrawingRanker
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.rules import CoupledRule, RejectionRule

VOCAB, LENGTH, DRAWS = 4, 3, 1000
TARGET = np.log(np.array([[5, 3, 1, 1], [1, 1, 8, 2], [2, 2, 2, 2], [6, 1, 1, 9]], dtype=np.float64))


class Count:
    """A cache that only counts."""

    capacity, length = 30, 0

    def commit(self, path: IntArray | list[int]) -> None:
        self.length += len(path)

    def truncate(self, length: int) -> None:
        self.length = length


class TableBackend:
    """Its logits depend on the last token alone."""

    config: Any = SimpleNamespace(vocab_size=VOCAB)
    verify = Backend.verify

    def __init__(self, table: np.ndarray) -> None:
        self.table = table.astype(np.float32)

    def new_cache(self, capacity: int) -> Cache:
        return Count()

    def forward(self, rows: Rows, logits: IntArray, taps: tuple[int, ...] = ()) -> Output:
        return Output(self.table[rows.tokens[logits]], np.zeros((rows.tokens.size, 0, 1), dtype=np.float32))


class DrawingDrafter:
    """Draws two children without replacement at each node, two deep, from a table of its own, and says so."""

    name, taps = "drawing", ()

    def __init__(self, table: np.ndarray, seed: int) -> None:
        self.table = table
        self.draw = np.random.default_rng(seed)

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self.last = int(tokens[-1])

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self.last = tokens[-1]

    def truncate(self, length: int) -> None: ...

    def propose(self, budget: Budget) -> DraftTree:
        tokens, parents, proposals = [self.last], [-1], {}
        for node in range(3):
            if node >= len(tokens):
                break
            q = self.table[tokens[node]]
            count = min(2, np.count_nonzero(q))
            proposals[node] = q
            tokens += self.draw.choice(VOCAB, size=count, replace=False, p=q).tolist()
            parents += [node] * count
        return DraftTree(np.array(tokens), np.array(parents), (), proposals)


def table(kind: str) -> np.ndarray:
    if kind == "equal":
        weights = np.exp(TARGET)
    elif kind == "other":
        weights = np.array([[1, 5, 1, 1], [4, 1, 1, 1], [1, 1, 1, 9], [1, 1, 7, 1]], dtype=np.float64)
    else:  # most of its weight where the target has little, and none on some
        weights = np.array([[0, 0, 3, 1], [1, 3, 0, 0], [0, 1, 1, 0], [0, 5, 5, 0]], dtype=np.float64)
    return weights / weights.sum(axis=1, keepdims=True)


def drawing(kind: str, seed: int) -> Drafter:
    return DrawingDrafter(table(kind), seed)


def model(kind: str, seed: int) -> Drafter:
    """A draft model whose tree depends on what it draws, as far as it may."""
    with np.errstate(divide="ignore"):
        guide = Guide(TableBackend(np.log(table(kind))), 30)
    pipeline = Pipeline(SamplingParams(temperature=1.0), VOCAB, (), 1)
    return ModelDrafter(guide, FusedDrawingRanker(pipeline, seed, VOCAB))


def cascade(kind: str, seed: int) -> Drafter:
    suffix = SuffixDrafter(constants=SuffixConstants(least_chance=0.1))
    return CascadeDrafter([suffix, model(kind, seed), LookupDrafter()])


@pytest.mark.parametrize(
    ("rule", "make"),
    [(CoupledRule, drawing), (RejectionRule, drawing), (RejectionRule, model), (RejectionRule, cascade)],
)
@pytest.mark.parametrize("kind", ["equal", "other", "apart"])
def test_texts_have_the_targets_distribution(
    kind: str, rule: type[CoupledRule] | type[RejectionRule], make: Callable[[str, int], Drafter]
) -> None:
    backend = TableBackend(TARGET)
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(DRAWS):
        target = TargetSequence(backend, rule(Pipeline(params, VOCAB, (), 1), seed), context=16, capacity=30)
        steps = decode(
            target, make(kind, seed), [0], policy=FixedBudget(6, 2), stop=lambda token: None,
            max_tokens=LENGTH, report=Report(),
        )  # fmt: skip
        counts[tuple(token for step in steps for token in step.tokens)] += 1
    p = np.exp(TARGET)
    p /= p.sum(axis=1, keepdims=True)
    chi = 0.0
    for text in product(range(VOCAB), repeat=LENGTH):
        chance = np.prod([p[before, after] for before, after in pairwise((0, *text))])
        chi += (counts[text] - DRAWS * chance) ** 2 / (DRAWS * chance)
    freedom = VOCAB**LENGTH - 1
    assert chi < freedom + 4 * np.sqrt(2 * freedom)
