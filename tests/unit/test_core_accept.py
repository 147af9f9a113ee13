from __future__ import annotations

import numpy as np
import pytest

from forerun.core.accept import walk
from forerun.core.tree import DraftTree


class Says:
    """A verdict that chooses by node, and remembers where it was asked."""

    features = None

    def __init__(self, choices: dict[int, int]) -> None:
        self.choices = choices
        self.asked: list[tuple[int, list[int]]] = []

    def walk(self) -> None:
        return None

    def choose(self, node: int, candidates: list[int]) -> int:
        self.asked.append((node, candidates))
        return self.choices[node]


TREE = DraftTree(np.array([1, 2, 3, 4, 5, 2]), np.array([-1, 0, 0, 1, 3, 0]))
#    1 --- 2 --- 4 --- 5
#     `--- 3
#     `--- 2 (again)


def test_goes_down_while_the_target_agrees() -> None:
    says = Says({0: 2, 1: 4, 3: 5, 4: 9})
    done = walk(TREE, says)
    assert done.path == [0, 1, 3, 4]
    assert done.tokens == [2, 4, 5, 9]
    assert done.checked == 3


def test_stops_at_the_first_disagreement() -> None:
    says = Says({0: 2, 1: 7})
    done = walk(TREE, says)
    assert (done.path, done.tokens, done.checked) == ([0, 1], [2, 7], 2)
    assert says.asked == [(0, [2, 3, 2]), (1, [4])], "nodes off the path are never chosen at"


def test_takes_a_sibling() -> None:
    done = walk(TREE, Says({0: 3, 2: 8}))
    assert (done.path, done.tokens, done.checked) == ([0, 2], [3, 8], 1)


def test_a_root_alone_is_plain_decoding() -> None:
    done = walk(DraftTree.chain(1), Says({0: 6}))
    assert (done.path, done.tokens, done.checked) == ([0], [6], 0)


def test_nothing_to_choose_below_the_root_is_put_off() -> None:
    """The text may end before it; if not, the next root meets it again."""
    done = walk(TREE, Says({0: 2, 1: 4}))  # at node 3 choosing fails
    assert (done.path, done.tokens, done.checked) == ([0, 1], [2, 4], 2)


def test_nothing_to_choose_at_the_root() -> None:
    with pytest.raises(KeyError):
        walk(TREE, Says({}))
