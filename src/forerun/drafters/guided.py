"""A drafter under a grammar: what the grammar forces is drafted for free, and what it forbids is left out.

Where the grammar lets a single token follow, that token is right for certain. The wrapped drafter goes on
behind such tokens; its guesses are kept as far as the grammar allows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from forerun.core.protocols import Budget, Drafter
from forerun.core.tree import DraftTree, FloatArray, IntArray
from forerun.drafters.cascade import Extender, merge, named

FORCED = "grammar"
"""Who drafted a forced token, in reports."""


class Guide(Protocol):
    """What a grammar says about a text. `history` is all of it, int32."""

    def forced(self, history: IntArray, most: int) -> list[int]:
        """The tokens, at most so many, that must follow because nothing else may."""

    def fitting(self, history: IntArray, path: list[int]) -> int:
        """How many tokens of `path` may follow, from its first on."""


class GuidedDrafter:
    """Another drafter, with a grammar's help.

    Args:
        drafter: that guesses where the grammar leaves a choice.
        guide: the grammar.
    """

    def __init__(self, drafter: Drafter, guide: Guide) -> None:
        self.name = drafter.name
        self.taps = drafter.taps
        self._drafter = drafter
        self._guide = guide
        self._text = np.zeros(256, dtype=np.int32)
        self._length = 0

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._length = 0
        self._append(tokens.tolist())
        self._drafter.begin(tokens, features)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self._append(tokens)
        self._drafter.observe(tokens, features)

    def truncate(self, length: int) -> None:
        self._length = min(self._length, length)
        self._drafter.truncate(length)

    def propose(self, budget: Budget) -> DraftTree:
        text = self._text[: self._length]
        forced = self._guide.forced(text, min(budget.nodes, budget.depth))
        if not forced:
            return self._pruned(self._drafter.propose(budget))
        chain = DraftTree.chain(int(text[-1]), forced)
        chain = DraftTree(
            chain.tokens, chain.parents, (FORCED,) * len(chain), {}, np.ones(len(chain), dtype=np.float32)
        )
        left = Budget(budget.nodes - len(forced), budget.depth - len(forced))
        if left.nodes <= 0 or left.depth <= 0:
            return chain
        if isinstance(self._drafter, Extender):
            return self._pruned(self._drafter.extend(chain, len(forced), left))
        guesses = self._drafter.propose(budget)
        return self._pruned(merge(chain, named(guesses, self.name), budget.nodes))

    def _append(self, tokens: Sequence[int]) -> None:
        end = self._length + len(tokens)
        if end > self._text.size:
            self._text = np.concatenate([self._text, np.zeros(end, dtype=np.int32)])
        self._text[self._length : end] = tokens
        self._length = end

    def _pruned(self, tree: DraftTree) -> DraftTree:
        """The tree without nodes that the grammar forbids.

        Drawn candidates stay, all of them: the rejection rule refuses the forbidden ones, and must see them
        to know what is left.
        """
        if len(tree) == 1 or tree.proposals:
            return tree
        text = self._text[: self._length]
        kept = {0}
        for leaf, children in enumerate(tree.children()):
            if not children:
                path = tree.path(leaf)
                fits = self._guide.fitting(text, tree.tokens[path[1:]].tolist())
                kept.update(path[: fits + 1])
        return tree if len(kept) == len(tree) else tree.only(sorted(kept))
