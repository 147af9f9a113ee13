"""A drafter under a grammar: what the grammar forces is drafted for free, and what it forbids is left out.

Where the grammar lets a single token follow, that token is right for certain. Where it lets few follow, the
text has habits: how it spells a colon, where it breaks lines. Places of one kind allow the same set of
tokens, whatever the text there is about, so by that set, and the token before, a habit is looked up. Such
guesses come first, the wrapped drafter goes on behind them, and its guesses are kept as far as the grammar
allows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forerun._core import merge
from forerun.core.protocols import Budget, Drafter
from forerun.core.tokens import TokenBuffer
from forerun.core.tree import DraftTree, FloatArray, IntArray
from forerun.drafters.cascade import Extender
from forerun.errors import ForerunError

NAME = "grammar"
"""Who drafted such a token, in reports."""

FEW = 256
"""A set of tokens in more words of 32 than this allows text, and text has no habits."""

MOST_HABITS = 4096

CHANCES = (0.85, 0.6)
"""Of a habit: where the token before is the same too, and elsewhere."""

LEAST_CHANCE = 0.25
"""A chain of habits that is less likely goes no further."""


class Place(Protocol):
    """What may follow a text."""

    @property
    def allowed(self) -> npt.NDArray[np.uint32] | None:
        """The set of tokens, a bit each; None: all."""

    @property
    def only(self) -> int:
        """The one token that may follow where there is no choice, else -1."""

    @property
    def complete(self) -> bool:
        """The text must end here."""


class Constraint(Protocol):
    """What a grammar says about a text. `history` is all of it, int32; `path` is drafted after it."""

    @property
    def start(self) -> int:
        """Tokens before the answer: the grammar is about those behind them."""

    def place(self, history: IntArray, path: list[int]) -> Place:
        """What may follow history + path."""

    def fitting(self, history: IntArray, path: list[int]) -> int:
        """How many tokens of `path` may follow, from its first on."""


class GuidedDrafter:
    """Another drafter, with a grammar's help.

    Args:
        drafter: that guesses where the grammar leaves a choice.
        constraint: the grammar.
    """

    def __init__(self, drafter: Drafter, constraint: Constraint) -> None:
        self.name = drafter.name
        self.taps = drafter.taps
        self._drafter = drafter
        self._constraint = constraint
        self._text = TokenBuffer()
        self._habits: dict[tuple[int, int], int] = {}

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._text.truncate(0)
        self._habits = {}
        self._append(tokens.tolist())
        self._drafter.begin(tokens, features)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self._append(tokens)
        self._drafter.observe(tokens, features)

    def truncate(self, length: int) -> None:
        self._text.truncate(length)
        self._drafter.truncate(length)

    def propose(self, budget: Budget) -> DraftTree:
        text = self._text.tokens
        tokens, chances = self._likely(text, min(budget.nodes, budget.depth))
        if not tokens:
            return self._pruned(self._drafter.propose(budget))
        length = len(tokens) + 1
        chain = DraftTree(
            [int(text[-1]), *tokens], list(range(-1, length - 1)), (NAME,) * length, chances=[1.0, *chances]
        )
        left = Budget(budget.nodes - len(tokens), budget.depth - len(tokens))
        if left.nodes <= 0 or left.depth <= 0:
            return chain
        if isinstance(self._drafter, Extender):
            return self._pruned(self._drafter.extend(chain, len(tokens), left))
        guesses = self._drafter.propose(budget._replace(beside=chain))
        return self._pruned(merge(chain, guesses.named(self.name), budget.nodes))

    def _append(self, tokens: Sequence[int]) -> None:
        first = self._text.length
        self._text.extend(tokens)
        text = self._text.tokens
        for at in range(max(first, self._constraint.start), len(text)):
            self._learn(text[:at], int(text[at]))

    def _learn(self, text: IntArray, token: int) -> None:
        """What followed the text where it had a choice."""
        try:
            place = self._constraint.place(text, [])
        except ForerunError:
            return
        if place.only < 0 and (kind := _kind(place)):
            if len(self._habits) >= MOST_HABITS:
                self._habits = {}
            self._habits[kind, int(text[-1])] = self._habits[kind, -1] = token

    def _likely(self, text: IntArray, most: int) -> tuple[list[int], list[float]]:
        """Tokens that must or usually do follow, and for each the chance that the text goes through it."""
        tokens: list[int] = []
        chances: list[float] = []
        last, sure = int(text[-1]), 1.0
        while len(tokens) < most:
            try:
                place = self._constraint.place(text, tokens)
            except ForerunError:  # said when the text gets there, if it does
                break
            token = place.only
            if token < 0:
                token, chance = self._habit(_kind(place), last)
                sure *= chance
            if token < 0 or sure < LEAST_CHANCE:
                break
            tokens.append(token)
            chances.append(sure)
            last = token
        return tokens, chances

    def _habit(self, kind: int, last: int) -> tuple[int, float]:
        """The token that followed at the last place of this kind, and its chance; -1 if there was none."""
        for before, chance in zip((last, -1), CHANCES, strict=True):
            if (token := self._habits.get((kind, before), -1)) >= 0:
                return token, chance
        return -1, 0.0

    def _pruned(self, tree: DraftTree) -> DraftTree:
        """The tree without nodes that the grammar forbids.

        Drawn candidates stay, all of them: the rejection rule refuses the forbidden ones, and must see them
        to know what is left.
        """
        if len(tree) == 1 or tree.drawn:
            return tree
        text, ids = self._text.tokens, tree.ids
        kept = {0}
        for leaf, children in enumerate(tree.children):
            if not children:
                path = tree.path(leaf)
                fits = self._constraint.fitting(text, [ids[node] for node in path[1:]])
                kept.update(path[: fits + 1])
        return tree if len(kept) == len(tree) else tree.only(sorted(kept))


def _kind(place: Place) -> int:
    """A number for the set of tokens that are allowed; 0 where that is no small set."""
    if place.complete or place.allowed is None or np.count_nonzero(place.allowed) > FEW:
        return 0
    return hash(place.allowed.tobytes())
