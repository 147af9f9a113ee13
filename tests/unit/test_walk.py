"""Walking a tree at once accepts what walking it node by node does, by both rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.accept import walk
from forerun.core.tree import DraftTree
from forerun.errors import ForerunError
from forerun.models.rows import Output
from forerun.sampling.fused import FusedCoupledRule, FusedRejectionRule
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline

Fused = FusedCoupledRule | FusedRejectionRule
VOCAB = 9
HISTORY = np.array([3, 1, 4], dtype=np.int32)


def output(logits: np.ndarray) -> Output:
    return Output(logits, np.zeros((0, 0, 0), dtype=np.float32))


class Asked:
    """A verdict that is asked node by node."""

    features = None

    def __init__(self, rule: Fused, logits: np.ndarray, tree: DraftTree) -> None:
        self.rule, self.logits, self.tree = rule, logits, tree

    def walk(self) -> None:
        return None

    def choose(self, node: int, candidates: list[int]) -> int:
        path = [self.tree.ids[above] for above in self.tree.path(node)]
        proposal = self.tree.proposals.get(node)
        return self.rule.choose(self.logits[node], HISTORY, path, candidates, proposal)


def rule_of(rejection: bool, temperature: float, seed: int) -> Fused:
    params = SamplingParams(temperature=temperature, acceptance="rejection" if rejection else "coupled")
    return (FusedRejectionRule if rejection else FusedCoupledRule)(Pipeline(params, VOCAB, (), 2), seed)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    n = draw(st.integers(1, 16))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, n)]
    tokens = [draw(st.integers(0, 2)) for _ in range(n)]
    shares = np.full(VOCAB, 1 / VOCAB)
    drawn = draw(st.lists(st.integers(0, n - 1), unique=True)) if draw(st.booleans()) else []
    return DraftTree(tokens, parents, (), dict.fromkeys(drawn, shares))


@settings(deadline=None, max_examples=200)
@given(
    tree=trees(),
    rejection=st.booleans(),
    temperature=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 1000),
    broken=st.integers(0, 40),
)
def test_at_once(tree: DraftTree, rejection: bool, temperature: float, seed: int, broken: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(len(tree), VOCAB + 3)).astype(np.float32)[:, :VOCAB]
    logits[:, :3] += 2.0
    if broken < len(tree):
        logits[broken] = np.nan  # nothing can be chosen there
    once, each = rule_of(rejection, temperature, seed), rule_of(rejection, temperature, seed)
    if broken == 0:
        with pytest.raises(ForerunError):
            once.walk(output(logits), HISTORY, tree)
        return
    assert once.walk(output(logits), HISTORY, tree) == walk(tree, Asked(each, logits, tree))


def test_what_does_not_belong_together_is_refused() -> None:
    rule, tree = rule_of(False, 0.0, 0), DraftTree.chain(1, [2])
    logits = np.zeros((2, VOCAB), dtype=np.float32)
    for wrong in (logits[:1], logits[:, :4], logits.T, logits[::-1]):
        with pytest.raises(ValueError, match="shape"):
            rule.walk(output(wrong), HISTORY, tree)
    with pytest.raises(ValueError, match="vocabulary"):
        rule.walk(output(logits), HISTORY, DraftTree.chain(1, [VOCAB]))
