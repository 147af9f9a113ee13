"""Acceptance: walk down the tree for as long as the target says what a child guessed."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core.protocols import Verdict
from forerun.core.tree import DraftTree


@dataclass(frozen=True)
class Walk:
    """What a verified tree came to.

    Attributes:
        path: accepted nodes, root first, [k].
        tokens: the tokens chosen at those nodes, [k]: tokens[j] follows path[j]. So the first k - 1 repeat
            what path[1:] guessed, and the last is the target's own.
        checked: whether path[j] had children, [k].
    """

    path: list[int]
    tokens: list[int]
    checked: list[bool]


def walk(tree: DraftTree, verdict: Verdict) -> Walk:
    """Accept a node's child if and only if it carries the token chosen at the node.

    The rule of choice is the verdict's. Under the coupled rule the choice does not look at the draft (Daliri,
    Musco, Suresh, arXiv 2408.07978); under the rejection rule it does, and its draws make an accepted
    candidate and "the token chosen" the same thing. Either way this walk is all there is to acceptance.

    Where nothing can be chosen at a node below the root, the walk ends before it: the text may end earlier,
    and if it does not, the next root is there and says what is wrong, as in plain decoding.
    """
    if len(tree) == 1:
        return Walk([0], [verdict.choose(0, [])], [False])
    children, tokens = tree.children, tree.ids
    node: int | None = 0
    done = Walk([], [], [])
    while node is not None:
        guesses = [tokens[child] for child in children[node]]
        try:
            token = verdict.choose(node, guesses)
        except Exception:
            if node == 0:
                raise
            break
        done.path.append(node)
        done.tokens.append(token)
        done.checked.append(bool(guesses))
        node = children[node][guesses.index(token)] if token in guesses else None
    return done
