"""The draft model's cache and trees, over the tiny model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.tiny_model import TinyBackend
from conformance.writing import write, write_plainly
from forerun.core.budget import FixedBudget
from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree, FloatArray, IntArray
from forerun.drafters.model import ModelDrafter
from forerun.models.guide import Guide
from forerun.sampling.fused import FusedDrawingRanker
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.ranking import CoupledRanker, DrawingRanker

TARGET = TinyBackend(sharpness=4.0)
OTHER = TinyBackend(sharpness=4.0, seed=3)
WIDE = TinyBackend(vocab_size=31, sharpness=4.0, seed=4)
NARROW = TinyBackend(vocab_size=19, sharpness=4.0, seed=5)


def drafter(
    backend: TinyBackend, params: SamplingParams, prompt_length: int, capacity: int = 200, drawn: bool = False
) -> ModelDrafter:
    pipeline = Pipeline(params, 24, (23,), prompt_length)
    ranker = (DrawingRanker if drawn else CoupledRanker)(pipeline, params.seed or 0, 24)
    return ModelDrafter(Guide(backend, capacity), ranker)


def same(one: DraftTree, two: DraftTree) -> None:
    assert one.tokens.tolist() == two.tokens.tolist()
    assert one.parents.tolist() == two.parents.tolist()
    assert one.chances is not None
    assert two.chances is not None
    assert one.chances.tolist() == two.chances.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("nodes", "depth"), [(1, 1), (3, 3), (12, 5)])
def test_the_target_itself_is_always_right(temperature: float, nodes: int, depth: int) -> None:
    """Wherever it has guesses, one of them is what is said."""
    params = SamplingParams(
        temperature=temperature, max_tokens=6 * (depth + 1), seed=8, banned_tokens=(23,),
        repetition_penalty=1.2, top_p=0.95,
    )  # fmt: skip
    guesser = drafter(TARGET, params, 4)
    written = write(TARGET, guesser, [1, 2, 3, 4], params, budget=FixedBudget(nodes, depth))
    assert written.tokens == write_plainly(TARGET, [1, 2, 3, 4], params).tokens
    rates = written.report.acceptance_by_depth
    assert rates == [1.0] * len(rates)
    assert min(depth, 2) <= len(rates) <= depth


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 23), min_size=1, max_size=8),
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 23), st.booleans()), min_size=1, max_size=5),
    temperature=st.sampled_from([0.0, 0.9]),
    nodes=st.integers(1, 9),
    depth=st.integers(1, 4),
)
def test_the_cache_is_exact_after_every_acceptance(
    prompt: list[int],
    steps: list[tuple[int, int, bool]],
    temperature: float,
    nodes: int,
    depth: int,
) -> None:
    """However much of a tree was accepted, the next tree is the one that a new drafter makes of the same
    text."""
    params = SamplingParams(temperature=temperature, seed=1)
    old = drafter(OTHER, params, len(prompt))
    old.begin(np.array(prompt, dtype=np.int32), None)
    text = list(prompt)
    for accepted, other, cut in steps:
        tree = old.propose(Budget(nodes, depth))
        node, tokens = 0, []
        for _ in range(accepted):
            children = tree.children[node]
            if not children:
                break
            node = children[accepted % len(children)]
            tokens.append(int(tree.tokens[node]))
        tokens.append(other)
        old.observe(tokens, None)
        text += tokens
        if cut and len(text) > 3:
            old.truncate(len(text) - 3)
            del text[-3:]
            if other % 2:  # on in another way before the next draft
                old.observe([other, 0, 1, 2], None)
                text += [other, 0, 1, 2]
        new = drafter(OTHER, params, len(prompt))
        new.begin(np.array(text, dtype=np.int32), None)
        same(old.propose(Budget(nodes, depth)), new.propose(Budget(nodes, depth)))


@settings(max_examples=40, deadline=None)
@given(
    text=st.lists(st.integers(0, 23), min_size=1, max_size=8),
    nodes=st.integers(1, 20),
    depth=st.integers(1, 8),
    temperature=st.sampled_from([0.0, 0.9]),
    drawn=st.booleans(),
    model=st.sampled_from([OTHER, WIDE, NARROW]),
)
def test_trees_fit_the_budget(
    text: list[int], nodes: int, depth: int, temperature: float, drawn: bool, model: TinyBackend
) -> None:
    """Also with vocabularies of another size: padding is never drafted."""
    guesser = drafter(model, SamplingParams(temperature=temperature, seed=2), len(text), drawn=drawn)
    guesser.begin(np.array(text, dtype=np.int32), None)
    tree = guesser.propose(Budget(nodes, depth))
    assert tree.tokens[0] == text[-1]
    assert 1 < len(tree) <= nodes + 1
    assert max(tree.depths) == min(nodes, depth) or not drawn or temperature == 0
    assert tree.tokens.max() < min(24, model.config.vocab_size) or tree.tokens.argmax() == 0
    safe = tree.fit(text[-1], nodes=nodes, depth=depth, vocab_size=24)
    assert safe.tokens.tolist() == tree.tokens.tolist()
    assert tree.chances is not None
    assert (tree.chances[1:] <= tree.chances[tree.parents[1:]]).all()
    for node, children in enumerate(tree.children):
        guesses = [int(tree.tokens[child]) for child in children]
        assert len(set(guesses)) == len(guesses)
        assert (node in tree.proposals) == (drawn and bool(guesses))
        if node in tree.proposals:
            assert (tree.proposals[node][guesses] > 0).all()


class Told:
    """A draft model that says the same everywhere; counts what it is asked."""

    length, capacity = 0, 100

    def __init__(self, *chances: float) -> None:
        self.logits = np.log(np.array(chances, dtype=np.float32))
        self.computed = 0

    def advance(self, tokens: IntArray) -> FloatArray:
        return self.logits

    def look(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        self.computed += len(tokens)
        return np.tile(self.logits, (len(tokens), 1))

    def keep(self, path: IntArray) -> None: ...
    def truncate(self, length: int) -> None: ...


def test_trees_are_of_the_most_probable_paths() -> None:
    """A sure model's tree is deep, an unsure one's is wide, and is not asked for more than can be kept."""
    for chances, nodes, depths, computed in (
        ((0.97, 0.01, 0.01, 0.01), 4, [0, 1, 2, 3, 4], 3),
        ((0.25, 0.25, 0.25, 0.25), 4, [0, 1, 1, 1, 1], 0),
        ((0.6, 0.3, 0.05, 0.05), 4, [0, 1, 1, 2, 3], 3),
    ):
        guide = Told(*chances)
        guesser = ModelDrafter(guide, CoupledRanker(Pipeline(SamplingParams(), 4, (), 1), 0, 4))
        guesser.begin(np.array([0], dtype=np.int32), None)
        tree = guesser.propose(Budget(nodes, 4))
        assert sorted(tree.depths) == depths
        assert guide.computed == computed


def test_nothing_is_computed_below_the_unlikely() -> None:
    guesser = drafter(OTHER, SamplingParams(), 4)
    guesser.begin(np.array([1, 2, 3, 4], dtype=np.int32), None)
    every = guesser.propose(Budget(20, 4))
    assert every.chances is not None
    middle = float(np.median(every.chances[np.unique(every.parents[every.parents > 0])]))
    some = guesser.propose(Budget(20, 4, least_chance=middle))
    assert some.chances is not None
    followed = np.unique(some.parents[some.parents > 0])
    assert followed.size > 0
    assert (some.chances[followed] >= middle).all()
    assert (some.chances < middle).any()


def test_its_own_context_ends_earlier() -> None:
    """Beyond it nothing is drafted, and the text goes on."""
    params = SamplingParams(max_tokens=40, banned_tokens=(23,))
    written = write(
        TARGET, drafter(TARGET, params, 3, capacity=20), [1, 2, 3], params, budget=FixedBudget(4, 4)
    )
    assert written.tokens == write_plainly(TARGET, [1, 2, 3], params).tokens
    assert written.report.depths[0].accepted >= 2
    assert set(written.origins[20:]) == {""}


@pytest.mark.parametrize("kind", [DrawingRanker, FusedDrawingRanker])
def test_drawn_candidates_follow_the_distribution_they_name(
    kind: type[DrawingRanker] | type[FusedDrawingRanker],
) -> None:
    """First draws have the distribution itself; second ones what is left of it without the first."""
    params = SamplingParams(temperature=1.0, seed=3)
    ranker = kind(Pipeline(params, 6, (), 0), 3, 6)
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05, 1e-9], dtype=np.float32))
    counts = np.zeros((6, 6))
    draws = 6000
    for _ in range(draws):
        first, second = ranker.rank(logits, np.zeros(0, dtype=np.int32), [], 2).tokens
        counts[first, second] += 1
    p = ranker.rank(logits, np.zeros(0, dtype=np.int32), [], 2).proposal
    assert p is not None
    expected = draws * p[:, None] * p[None] / (1 - p[:, None]) * (1 - np.eye(6))
    seen = expected > 5
    chi = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
    assert chi < seen.sum() + 4 * np.sqrt(2 * seen.sum())
