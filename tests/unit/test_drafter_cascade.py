from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun._core import likely_leaf, merge
from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree, FloatArray, IntArray
from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.lookup import LookupDrafter


class Scripted:
    """Proposes the tree it was told, and remembers what it was given."""

    def __init__(self, name: str, tree: DraftTree, taps: tuple[int, ...] = ()) -> None:
        self.name, self.tree, self.taps = name, tree, taps
        self.asked = 0
        self.heard: list[object] = []

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self.heard.append(features)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self.heard.append(features)

    def truncate(self, length: int) -> None:
        self.heard.append(length)

    def propose(self, budget: Budget) -> DraftTree:
        self.asked += 1
        self.budget = budget
        return self.tree


def tree(tokens: list[int], parents: list[int], chances: list[float] | None = None) -> DraftTree:
    given = None if chances is None else np.array(chances, dtype=np.float32)
    return DraftTree(np.array(tokens), np.array(parents), (), {}, given)


SURE = tree([1, 2, 3], [-1, 0, 1], [1, 0.9, 0.8])
UNSURE = tree([1, 5], [-1, 0], [1, 0.1])
START = np.array([1], dtype=np.int32)


def begun(*drafters: Scripted) -> CascadeDrafter:
    cascade = CascadeDrafter(drafters)
    cascade.begin(START, None)
    return cascade


def test_everyone_is_asked_and_sees_what_is_there() -> None:
    first, second = Scripted("a", UNSURE), Scripted("b", SURE)
    got = begun(first, second).propose(Budget(8, 8, least_chance=0.2))
    assert got.tokens.tolist() == [1, 5, 2, 3]
    assert got.parents.tolist() == [-1, 0, 0, 2]
    assert got.origins[1:] == ("a", "b", "b")
    assert (first.asked, second.asked) == (1, 1)
    assert first.budget.beside is None
    assert second.budget.beside is not None
    assert second.budget.beside.tokens.tolist() == [1, 5]
    assert second.budget.least_chance == 0.2
    small = begun(Scripted("a", UNSURE), Scripted("b", SURE)).propose(Budget(2, 8))
    assert small.tokens.tolist() == [1, 2, 3]
    nothing = begun(Scripted("a", DraftTree.chain(1)), Scripted("b", SURE)).propose(Budget(8, 8))
    assert (nothing.tokens.tolist(), nothing.origins) == ([1, 2, 3], ("b",) * 3)


def test_everyone_reads_along_and_sees_its_own_taps() -> None:
    first, second = Scripted("a", SURE, taps=(7, 2)), Scripted("b", SURE)
    cascade = CascadeDrafter([first, second])
    assert cascade.taps == (2, 7)
    features = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    cascade.begin(START, None)
    cascade.observe([4, 5], features)
    cascade.truncate(2)
    assert first.heard[0] is None
    assert isinstance(first.heard[1], np.ndarray)
    assert (first.heard[1] == features[:, ::-1]).all()
    assert first.heard[2] == 2
    assert second.heard == [None, None, 2]


def test_an_extender_goes_on_from_the_likely_leaf() -> None:
    class Extends(Scripted):
        def extend(self, tree: DraftTree, node: int, budget: Budget) -> DraftTree:
            self.heard.append((tree.path(node), budget))
            return tree

    extender = Extends("a", UNSURE)
    begun(extender, Scripted("b", SURE)).propose(Budget(8, 6))
    assert extender.heard[-1] == ([0, 2, 3], Budget(5, 4))


def test_drawn_trees_are_left_as_they_are() -> None:
    drawn = DraftTree(
        np.array([1, 2]), np.array([-1, 0]), ("b", "b"), {0: np.full(9, 1 / 9)}, np.ones(2, np.float32)
    )
    assert merge(drawn, SURE, 9) is drawn
    assert merge(UNSURE, drawn, 9) is drawn
    assert merge(SURE, drawn, 9) is SURE


@settings(deadline=None)
@given(st.data())
def test_merge(data: st.DataObject) -> None:
    """Every path of the result is a path of one of them, and with room enough all are."""

    def some(name: str) -> DraftTree:
        n = data.draw(st.integers(1, 9))
        parents = [-1] + [data.draw(st.integers(0, node - 1)) for node in range(1, n)]
        chances = [1.0]
        for parent in parents[1:]:
            chances.append(chances[parent] * data.draw(st.floats(0.125, 1, width=16)))
        tokens = [0, *(data.draw(st.integers(0, 3)) for _ in range(n - 1))]
        return DraftTree(
            np.array(tokens), np.array(parents), (name,) * n, {}, np.array(chances, dtype=np.float32)
        )

    first, second, nodes = some("a"), some("b"), data.draw(st.integers(0, 18))
    merged = merge(first, second, nodes)
    assert len(merged) <= max(len(first), len(second), nodes + 1)
    assert merged.chances is not None
    assert (merged.chances[1:] <= merged.chances[merged.parents[1:]]).all()

    def paths(one: DraftTree) -> set[tuple[int, ...]]:
        return {tuple(one.tokens[one.path(node)].tolist()) for node in range(len(one))}

    assert paths(merged) <= paths(first) | paths(second)
    if nodes + 1 >= len(first) + len(second):
        assert paths(merged) == paths(first) | paths(second)


def test_likely_leaf() -> None:
    assert likely_leaf(tree([1, 2, 3, 4, 5], [-1, 0, 0, 1, 3], [1, 0.4, 0.5, 0.4, 0.4])) == 2


def test_a_cascade_of_nobody() -> None:
    with pytest.raises(ValueError, match="needs"):
        CascadeDrafter([])


def test_its_name() -> None:
    assert CascadeDrafter([LookupDrafter(), Scripted("b", SURE)]).name == "lookup+b"


def test_a_guess_of_both_is_wrong_where_both_are() -> None:
    first = tree([1, 2, 3, 4], [-1, 0, 1, 0], [1, 0.5, 0.25, 0.4]).named("a")
    second = tree([1, 2, 3], [-1, 0, 1], [1, 0.6, 0.3]).named("b")
    merged = merge(first, second, 8)
    assert (merged.tokens.tolist(), merged.origins[1:]) == ([1, 2, 3, 4], ("b", "a", "a"))
    assert merged.chances is not None
    np.testing.assert_allclose(merged.chances, [1, 0.8, 0.6, 0.4], rtol=1e-6)
    # alone the other sibling would come before the guess below
    assert merge(first, second, 2).tokens.tolist() == [1, 2, 3]
