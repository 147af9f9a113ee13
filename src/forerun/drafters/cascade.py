"""Several drafters as one: all read along, each adds to the tree what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from forerun._core import likely_leaf, merge
from forerun.core.protocols import Budget, Drafter
from forerun.core.tree import DraftTree, FloatArray, IntArray


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
        tree = first.drafter.propose(budget).named(first.drafter.name)
        for member in others:
            found = member.drafter.propose(budget._replace(beside=tree))
            if len(found) > 1:
                tree = merge(tree, found.named(member.drafter.name), budget.nodes)
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
