"""Several drafters as one: all read along, the most promising proposes, others add what they see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from forerun.core.protocols import Budget, Drafter
from forerun.core.report import Lap
from forerun.core.tree import DraftTree, FloatArray, IntArray

FADE = 0.9
"""How much of a drafter's record stays when a step is added to it."""

HOPE = 1.0
"""Accepted guesses a step that a drafter without a record is taken to give."""

CHEAP = 0.02
"""A drafter that costs more than its guesses save is asked so rarely that it takes this part of the time."""

RECOVERY = 0.02
"""How far a step without being asked takes a drafter's record back to HOPE: text changes."""


@runtime_checkable
class Extender(Protocol):
    """A drafter that can go on from any node of another one's tree."""

    def extend(self, tree: DraftTree, node: int, budget: Budget) -> DraftTree:
        """`tree` with at most `budget.nodes` guesses more below `node`, at most `budget.depth` below it."""


@dataclass
class Member:
    """A drafter among others.

    Attributes:
        taps: where its taps are among the cascade's.
        record: accepted guesses a step that its trees had lately.
        seconds: that a proposal of its takes.
        resting: steps for which it is not asked.
    """

    drafter: Drafter
    taps: list[int]
    record: float = HOPE
    seconds: float = 0.0
    resting: int = 0

    def propose(self, budget: Budget) -> DraftTree:
        lap = Lap()
        tree = named(self.drafter.propose(budget), self.drafter.name)
        took = lap()
        self.seconds = took if self.seconds == 0 else 0.8 * self.seconds + 0.2 * took
        if self.record * budget.plain < self.seconds and budget.plain > 0:
            self.resting = int(self.seconds / (CHEAP * budget.plain))
        return tree


class CascadeDrafter:
    """Asks its drafters in the order given, the cheapest first.

    A drafter's tree promises the sum of its nodes' chances, or what the drafter's trees had accepted lately
    if it gives no chances (or has drawn its candidates: which tree is verified must not depend on what was
    drawn). Asking ends with a tree that promises more than the drafters after it had accepted lately. A
    drafter whose guesses save less time than they cost is asked now and then only, so that it does not
    hold up the others. Trees of drafters asked before are merged into the chosen one, best nodes first, and
    what is left of the budget goes to a drafter that can extend the most probable leaf.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if not drafters:
            raise ValueError("a cascade needs drafters")
        self.name = "+".join(drafter.name for drafter in drafters)
        self.taps = tuple(sorted({tap for drafter in drafters for tap in drafter.taps}))
        self._members = [Member(d, [self.taps.index(tap) for tap in d.taps]) for d in drafters]
        self._asked: list[tuple[Member, DraftTree]] = []

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._asked = []
        for member in self._members:
            member.drafter.begin(tokens, self._features(member, features))
            member.record, member.resting = HOPE, 0

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        for member, tree in self._asked:
            member.record = FADE * member.record + (1 - FADE) * right_guesses(tree, tokens)
        asked = [member for member, _ in self._asked]
        for member in self._members:
            if self._asked and member not in asked and not member.resting:
                member.record += RECOVERY * (HOPE - member.record)
            member.drafter.observe(tokens, self._features(member, features))
        self._asked = []

    def truncate(self, length: int) -> None:
        self._asked = []
        for member in self._members:
            member.drafter.truncate(length)

    def propose(self, budget: Budget) -> DraftTree:
        self._asked = []
        best, promise = None, -1.0
        able = [member for member in self._members if not member.resting] or self._members[:1]
        for member in self._members:
            member.resting = max(member.resting - 1, 0)
        for at, member in enumerate(able):
            tree = member.propose(budget)
            self._asked.append((member, tree))
            gives = promised(tree, member.record)
            if gives > promise:
                best, promise = tree, gives
            if promise >= max((later.record for later in able[at + 1 :]), default=0.0):
                break
        assert best is not None
        for _, tree in self._asked:
            if tree is not best:
                best = merge(best, tree, budget.nodes)
        return self._extend(best, budget)

    def _extend(self, tree: DraftTree, budget: Budget) -> DraftTree:
        """Spend what is left of the budget below the most probable leaf."""
        leaf, depths = likely_leaf(tree), tree.depths()
        left = Budget(budget.nodes + 1 - len(tree), budget.depth - int(depths[leaf]))
        if leaf == 0 or left.nodes <= 0 or left.depth <= 0:
            return tree
        for member in self._members:
            if isinstance(member.drafter, Extender) and tree.origins[leaf] != member.drafter.name:
                return member.drafter.extend(tree, leaf, left)
        return tree

    def _features(self, member: Member, features: FloatArray | None) -> FloatArray | None:
        return None if features is None or not member.taps else features[:, member.taps]


def named(tree: DraftTree, name: str) -> DraftTree:
    """The tree with origins and chances, if it had none: an unknown chance halves with each depth."""
    chances = tree.chances if tree.chances is not None else np.float32(0.5) ** tree.depths()
    origins = tree.origins or (name,) * len(tree)
    return DraftTree(tree.tokens, tree.parents, origins, tree.proposals, chances.astype(np.float32))


def promised(tree: DraftTree, record: float) -> float:
    """Accepted guesses to be expected."""
    if len(tree) == 1 or tree.proposals or tree.chances is None:
        return record if len(tree) > 1 else 0.0
    return float(tree.chances[1:].sum())


def right_guesses(tree: DraftTree, tokens: Sequence[int]) -> int:
    """How far the tree goes along with the tokens that were emitted."""
    children, node = tree.children(), 0
    for right, token in enumerate(tokens):
        node = next((child for child in children[node] if tree.tokens[child] == token), 0)
        if node == 0:
            return right
    return len(tokens)


def likely_leaf(tree: DraftTree) -> int:
    """The leaf that a walk along the most probable children comes to."""
    children, node = tree.children(), 0
    while children[node]:
        node = max(children[node], key=lambda child: 0.0 if tree.chances is None else tree.chances[child])
    return node


def merge(first: DraftTree, second: DraftTree, nodes: int) -> DraftTree:
    """All nodes of `first`, and the most probable of `second` that it does not have, at most `nodes` below
    the root.

    Drawn candidates are left as they are: others beside them would need a rule of their own.
    """
    if first.proposals or second.proposals or first.chances is None or second.chances is None:
        return first
    tokens, parents = first.tokens.tolist(), first.parents.tolist()
    origins, chances = list(first.origins), first.chances.tolist()
    known = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    place = {0: 0}  # nodes of `second` that the merged tree has
    for node in sorted(range(1, len(second)), key=lambda n: (-float(second.chances[n]), n)):  # type: ignore[index]
        parent, token = place.get(int(second.parents[node])), int(second.tokens[node])
        if parent is None:
            continue
        if (parent, token) not in known:
            if len(tokens) > nodes:
                continue
            known[parent, token] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            origins.append(second.origins[node])
            chances.append(min(float(second.chances[node]), chances[parent]))
        place[node] = known[parent, token]
    return DraftTree(
        np.array(tokens), np.array(parents), tuple(origins), {}, np.array(chances, dtype=np.float32)
    )
