"""What the C++ core makes of guesses, against the formulas as they are written down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.account import Account
from forerun.core.chances import Records
from forerun.core.curve import CostCurve
from forerun.core.tree import DraftTree


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    n = draw(st.integers(2, 14))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, n)]
    chances = [1.0]
    for parent in parents[1:]:
        chances.append(chances[parent] * draw(st.sampled_from([0.05, 0.3, 0.5, 0.9, 1.0])))
    tokens = [draw(st.integers(0, 3)) for _ in range(n)]
    names = [draw(st.sampled_from("ab")) for _ in range(n)] if draw(st.booleans()) else []
    return DraftTree(tokens, parents, names, {}, chances if draw(st.integers(0, 4)) else None)


class Formulas:
    """Records as docs/budget.md has them: outcomes of a kind fade by 3 % each, an opinion counts as eight of
    them and none as two of 0.4, and is taken for the part of opinions that came true."""

    def __init__(self, reliance: float) -> None:
        self.reliance = reliance
        self.seen: dict[tuple[str, int], list[bool]] = {}
        self.said: dict[str, list[tuple[float, bool]]] = {}

    def judge(self, tree: DraftTree) -> tuple[list[tuple[str, int]], list[float], list[float]]:
        kinds, said, chances = [("", 0)], [1.0], [1.0]
        names, odds = tree.origins or ("",) * len(tree), tree.odds
        for node, parent in enumerate(tree.above[1:], start=1):
            opinion = 0.4 if odds is None else odds[node] / max(odds[parent], 1e-9)
            sort = -tree.depths[node] if odds is None else int(min(10 * opinion, 10))
            trust = 2.0 if odds is None else 8.0
            promised, kept = 4.0, 4.0 * self.reliance
            for what, right in self.said.get(names[node], []):
                promised, kept = 0.99 * promised + what, 0.99 * kept + right
            right_, seen_ = 0.0, 0.0
            for right in self.seen.get((names[node], sort), []):
                right_, seen_ = 0.97 * right_ + right, 0.97 * seen_ + 1
            chance = (right_ + trust * min(opinion * kept / promised, 1.0)) / (seen_ + trust)
            kinds.append((names[node], sort))
            said.append(opinion)
            chances.append(chances[parent] * chance)
        return kinds, said, chances

    def learn(self, tree: DraftTree, tokens: list[int]) -> str | None:
        kinds, said, _ = self.judge(tree)
        node: int | None = 0
        guesser = None
        for token in tokens:
            assert node is not None
            below = tree.children[node]
            node = next((child for child in below if tree.ids[child] == token), None)
            for child in below:
                self.seen.setdefault(kinds[child], []).append(child == node)
                self.said.setdefault(kinds[child][0], []).append((said[child], child == node))
            if node is None:
                break
            guesser = kinds[node][0] if guesser is None else guesser
        return guesser


@settings(deadline=None, max_examples=60)
@given(
    reliance=st.sampled_from([1.0, 0.5]),
    texts=st.lists(st.tuples(trees(), st.lists(st.integers(0, 3), min_size=1, max_size=4)), max_size=12),
)
def test_chances(reliance: float, texts: list[tuple[DraftTree, list[int]]]) -> None:
    records, formulas = Records(reliance), Formulas(reliance)
    for tree, tokens in texts:
        judged = records.judge(tree)
        assert judged.chances == pytest.approx(formulas.judge(tree)[2])
        assert records.learn(judged, tokens) == formulas.learn(tree, tokens)


@settings(deadline=None)
@given(tree=trees(), price=st.floats(0.1, 3.0), last=st.floats(1.0, 8.0), name=st.sampled_from("ab"))
def test_what_is_worth_most(tree: DraftTree, price: float, last: float, name: str) -> None:
    """No number of the likeliest nodes is worth more, and a drafter's part is what its nodes give of that."""
    curve = CostCurve({1: 1.0, 4: min(1.5, last), 16: last})
    judged = Records().judge(tree)
    kept, chances = judged.worth_most(curve, price), judged.chances
    order = sorted(range(1, len(tree)), key=lambda node: -chances[node])
    costs = [price * (curve(1 + k) - curve(1)) for k in range(len(tree))]
    values = [sum(chances[node] for node in order[:k]) - cost for k, cost in enumerate(costs)]
    best = values[len(kept)]
    assert kept == sorted(order[: len(kept)])
    assert best == pytest.approx(max(values), abs=0.051)
    assert judged.worth(kept, curve, price) == pytest.approx(best)
    own = [node for node in kept if not tree.origins or tree.origins[node] == name]
    gains, nodes = judged.part_of(name, kept, curve, price, 0.0)
    assert nodes == len(own)
    if own:
        alone = sum(chances[node] for node in own) - costs[len(kept)] * len(own) / len(kept)
        assert sum(gains) == pytest.approx(min(alone, max(best, 0.0)))
    assert sum(judged.part_of(name, kept, curve, price, 1e9)[0]) == 0.0


def test_a_record_of_earlier_texts_counts_for_less() -> None:
    tree = DraftTree([1, 2], [-1, 0], ("a", "a"), {}, [1.0, 0.5])
    records = Records()
    for _ in range(200):
        records.learn(records.judge(tree), [2])
    before = records.judge(tree).chances[1]
    records.begin()
    assert 0.8 < records.judge(tree).chances[1] < before


@pytest.mark.parametrize("chances", [[1.0, np.nan], [1.0, -0.1], [1.0, np.inf], [1.0], ["a", "b"]])
def test_chances_that_are_none(chances: list[float]) -> None:
    with pytest.raises(ValueError, match="chances"):
        DraftTree([1, 2], [-1, 0], (), {}, chances)


def test_what_is_no_part_of_the_tree_is_refused() -> None:
    tree = DraftTree([1, 2, 3], [-1, 0, 1])
    judged, curve = Records().judge(tree), CostCurve({1: 1.0})
    for wrong in ([0], [3], [-1]):
        with pytest.raises((ValueError, IndexError)):
            judged.part_of("", wrong, curve, 1.0, 0.0)
    for wrong in ([3], [-1]):
        with pytest.raises((ValueError, IndexError)):
            judged.worth(wrong, curve, 1.0)
    for nodes in ([], [1], [0, 2], [0, 3], [0, -1], [0, 1, 1]):
        with pytest.raises(ValueError, match="tree"):
            tree.only(nodes)
    for node in (-1, 3):
        with pytest.raises(ValueError, match="node"):
            tree.path(node)
    assert np.array_equal(tree.only([0, 1]).tokens, [1, 2])
    assert Account(promising=True).levels == {}
