from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.tree import DraftTree


def tree(tokens: list[int], parents: list[int]) -> DraftTree:
    return DraftTree(np.array(tokens), np.array(parents))


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    n = draw(st.integers(1, 20))
    tokens = draw(st.lists(st.integers(-5, 60), min_size=n, max_size=n))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, n)]
    origins = tuple(f"d{node}" for node in range(n)) if draw(st.booleans()) else ()
    proposals = {node: np.full(4, 0.25) for node in range(0, n, 2)}
    return DraftTree(np.array(tokens), np.array(parents), origins, proposals)


def test_chain() -> None:
    chain = DraftTree.chain(7, [8, 9])
    assert chain.tokens.tolist() == [7, 8, 9]
    assert chain.parents.tolist() == [-1, 0, 1]
    assert chain.tokens.dtype == chain.parents.dtype == np.int32
    assert len(DraftTree.chain(7)) == 1


def test_the_example_of_the_docstring() -> None:
    example = tree([1, 2, 3, 4], [-1, 0, 1, 0])
    assert example.depths == [0, 1, 2, 1]
    assert example.children == [[1, 3], [2], [], []]
    assert example.path(2) == [0, 1, 2]
    assert example.path(0) == [0]


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [
        ([], []),
        ([1, 2], [-1]),
        ([1, 2], [0, 0]),
        ([1, 2], [-1, -1]),
        ([1, 2, 3], [-1, 2, 0]),
        ([1, 2], [-1, 1]),
        ([1.5, 2.0], [-1, 0]),
        ([[1, 2]], [[-1, 0]]),
    ],
)
def test_what_is_no_tree_is_refused(tokens: list[int], parents: list[int]) -> None:
    with pytest.raises(ValueError, match=r"tree|parents|whole"):
        DraftTree(np.array(tokens), np.array(parents))


@pytest.mark.parametrize("proposals", [[1], {1: "a"}, {"1": np.ones(4)}, {1: np.ones((2, 2))}])
def test_proposals_are_distributions_by_node(proposals: Any) -> None:
    with pytest.raises(ValueError, match="proposals"):
        DraftTree([1, 2], [-1, 0], proposals=proposals)


def test_origins_must_match() -> None:
    with pytest.raises(ValueError, match="origins"):
        DraftTree(np.array([1, 2]), np.array([-1, 0]), ("a",))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_ids_too_big_for_int32_stay_outside_every_vocabulary(dtype: type) -> None:
    big = DraftTree(np.array([1, 2**32 + 3], dtype=dtype), np.array([-1, 0]))
    assert len(big.fit(1, nodes=9, depth=9, vocab_size=100)) == 1


@given(draft=trees(), root=st.integers(0, 49), nodes=st.integers(0, 25), depth=st.integers(0, 25))
def test_fit(draft: DraftTree, root: int, nodes: int, depth: int) -> None:
    """What is left can be verified, and everything that could be kept was."""
    safe = draft.fit(root, nodes=nodes, depth=depth, vocab_size=50)
    assert safe.tokens[0] == root
    assert len(safe) <= nodes + 1
    assert max(safe.depths) <= depth
    assert ((safe.tokens >= 0) & (safe.tokens < 50)).all()

    def good(node: int) -> bool:
        path = draft.path(node)[1:]
        return len(path) <= depth and all(0 <= draft.tokens[i] < 50 for i in path)

    kept = [node for node in range(len(draft)) if good(node)][: nodes + 1]
    assert safe.tokens[1:].tolist() == draft.tokens[kept[1:]].tolist()
    assert [safe.path(node)[-2:] for node in range(1, len(safe))] == [
        [kept.index(int(draft.parents[node])), place] for place, node in enumerate(kept) if place
    ]
    if draft.origins:
        assert safe.origins == tuple(draft.origins[node] for node in kept)
    assert set(safe.proposals) == {kept.index(node) for node in draft.proposals if node in kept}


def test_fit_keeps_what_fits() -> None:
    chain = DraftTree.chain(7, [8, 9])
    assert chain.fit(7, nodes=2, depth=2, vocab_size=10) is chain


@given(draft=trees(), seed=st.integers(0, 100))
def test_likely_first(draft: DraftTree, seed: int) -> None:
    """The same paths, the first child of each node its likeliest; what is said first of equal guesses stays
    first; drawn candidates keep their order."""
    assert draft.drawn
    assert draft.likely_first().ids == draft.ids
    odds = [1.0]
    for parent, part in zip(draft.above[1:], np.random.default_rng(seed).random(len(draft)), strict=False):
        odds.append(odds[parent] * float(part))
    plain = DraftTree(draft.ids, draft.above, [str(node) for node in range(len(draft))], {}, odds)
    ordered = plain.likely_first()
    was = [int(name) for name in ordered.origins]  # of each node in the new order, the old number
    assert sorted(was) == list(range(len(draft)))
    for node, children in enumerate(ordered.children):
        assert [was[above] for above in ordered.path(node)] == plain.path(was[node])
        assert not children or children[0] == node + 1
        for child in children:
            first = next(other for other in children if ordered.ids[other] == ordered.ids[child])
            assert was[first] <= was[child]
        if len({ordered.ids[child] for child in children}) == len(children):
            chances = [odds[was[child]] for child in children]
            assert chances == sorted(chances, reverse=True)
