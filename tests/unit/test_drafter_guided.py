from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree, FloatArray, IntArray
from forerun.drafters.guided import GuidedDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.errors import ForerunError
from forerun.sampling.constraint import Place, bits

START = 2
PROMPT = np.array([7, 8], dtype=np.int32)


@dataclass
class Table:
    """A grammar by table: what may follow depends on the last token. A token that is missing: anything."""

    after: dict[int, set[int] | None]
    start: int = START
    dead: tuple[int, ...] = ()
    asked: list[list[int]] = field(default_factory=list)

    def place(self, history: IntArray, path: list[int]) -> Place:
        text = [*history.tolist(), *path]
        self.asked.append(text)
        if text[-1] in self.dead:
            raise ForerunError("dead")
        following = self.after.get(text[-1])
        if following is None:
            return Place(None)
        only = next(iter(following)) if len(following) == 1 else -1
        return Place(bits(following, 320), only, complete=not following)

    def fitting(self, history: IntArray, path: list[int]) -> int:
        last = int(history[-1])
        for count, token in enumerate(path):
            following = self.after.get(last)
            if following is not None and token not in following:
                return count
            last = token
        return len(path)


class Says:
    """A drafter that proposes the tree it was told."""

    def __init__(self, tree: DraftTree, name: str = "says", taps: tuple[int, ...] = ()) -> None:
        self.name, self.tree, self.taps = name, tree, taps
        self.heard: list[object] = []

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self.heard.append(tokens.tolist())

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self.heard.append((list(tokens), features))

    def truncate(self, length: int) -> None:
        self.heard.append(length)

    def propose(self, budget: Budget) -> DraftTree:
        return self.tree


def begun(table: Table, drafter: Says | SuffixDrafter, *answer: int) -> GuidedDrafter:
    guided = GuidedDrafter(drafter, table)
    guided.begin(PROMPT, None)
    if answer:
        guided.observe(list(answer), None)
    return guided


def chain(*tokens: int) -> DraftTree:
    return DraftTree.chain(tokens[0], tokens[1:])


def test_forced_tokens_come_first() -> None:
    table = Table({1: {2}, 2: {3}, 3: None})
    got = begun(table, Says(chain(1, 9)), 1).propose(Budget(8, 8))
    assert (got.tokens.tolist(), got.parents.tolist()) == ([1, 2, 3], [-1, 0, 1])


def test_forced_tokens_and_the_others_agree() -> None:
    table = Table({1: {2}, 2: {3}, 3: None})
    got = begun(table, Says(chain(1, 2, 3, 4, 5)), 1).propose(Budget(8, 8))
    assert (got.tokens.tolist(), got.parents.tolist()) == ([1, 2, 3, 4, 5], [-1, 0, 1, 2, 3])
    assert got.origins == ("grammar", "grammar", "grammar", "says", "says")
    assert got.chances is not None
    assert got.chances[:3].tolist() == [1, 1, 1]


def test_the_budget_is_kept() -> None:
    endless = Table({1: {1}})
    for budget in (Budget(3, 8), Budget(8, 3)):
        got = begun(endless, Says(chain(1, 1, 1, 1, 1)), 1).propose(budget)
        assert got.tokens.tolist() == [1, 1, 1, 1]


def test_guesses_against_the_grammar_are_left_out() -> None:
    table = Table({1: {2, 3}, 2: {4, 5}, 3: {4, 6}})
    tree = DraftTree(np.array([1, 2, 3, 9, 4, 5, 4]), np.array([-1, 0, 0, 0, 1, 2, 4]), tuple("abcdefg"))
    got = begun(table, Says(tree), 1).propose(Budget(8, 8))
    assert (got.tokens.tolist(), got.parents.tolist()) == ([1, 2, 3, 4, 4], [-1, 0, 0, 1, 3])
    assert got.origins == ("a", "b", "c", "e", "g")


def test_drawn_candidates_stay() -> None:
    """The rejection rule must see what was drawn, whatever it is."""
    proposal: npt.NDArray[np.float64] = np.ones(10) / 10
    tree = DraftTree(np.array([1, 9, 2]), np.array([-1, 0, 0]), (), {0: proposal})
    assert begun(Table({1: {2, 3}}), Says(tree), 1).propose(Budget(8, 8)) is tree
    forced = begun(Table({1: {2}}), Says(tree), 1).propose(Budget(8, 8))
    assert (forced.tokens.tolist(), forced.proposals) == ([1, 2], {}), "settled before anything was drawn"


def test_habits() -> None:
    """After 1 come 2, 3 or 4; it was 3 last time."""
    table = Table({1: {2, 3, 4}, 3: None})
    guided = begun(table, Says(chain(1)), 1, 3, 8, 1)
    got = guided.propose(Budget(8, 8))
    assert (got.tokens.tolist(), got.origins) == ([1, 3], ("grammar", "grammar"))
    guided.observe([4, 1], None)
    assert guided.propose(Budget(8, 8)).tokens.tolist() == [1, 4]


def test_habits_at_other_places_of_the_kind() -> None:
    """The same tokens are allowed after 5 as after 1: what followed 1 is guessed, with less confidence."""
    kind = {2, 3, 4}
    table = Table({1: kind, 5: kind, 3: None, 4: None})
    guided = begun(table, Says(chain(5)), 1, 3, 5)
    other = guided.propose(Budget(8, 8))
    assert other.tokens.tolist() == [5, 3]
    guided.observe([4, 5], None)
    same = guided.propose(Budget(8, 8))
    assert same.tokens.tolist() == [5, 4]
    assert same.chances is not None
    assert other.chances is not None
    assert 0 < other.chances[1] < same.chances[1] < 1


def test_chains_of_habits_end_where_they_are_unlikely() -> None:
    table = Table({1: {1, 2}})
    got = begun(table, Says(chain(1)), 1, 1, 1).propose(Budget(64, 64))
    assert 4 < len(got) < 20
    assert got.chances is not None
    assert got.chances.min() >= 0.25


def test_the_prompt_and_free_text_have_no_habits() -> None:
    many = set(range(10_000))
    guided = begun(Table({7: {1, 2}, 1: many}), Says(chain(7)), 1, 5, 7)
    assert guided.propose(Budget(8, 8)).tokens.tolist() == [7], "7 was followed only in the prompt"
    guided = begun(Table({1: many}), Says(chain(1)), 1, 5, 1)
    assert guided.propose(Budget(8, 8)).tokens.tolist() == [1]


def test_the_end_is_not_drafted() -> None:
    table = Table({1: {2}, 2: set()})
    assert begun(table, Says(chain(1)), 1).propose(Budget(8, 8)).tokens.tolist() == [1, 2]


def test_where_nothing_can_follow() -> None:
    """Drafting says nothing of it: the text may never get there."""
    table = Table({1: {2}}, dead=(2,))
    assert begun(table, Says(chain(1)), 1).propose(Budget(8, 8)).tokens.tolist() == [1, 2]
    assert begun(table, Says(chain(2, 3)), 1, 2).propose(Budget(8, 8)).tokens.tolist() == [2, 3]


def test_one_that_can_go_on_from_any_node() -> None:
    guided = begun(Table({1: {2}, 2: None}), SuffixDrafter(), 1, 2, 5, 6, 1, 2, 5, 6, 1)
    got = guided.propose(Budget(3, 3))
    assert got.tokens.tolist() == [1, 2, 5, 6]
    assert got.origins == ("grammar", "grammar", "suffix", "suffix")


def test_the_wrapped_drafter_reads_along() -> None:
    says = Says(chain(1), taps=(0, 3))
    guided = GuidedDrafter(says, Table({}))
    assert (guided.name, guided.taps) == ("says", (0, 3))
    features = np.zeros((1, 2, 4), dtype=np.float32)
    guided.begin(PROMPT, None)
    guided.observe([1], features)
    guided.truncate(2)
    assert says.heard == [[7, 8], ([1], features), 2]
    guided.observe([3, 4], None)
    guided.begin(PROMPT, None)
    assert says.heard[-1] == [7, 8]


def test_going_back() -> None:
    table = Table({1: {2}, 3: {4}})
    guided = begun(table, Says(chain(1)), 1, 2, 3)
    guided.truncate(3)
    assert guided.propose(Budget(1, 1)).tokens.tolist() == [1, 2]
    guided.observe([2, 3], None)
    assert guided.propose(Budget(1, 1)).tokens.tolist() == [3, 4]


def test_long_texts() -> None:
    guided = begun(Table({1: {2}}), Says(chain(1)), *([5] * 1000), 1)
    assert guided.propose(Budget(1, 1)).tokens.tolist() == [1, 2]
