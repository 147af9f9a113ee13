"""Several drafters as one: all read along, each adds to the tree what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from forerun.core.protocols import Budget, Drafter
from forerun.core.tree import DraftTree, FloatArray, IntArray

SURE = 1.0
"""Accepted guesses that a tree must promise to be preferred to candidates that were drawn."""


@runtime_checkable
class Extender(Protocol):
    """A drafter that can go on from any node of another one's tree."""

    @property
    def name(self) -> str: ...

    def extend(self, tree: DraftTree, node: int, budget: Budget) -> DraftTree:
        """`tree` with at most `budget.nodes` guesses more below `node`, at most `budget.depth` below it."""


@dataclass(frozen=True)
class Member:
    """A drafter among others; `taps` is where its taps are among the cascade's, None if they are the same."""

    drafter: Drafter
    taps: list[int] | None

    def features(self, all_taps: FloatArray | None) -> FloatArray | None:
        if all_taps is None or self.taps is None:
            return all_taps
        return all_taps[:, self.taps] if self.taps else None


class CascadeDrafter:
    """Asks its drafters in the order given, the cheapest first, each knowing what those before it found.

    Their trees are merged, the most probable nodes first, and what is left of the budget goes to a drafter
    that can extend the most probable leaf. Which of them are asked is not decided here: a drafter that takes
    time is given a pace (`drafters.paced`).
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if not drafters:
            raise ValueError("a cascade needs drafters")
        self.name = "+".join(drafter.name for drafter in drafters)
        self.taps = tuple(sorted({tap for drafter in drafters for tap in drafter.taps}))
        self._members = [
            Member(d, None if d.taps == self.taps else [self.taps.index(tap) for tap in d.taps])
            for d in drafters
        ]
        self._extenders = [drafter for drafter in drafters if isinstance(drafter, Extender)]

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        for member in self._members:
            member.drafter.begin(tokens, member.features(features))

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        for member in self._members:
            member.drafter.observe(tokens, member.features(features))

    def truncate(self, length: int) -> None:
        for member in self._members:
            member.drafter.truncate(length)

    def propose(self, budget: Budget) -> DraftTree:
        first, *others = self._members
        tree = named(first.drafter.propose(budget), first.drafter.name)
        for member in others:
            found = member.drafter.propose(Budget(budget.nodes, budget.depth, tree))
            if len(found) > 1:
                tree = merge(tree, named(found, member.drafter.name), budget.nodes)
        return tree if len(tree) == 1 else self._extend(tree, budget)

    def _extend(self, tree: DraftTree, budget: Budget) -> DraftTree:
        """Spend what is left of the budget below the most probable leaf."""
        if len(tree) > budget.nodes:
            return tree
        leaf = likely_leaf(tree)
        left = Budget(budget.nodes + 1 - len(tree), budget.depth - tree.depths[leaf])
        for extender in self._extenders:
            if left.depth > 0 and tree.origins[leaf] != extender.name:
                return extender.extend(tree, leaf, left)
        return tree


def named(tree: DraftTree, name: str) -> DraftTree:
    """The tree with origins and chances, if it had none: an unknown chance halves with each depth."""
    if len(tree) == 1 or (tree.origins and tree.odds is not None):
        return tree
    odds = [0.5**depth for depth in tree.depths] if tree.odds is None else tree.odds
    return DraftTree.made(tree.ids, tree.above, tree.origins or (name,) * len(tree), tree.proposals, odds)


def likely_leaf(tree: DraftTree) -> int:
    """The leaf that a walk along the most probable children comes to."""
    children, odds, node = tree.children, tree.odds or [0.0] * len(tree), 0
    while children[node]:
        node = max(children[node], key=odds.__getitem__)
    return node


def merge(first: DraftTree, second: DraftTree, nodes: int) -> DraftTree:
    """The nodes of both trees, at most the `nodes` most probable below the root. A node that both have is
    the one's that is surer of it.

    Drawn candidates are left as they are (others beside them would need a rule of their own), and dropped for
    a first tree that promises much.
    """
    if len(first) == 1 or len(second) == 1:
        return second if len(first) == 1 else first
    if first.odds is None or second.odds is None:
        return first
    if first.proposals or second.proposals:
        return first if first.proposals or sum(first.odds[1:]) >= SURE else second
    tokens, parents = first.ids.copy(), first.above.copy()
    origins, chances = list(first.origins), first.odds.copy()
    known = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    guesses, above, sure = second.ids, second.above, second.odds
    place = [0]  # of the nodes of `second` in the merged tree
    for node in range(1, len(second)):
        parent, chance = place[above[node]], sure[node]
        at = known.setdefault((parent, guesses[node]), len(tokens))
        place.append(at)
        if at == len(tokens):
            tokens.append(guesses[node])
            parents.append(parent)
            origins.append(second.origins[node])
            chances.append(min(chance, chances[parent]))
        elif chance > chances[at]:
            origins[at], chances[at] = second.origins[node], min(chance, chances[parent])
    tree = DraftTree.made(tokens, parents, tuple(origins), odds=chances)
    if len(tree) <= nodes + 1:
        return tree
    best = sorted(range(1, len(tree)), key=lambda node: -chances[node])[:nodes]
    return tree.only([0, *sorted(best)])
