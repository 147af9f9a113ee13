"""Drafting heads over the tiny model: caches, positions and trees after every acceptance length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.tiny_cpu import tiny_cpu_backend
from forerun import _core
from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree
from forerun.drafters.heads import HeadDrafter
from forerun.models.heads import open_head
from forerun.models.rows import Rows
from forerun.sampling.fused import core_settings
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.ranking import CoupledRanker
from support.heads import EAGLES, HYDRAS, MEDUSAS, Sizes

TARGET = tiny_cpu_backend()
VOCAB = TARGET.config.vocab_size
COLD = SamplingParams()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("heads")
    for name, make in {**EAGLES, **MEDUSAS, **HYDRAS}.items():
        make().save(root / name)
    return root


def new_drafter(
    folder: Path, name: str, params: SamplingParams = COLD, *, capacity: int = 300, dtype: str = "q8"
) -> HeadDrafter:
    loaded = TARGET.load_head(open_head(folder / name), dtype=dtype)
    choosing = core_settings(Pipeline(params, VOCAB, (VOCAB - 1,), 1), params.seed or 0)
    return HeadDrafter(loaded.drafter(choosing, capacity), loaded.taps, loaded.name, 0.0)


def features(text: list[int], taps: tuple[int, ...]) -> np.ndarray:
    """[len(text), taps, hidden]"""
    ids = np.array(text, dtype=np.int32)
    return TARGET.forward(Rows.chain(ids, TARGET.new_cache(400)), ids[:0], taps).features.copy()


def told(drafter: HeadDrafter, text: list[int]) -> HeadDrafter:
    """A drafter that has read the whole text at once."""
    drafter.begin(np.array(text[:1], dtype=np.int32), None)
    if len(text) > 1:
        drafter.observe(text[1:], features(text[:-1], drafter.taps))
    return drafter


def same(one: DraftTree, two: DraftTree) -> None:
    assert one.tokens[1:].tolist() == two.tokens[1:].tolist()  # a root is what the loop says it is
    assert one.parents.tolist() == two.parents.tolist()
    assert one.chances is not None
    assert two.chances is not None
    assert one.chances.tolist() == two.chances.tolist()


@pytest.mark.parametrize(
    "name",
    ["eagle, biases", "eagle3", "speculators, two layers", "medusa", "hydra", "hydra, the target's head"],
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=90),
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, VOCAB - 1), st.booleans()), min_size=1, max_size=6
    ),
    temperature=st.sampled_from([0.0, 0.9]),
    nodes=st.integers(1, 12),
    depth=st.integers(1, 5),
)
def test_drafts_are_exact_after_every_acceptance(
    folder: Path,
    name: str,
    prompt: list[int],
    steps: list[tuple[int, int, bool]],
    temperature: float,
    nodes: int,
    depth: int,
) -> None:
    """However much of a tree was accepted, and whether one was asked for at all, the next tree is to the bit
    the one of a drafter that reads the same text at once: no row is shifted, missing or made of guessed
    features."""
    params = SamplingParams(temperature=temperature, seed=1)
    old = told(new_drafter(folder, name, params), prompt)
    text = list(prompt)
    for accepted, other, cut in steps:
        tree = old.propose(Budget(nodes, depth))
        if other % 3 == 0:
            same(tree, old.propose(Budget(nodes, depth)))  # asked twice
        node, tokens = 0, []
        for _ in range(accepted):
            children = tree.children[node]
            if not children:
                break
            node = children[accepted % len(children)]
            tokens.append(int(tree.tokens[node]))
        tokens.append(other)
        before = len(text)
        text += tokens
        old.observe(tokens, features(text[:-1], old.taps)[before - 1 :])
        if cut and len(text) > 4:
            del text[-3:]
            old.truncate(len(text))
            tree = old.propose(Budget(nodes, depth))
            if len(tree) > 1:  # or nothing is known of the last token
                same(tree, told(new_drafter(folder, name, params), text).propose(Budget(nodes, depth)))
            text += [other, 0]
            old.observe([other, 0], features(text[:-1], old.taps)[-2:])
        if other % 4:
            new = told(new_drafter(folder, name, params), text)
            same(old.propose(Budget(nodes, depth)), new.propose(Budget(nodes, depth)))


@pytest.mark.parametrize("name", EAGLES)
@pytest.mark.parametrize("dtype", ["bf16", "q8", "q4"])
def test_teacher_forced_logits_are_the_incremental_ones(folder: Path, name: str, dtype: str) -> None:
    """Bit for bit, over a text of several hundred tokens read in pieces of every size."""
    text = np.random.default_rng(3).integers(0, VOCAB, 150).tolist()
    old = new_drafter(folder, name, dtype=dtype)
    states = features(text, old.taps)
    old.begin(np.array(text[:1], dtype=np.int32), None)
    at = 1
    for size in [1, 2, 3, 70, 1, 5, 30, 1, 1]:
        old.observe(text[at : at + size], states[at - 1 : at + size - 1])
        at += size
        old.propose(Budget(6, 3))
        core = old._core
        assert isinstance(core, _core.EagleDrafter)
        assert core.computed == core.length - 1 == at - 1  # one row a token but the first
        new = told(new_drafter(folder, name, dtype=dtype), text[:at])
        new.propose(Budget(1, 1))
        assert isinstance(new._core, _core.EagleDrafter)
        assert core.logits.size > 0
        assert (core.logits == new._core.logits).all()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=8),
    name=st.sampled_from([*EAGLES, *MEDUSAS, *HYDRAS]),
    nodes=st.integers(1, 40),
    depth=st.integers(1, 8),
    temperature=st.sampled_from([0.0, 0.9]),
    acceptance=st.sampled_from(["coupled", "rejection"]),
    top_k=st.sampled_from([0, 3]),
    penalty=st.sampled_from([1.0, 1.3]),
)
def test_trees_fit_the_budget(
    folder: Path,
    text: list[int],
    name: str,
    nodes: int,
    depth: int,
    temperature: float,
    acceptance: str,
    top_k: int,
    penalty: float,
) -> None:
    params = SamplingParams(
        temperature=temperature, seed=2, acceptance=acceptance, top_k=top_k, repetition_penalty=penalty
    )  # type: ignore[arg-type]
    guesser = told(new_drafter(folder, name, params), text)
    tree = guesser.propose(Budget(nodes, depth))
    assert tree.tokens[0] == text[-1]
    assert 1 < len(tree) <= nodes + 1
    assert max(tree.depths) <= depth
    assert tree.fit(text[-1], nodes=nodes, depth=depth, vocab_size=VOCAB) is tree or nodes > depth
    assert tree.chances is not None
    assert (tree.chances[1:] <= tree.chances[tree.parents[1:]]).all()
    assert not tree.proposals
    for children in tree.children:
        guesses = [int(tree.tokens[child]) for child in children]
        assert len(set(guesses)) == len(guesses)
        assert sum(float(tree.chances[child]) for child in children) < 1.01
        assert not (temperature and top_k) or len(guesses) <= top_k


@pytest.mark.parametrize("name", ["eagle3", "eagle, biases", "medusa", "vllm medusa", "hydra"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_candidates_are_ranked_as_the_draft_models_are(
    folder: Path, name: str, temperature: float, penalty: float
) -> None:
    """The core's ranking of a head's logits is that of `CoupledRanker`, noise and penalties included."""
    text = [3, 1, 4, 1, 5]
    params = SamplingParams(temperature=temperature, seed=9, repetition_penalty=penalty, banned_tokens=(2,))
    drafter = told(new_drafter(folder, name, params, dtype="f32"), text)
    tree = drafter.propose(Budget(6, 1))
    head = open_head(folder / name)
    if isinstance(drafter._core, _core.EagleDrafter):
        logits = drafter._core.logits
    else:
        state = features(text[:-1], drafter.taps)[-1, 0]
        core = TARGET.load_head(head, dtype="f32").core
        assert not isinstance(core, _core.EagleHead)
        hydra = isinstance(core, _core.HydraHeads)
        logits = core.logits(state, text[-1:]) if hydra else core.logits(0, state)
    wide = np.full(VOCAB, -np.inf, dtype=np.float32)
    wide[np.arange(VOCAB) if head.tokens is None else head.tokens] = logits
    pipeline = Pipeline(params, VOCAB, (VOCAB - 1,), 1)
    ranked = CoupledRanker(pipeline, 9, VOCAB).rank(wide, np.array(text, dtype=np.int32), [], 6)
    # the tree keeps tokens in the order of their chances, which is the ranker's
    assert tree.tokens[1:].tolist() == ranked.tokens
    assert tree.chances is not None  # shares among the best, of which the last ones may be others
    np.testing.assert_allclose(tree.chances[1:], ranked.chances, rtol=2e-3)


def test_growing_is_worth_the_most() -> None:
    """The tree has the budget's most probable nodes of all that follow each other: checked by growing all."""
    root = Sizes().eagle3()
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        root.save(Path(name) / "eagle3")
        small = told(new_drafter(Path(name), "eagle3"), [1, 2, 3, 4, 5]).propose(Budget(8, 3))
        large = told(new_drafter(Path(name), "eagle3"), [1, 2, 3, 4, 5]).propose(Budget(100, 3))
    assert small.chances is not None
    assert large.chances is not None
    best = sorted(large.chances[1:].tolist(), reverse=True)[:8]
    assert sorted(small.chances[1:].tolist(), reverse=True) == best


@pytest.mark.parametrize("name", ["eagle3", "medusa"])
def test_nothing_is_looked_for_below_the_unlikely(folder: Path, name: str) -> None:
    """The budget says what is unlikely; guesses that are stay, without any below them."""
    drafter = told(new_drafter(folder, name), [1, 2, 3, 4, 5])
    every = drafter.propose(Budget(60, 3))
    assert every.chances is not None
    middle = float(np.median(every.chances[np.unique(every.parents[every.parents > 0])]))
    some = drafter.propose(Budget(60, 3, least_chance=middle))
    assert some.chances is not None
    followed = np.unique(some.parents[some.parents > 0])
    assert 0 < followed.size < np.unique(every.parents[every.parents > 0]).size
    assert (some.chances[followed] >= middle).all()
    assert (some.chances < middle).any()


def test_its_context_may_end_first(folder: Path) -> None:
    """Beyond it nothing is drafted, and nothing breaks."""
    drafter = new_drafter(folder, "eagle3", capacity=8)
    text = [1, 2, 3, 4, 5, 6, 7]
    told(drafter, text)
    assert 1 <= max(drafter.propose(Budget(9, 5)).depths) <= 3
    for token in range(8, 14):
        text.append(token)
        drafter.observe([token], features(text[:-1], drafter.taps)[-1:])
        tree = drafter.propose(Budget(9, 5))
    assert len(tree) == 1
