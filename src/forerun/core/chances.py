"""How likely guesses are: what their drafter says, set right by what became of guesses like them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from forerun.core.tree import DraftTree

MEMORY = 0.97
"""How much of a record stays when an outcome is added."""

TRUST = 8.0
"""Outcomes that the drafter's own opinion is worth."""

NO_OPINION, DOUBT = 0.4, 2.0
"""The chance of a guess that the drafter says nothing about, and outcomes that this is worth."""

CARRIED = 16.0
"""Outcomes that what earlier texts taught is worth when a text begins."""


@dataclass
class Record:
    """How often guesses of one kind were right, the last ones counting most."""

    right: float = 0.0
    seen: float = 0.0

    def add(self, right: bool) -> None:
        self.right = MEMORY * self.right + right
        self.seen = MEMORY * self.seen + 1.0

    def fade(self) -> None:
        """Another text begins: the same rate counts for less."""
        part = min(1.0, CARRIED / self.seen)
        self.right *= part
        self.seen *= part

    def chance(self, opinion: float, trust: float) -> float:
        """Of the next guess; `opinion` counts as so many outcomes."""
        return (self.right + trust * opinion) / (self.seen + trust)


Kind: TypeAlias = tuple[str, int]
"""What guesses are counted together with: their drafter, and how sure it was in tenths. Where it has no
opinion, minus how deep they are."""


@dataclass(frozen=True)
class Judged:
    """A tree's nodes: `kinds`, and the `chances` that the text goes through them; 1 at the root."""

    kinds: list[Kind]
    chances: list[float]


class Records:
    """What became of guesses, by kind."""

    def __init__(self) -> None:
        self._records: dict[Kind, Record] = {}

    def begin(self) -> None:
        """Another text begins."""
        for record in self._records.values():
            record.fade()

    def judge(self, tree: DraftTree) -> Judged:
        """Of drawn candidates the chances depend on their depths alone: which are verified must not depend on
        what was drawn."""
        names = tree.origins or ("",) * len(tree)
        opinions = None if tree.chances is None or tree.proposals else tree.chances.tolist()
        kinds: list[Kind] = [("", 0)]
        chances, depths = [1.0], [0]
        for node, parent in enumerate(tree.parents.tolist()[1:], start=1):
            if opinions is None:
                depths.append(depths[parent] + 1)
                opinion, trust, kind = NO_OPINION, DOUBT, (names[node], -depths[node])
            else:
                opinion = opinions[node] / max(opinions[parent], 1e-9)
                trust, kind = TRUST, (names[node], int(min(10.0 * opinion, 10.0)))
            record = self._records.get(kind)
            kinds.append(kind)
            chances.append(chances[parent] * (opinion if record is None else record.chance(opinion, trust)))
        return Judged(kinds, chances)

    def learn(self, tree: DraftTree, kinds: Sequence[Kind], tokens: Sequence[int]) -> list[int]:
        """The text went on with `tokens` after the tree's root; the nodes that guessed that."""
        children, guesses, node = tree.children(), tree.tokens.tolist(), 0
        path: list[int] = []
        for token in tokens:
            right = next((child for child in children[node] if guesses[child] == token), None)
            for child in children[node]:
                self._records.setdefault(kinds[child], Record()).add(child == right)
            if right is None:
                break
            node = right
            path.append(node)
        return path
