"""Suffix matching against a reading of the text that looks at every place."""

from __future__ import annotations

import heapq
import tracemalloc
from dataclasses import asdict, replace
from typing import TypeAlias

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

Detour: TypeAlias = tuple[int, int] | None
"""Where a passage goes on of which one token was replaced, and the tokens that agreed since."""

texts = st.lists(st.integers(0, 2), min_size=1, max_size=SHORT)


class Reference:
    """The drafter's definition, by searching the text: how often and how recently each ending went on in
    which way."""

    def __init__(self, text: list[int], past: list[list[int]], least: float) -> None:
        self.own = [text]
        self.past = past
        self.least = least
        self.detour: Detour = None
        for end, token in enumerate(text):
            self.detour = self.turn(text[:end], [], self.detour, token)

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

    @staticmethod
    def weights(after: dict[int, tuple[int, int]]) -> dict[int, float]:
        b = BELIEFS
        return {t: count * (1 + b.recent * b.span / (b.span + age)) for t, (count, age) in after.items()}

    def turn(self, text: list[int], extra: list[int], before: Detour, token: int) -> Detour:
        """The detour when `token` follows text + extra, after which it was `before`."""
        match = self.longest([text], [*text, *extra], own=not extra)
        after = self.followers([text], match)
        if len(match) >= 2 and token not in after:
            weights = self.weights(after)
            likeliest = max(weights, key=weights.__getitem__, default=None)
            if likeliest is None:
                return None
            place, agreed = len(text) - after[likeliest][1], 0
        elif before is not None and before[1] < 2 and text[before[0]] == token:
            place, agreed = before[0] + 1, before[1] + 1
        else:
            return None
        return (place, agreed) if place < len(text) else None

    def sources(
        self, own: list[int], past: list[int], detour: Detour
    ) -> list[tuple[float, dict[int, float]]]:
        """The prior chance that one of the source's tokens is right, and their weights."""
        found = []
        for level, (texts, part) in enumerate(self.matches(own, past)):
            ends = (1, 2, 3, 4, 6, 9, 14, 22, 40)
            length = (1, 2, 3, 4, 5.5, 8, 12, 18, 30, 60)[sum(len(part) > end for end in ends)]
            hit = length / (length + BELIEFS.doubt) if level == 0 else BELIEFS.shorter
            found.append((hit, self.weights(self.followers(texts, part))))
        if detour is not None:
            place, agreed = detour
            first = max(len(own), len(past)) <= agreed + 1
            found.insert(0 if first else 1, (BELIEFS.shorter, {self.own[0][place]: 1.0}))
        return found

    def guesses(self, own: list[int], past: list[int], detour: Detour, chance: float) -> dict[int, float]:
        found: dict[int, float] = {}
        for hit, after in self.sources(own, past, detour):
            if chance < self.least:
                break
            weights = {token: weight for token, weight in after.items() if token not in found}
            found |= {t: chance * hit * weight / sum(weights.values()) for t, weight in weights.items()}
            chance *= 1 - hit
        return found

    def tree(self, root: int, prefix: list[int], budget: Budget) -> dict[tuple[int, ...], float]:
        """Paths with their chances, best first."""
        found: dict[tuple[int, ...], float] = {}
        for at, token in enumerate(prefix):
            self.detour = self.turn(self.own[0], prefix[:at], self.detour, token)
        queue: list[tuple[float, tuple[int, ...], Detour]] = [(-1.0, (), self.detour)]
        while queue and len(found) <= budget.nodes:
            minus, path, detour = heapq.heappop(queue)
            found[path] = -minus
            if len(path) >= budget.depth:
                continue
            ending = [*self.own[0], *prefix, *path]
            own = self.longest(self.own, ending, own=not prefix and not path)
            past = self.longest(self.past, ending, own=False)
            for token, chance in self.guesses(own, past, detour, -minus).items():
                if chance >= self.least:
                    after = self.turn(self.own[0], [*prefix, *path], detour, token)
                    heapq.heappush(queue, (-chance, (*path, token), after))
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
@example(text=[0, 1, 2, 0, 1, 0, 0, 1], past=[], prefix=[1])
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
    assert max(tree.depths) <= depth
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


def test_a_passage_is_resumed_after_a_token_that_differs() -> None:
    passage = [1, 2, 3, 4, 5, 6, 7]
    drafter = begun([*passage, 0, 1, 2, 3, 9])  # 9, where 4 was: nothing matches
    draft = drafter.propose(Budget(3, 3))
    assert draft.tokens.tolist() == [9, 5, 6, 7]
    drafter.observe([8], None)  # nor was it the passage
    assert len(drafter.propose(Budget(3, 3))) == 1


def test_it_learns_what_resuming_is_worth() -> None:
    chances = []
    for goes_on in (True, False):
        text = list(range(100, 400))
        drafter = begun(text)
        for turn in range(20):  # three tokens of the passage, one that is new, and the passage's next or not
            start = 10 * turn
            drafter.observe(text[start : start + 3], None)
            drafter.observe([1000 + turn], None)
            drafter.propose(Budget(8, 8))
            drafter.observe([text[start + 4] if goes_on else 2000 + turn], None)
        drafter.observe([*text[250:253], 3000], None)
        tree = drafter.propose(Budget(1, 1))
        assert tree.tokens[1] == text[254]
        assert tree.chances is not None
        chances.append(float(tree.chances[1]))
    assert chances[0] > 0.7
    assert chances[1] < 0.1


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
        index.propose(16, 16)


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
