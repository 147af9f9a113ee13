"""Suffix matching against a reading of the text that looks at every place."""

from __future__ import annotations

import heapq
import tracemalloc
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun import _core
from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree
from forerun.drafters.suffix import SuffixConstants, SuffixDrafter

SHORT = 14  # texts so short have at most 16 endings, all of which are counted

BELIEFS = SuffixConstants(doubt=2.5, shorter=0.3, prior=8, window=64, recent=8, span=32, least_chance=0.01)

texts = st.lists(st.integers(0, 2), min_size=1, max_size=SHORT)


class Reference:
    """The drafter's definition, by searching the text: how often and how recently each ending went on in
    which way."""

    def __init__(self, text: list[int], past: list[list[int]], least: float) -> None:
        self.own = [text]
        self.past = past
        self.least = least

    @staticmethod
    def longest(texts: list[list[int]], ending: list[int], own: bool) -> list[int]:
        """The longest part at the end of `ending` that occurs in the texts; if own, before the very end."""
        for size in range(len(ending), 0, -1):
            part = ending[-size:]
            places = Reference.places(texts, part)
            if len(places) > own:
                return part
        return []

    @staticmethod
    def places(texts: list[list[int]], part: list[int]) -> list[tuple[int, int]]:
        """Where the part ends: text and position."""
        return [
            (number, end)
            for number, text in enumerate(texts)
            for end in range(len(part), len(text) + 1)
            if text[end - len(part) : end] == part
        ]

    def matches(self, own: list[int], past: list[int]) -> list[tuple[list[list[int]], list[int]]]:
        found: list[tuple[list[list[int]], list[int]]] = []
        while len(found) < 2 and (own or past):
            mine = len(own) >= len(past)
            texts, part = (self.own, own) if mine else (self.past, past)
            if self.followers(texts, part):
                found.append((texts, part))
            shorter = self.shorter(texts, part)
            own, past = (shorter, past) if mine else (own, shorter)
        return found

    def shorter(self, texts: list[list[int]], part: list[int]) -> list[int]:
        places = self.places(texts, part)
        for start in range(1, len(part)):
            if self.places(texts, part[start:]) != places:
                return part[start:]
        return []

    @staticmethod
    def followers(texts: list[list[int]], part: list[int]) -> dict[int, tuple[int, int]]:
        """Token -> how often it follows the part, and its age at the last time."""
        ends = np.cumsum([len(text) for text in texts])
        after: dict[int, tuple[int, int]] = {}
        for number, end in Reference.places(texts, part):
            if end < len(texts[number]):
                token = texts[number][end]
                age = int(ends[-1] - ends[number]) + len(texts[number]) - end - 1
                count, young = after.get(token, (0, age))
                after[token] = (count + 1, min(young, age))
        return after

    def guesses(self, own: list[int], past: list[int], chance: float) -> dict[int, float]:
        found: dict[int, float] = {}
        b = BELIEFS
        for level, (texts, part) in enumerate(self.matches(own, past)):
            if chance < self.least:
                break
            after = {t: v for t, v in self.followers(texts, part).items() if t not in found}
            weights = {
                t: count * (1 + b.recent * b.span / (b.span + age)) for t, (count, age) in after.items()
            }
            ends = (1, 2, 3, 4, 6, 9, 14, 22, 40)
            length = (1, 2, 3, 4, 5.5, 8, 12, 18, 30, 60)[sum(len(part) > end for end in ends)]
            hit = length / (length + b.doubt) if level == 0 else b.shorter
            found |= {t: chance * hit * weight / sum(weights.values()) for t, weight in weights.items()}
            chance *= 1 - hit
        return found

    def tree(self, root: int, prefix: list[int], budget: Budget) -> dict[tuple[int, ...], float]:
        """Paths with their chances, best first."""
        found: dict[tuple[int, ...], float] = {}
        queue: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
        while queue and len(found) <= budget.nodes:
            minus, path = heapq.heappop(queue)
            found[path] = -minus
            if len(path) >= budget.depth:
                continue
            ending = [*self.own[0], *prefix, *path]
            own = self.longest(self.own, ending, own=not prefix and not path)
            for token, chance in self.guesses(own, self.longest(self.past, ending, False), -minus).items():
                if chance >= self.least:
                    heapq.heappush(queue, (-chance, (*path, token)))
        del found[()]
        return found


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    assert tree.chances is not None
    return {
        tuple(tree.tokens[tree.path(node)[1:]].tolist()): float(tree.chances[node])
        for node in range(1, len(tree))
    }


def index_of(past: list[list[int]]) -> _core.SuffixIndex:
    index = _core.SuffixIndex()
    for text in past:
        index.add_text(np.array(text, dtype=np.int32))
    return index


def begun(text: list[int], past: list[list[int]] | None = None, least: float = 0.01) -> SuffixDrafter:
    drafter = SuffixDrafter(None if past is None else index_of(past), replace(BELIEFS, least_chance=least))
    drafter.begin(np.array(text[:1], dtype=np.int32), None)
    drafter.observe(text[1:], None)
    return drafter


@settings(max_examples=150, deadline=None)
@given(text=texts, past=st.lists(texts, max_size=2), prefix=st.lists(st.integers(0, 2), max_size=2))
@example(text=[0, 1, 0, 1, 0], past=[], prefix=[])
@example(text=[0], past=[[0, 1, 0], [0, 1, 0, 2]], prefix=[])
def test_against_a_search_of_everything(text: list[int], past: list[list[int]], prefix: list[int]) -> None:
    """All chances; with counts and ages that only a right automaton has, of one text and of several."""
    if sum(map(len, past)) > SHORT:
        return
    budget = Budget(400, 3)
    drafter = begun(text, past)
    tree = drafter.extend(DraftTree.chain(text[-1], prefix), len(prefix), budget)
    offset = tuple(prefix)
    got = {path[len(offset) :]: chance for path, chance in paths(tree).items() if len(path) > len(offset)}
    want = Reference(text, past, 0.01).tree(text[-1], prefix, budget)
    near = {path for path, chance in want.items() if abs(chance - 0.01) < 1e-9}  # rounding may decide
    assert got.keys() - near == want.keys() - near
    for path, chance in got.items():
        assert chance == pytest.approx(want.get(path, 0.01), rel=1e-5)


@settings(max_examples=50, deadline=None)
@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=200),
    nodes=st.integers(1, 20),
    depth=st.integers(1, 9),
)
def test_trees_fit_the_budget_and_the_best_come_first(text: list[int], nodes: int, depth: int) -> None:
    tree = begun(text).propose(Budget(nodes, depth))
    assert tree.tokens[0] == text[-1]
    assert len(tree) <= nodes + 1
    assert tree.depths().max() <= depth
    assert tree.chances is not None
    assert (np.diff(tree.chances) <= 0).all()
    assert (tree.chances[1:] >= 0.01).all()
    smaller = begun(text).propose(Budget(nodes // 2 + 1, depth))
    assert tree.tokens.tolist()[: len(smaller)] == smaller.tokens.tolist()


@given(text=texts, length=st.integers(1, SHORT), more=texts)
def test_truncate_leaves_no_trace(text: list[int], length: int, more: list[int]) -> None:
    drafter = begun(text)
    drafter.truncate(length)
    drafter.observe(more, None)
    fresh = begun(text[:length] + more)
    assert paths(drafter.propose(Budget(9, 9))) == paths(fresh.propose(Budget(9, 9)))


def test_begin_forgets() -> None:
    drafter = begun([1, 2, 3, 1, 2])
    drafter.begin(np.array([1], dtype=np.int32), None)
    drafter.observe([2], None)
    assert len(drafter.propose(Budget(8, 8))) == 1


def test_it_learns_whether_matches_can_be_trusted() -> None:
    """The same text: once what matches predict comes, once never."""
    draw = np.random.default_rng(0)
    sure, unsure = begun([0, 1, 2] * 3), begun([0, 1, 2] * 3)
    for place in range(90):
        for drafter, token in ((sure, place % 3), (unsure, int(draw.integers(3)))):
            drafter.propose(Budget(1, 1))
            drafter.observe([token], None)
    for drafter in (sure, unsure):
        drafter.observe([0, 1, 2, 0, 1], None)
    one, two = (drafter.propose(Budget(1, 1)).chances for drafter in (sure, unsure))
    assert one is not None
    assert two is not None
    assert one[1] > 0.9
    assert two[1] < 0.6


def test_memory_and_periodic_texts() -> None:
    """A text like any other stays below 100 bytes a token, an extreme one is no worse than it should be."""
    draw = np.random.default_rng(1)
    words = draw.zipf(1.3, size=30_000) % 5000
    for text, most in (
        (words, 100),
        (np.zeros(30_000), 60),
        (np.arange(30_000) % 7, 60),
        (draw.integers(0, 2, 30_000), 125),
    ):
        index = _core.SuffixDrafter(None, **asdict(BELIEFS))
        index.observe(text.astype(np.int32))
        assert index.length == 30_000
        assert index.bytes / index.length < most
        index.propose(np.zeros(0, dtype=np.int32), 16, 16)


def test_nothing_is_kept_in_python() -> None:
    drafter = begun([1, 2])
    tracemalloc.start()
    drafter.observe(list(range(20_000)), None)
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert current < 20_000


def test_bad_numbers() -> None:
    with pytest.raises(ValueError, match="chance"):
        begun([1], least=0.0)
    for wrong in ({"doubt": 0}, {"shorter": 1.1}, {"prior": float("nan")}, {"window": 0}, {"span": 0}):
        with pytest.raises(ValueError, match="out of range"):
            SuffixDrafter(None, replace(BELIEFS, **wrong)).begin(np.array([1], dtype=np.int32), None)
