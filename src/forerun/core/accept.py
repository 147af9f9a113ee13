"""Acceptance: walk down the tree for as long as the target says what a child guessed."""

from __future__ import annotations

from typing import NamedTuple

from forerun.core.protocols import Verdict
from forerun.core.tree import DraftTree


class Walk(NamedTuple):
    """What a verified tree came to.

    Attributes:
        path: accepted nodes, root first, [k].
        tokens: the tokens chosen at those nodes, [k]: tokens[j] follows path[j]. So the first k - 1 repeat
            what path[1:] guessed, and the last is the target's own.
        checked: how many of path[0], path[1], ... have children: k or k - 1.
    """

    path: list[int]
    tokens: list[int]
    checked: int


def walk(tree: DraftTree, verdict: Verdict) -> Walk:
    """Accept a node's child if and only if it carries the token chosen at the node.

    The rule of choice is the verdict's. Under the coupled rule the choice does not look at the draft (Daliri,
    Musco, Suresh, arXiv 2408.07978); under the rejection rule it does, and its draws make an accepted
    candidate and "the token chosen" the same thing. Either way this walk is all there is to acceptance. A
    verdict may do it at once (csrc/sampling/walk.h).

    Where nothing can be chosen at a node below the root, the walk ends before it: the text may end earlier,
    and if it does not, the next root is there and says what is wrong, as in plain decoding.
    """
    at_once = verdict.walk()
    return _node_by_node(tree, verdict) if at_once is None else Walk(*at_once)


def _node_by_node(tree: DraftTree, verdict: Verdict) -> Walk:
    children, ids = tree.children, tree.ids
    path: list[int] = []
    tokens: list[int] = []
    checked = 0
    node: int | None = 0
    while node is not None:
        guesses = [ids[child] for child in children[node]]
        try:
            token = verdict.choose(node, guesses)
        except Exception:
            if node == 0:
                raise
            break
        path.append(node)
        tokens.append(token)
        checked += bool(guesses)
        node = children[node][guesses.index(token)] if token in guesses else None
    return Walk(path, tokens, checked)
