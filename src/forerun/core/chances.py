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

FIRM, KEPT = 4.0, 0.99
"""How much a drafter must have promised for what came of it to count as much as what was thought before; and
how much of that stays when an outcome is added."""


def reliance(temperature: float) -> float:
    """The part of what drafters promise that comes true, before anything is known of them.

    Measured on answers of the default model: 1.0 at temperature 0, 0.9 at 0.5 and 0.7, 0.73 at 1; at 1.5 0.45
    of what a head promises, and less of what suffix matching does.
    """
    return 1.0 / (1.0 + 0.5 * temperature * temperature)


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


@dataclass
class Promise:
    """What a drafter's guesses were said to be worth together, and what they were: guesses of all kinds tell
    at once whether it is too sure of itself."""

    right: float
    said: float

    def add(self, right: bool, said: float) -> None:
        self.right = KEPT * self.right + right
        self.said = KEPT * self.said + said


Kind: TypeAlias = tuple[str, int]
"""What guesses are counted together with: their drafter, and how sure it was in tenths. Where it has no
opinion, minus how deep they are."""


@dataclass(frozen=True)
class Judged:
    """A tree's nodes: `kinds`; what is `said` of their chances where their parents are right; and the
    `chances` that the text goes through them, 1 at the root."""

    kinds: list[Kind]
    said: list[float]
    chances: list[float]


class Records:
    """What became of guesses, by kind.

    Args:
        reliance: the part of what drafters promise that comes true, before anything is known of them.
    """

    def __init__(self, reliance: float = 1.0) -> None:
        self.reliance = reliance
        self._records: dict[Kind, Record] = {}
        self._promises: dict[str, Promise] = {}

    def begin(self) -> None:
        """Another text begins."""
        for record in self._records.values():
            record.fade()

    def judge(self, tree: DraftTree) -> Judged:
        """Of drawn candidates the chances depend on their depths alone: which are verified must not depend on
        what was drawn."""
        names, depths = tree.origins or ("",) * len(tree), tree.depths
        opinions = None if tree.proposals else tree.odds
        kept = {name: promise.right / promise.said for name, promise in self._promises.items()}
        kinds: list[Kind] = [("", 0)]
        said, chances = [1.0], [1.0]
        for node, parent in enumerate(tree.above[1:], start=1):
            name = names[node]
            if opinions is None:
                opinion, trust, kind = NO_OPINION, DOUBT, (name, -depths[node])
            else:
                opinion = opinions[node] / max(opinions[parent], 1e-9)
                trust, kind = TRUST, (name, int(min(10.0 * opinion, 10.0)))
            chance = min(opinion * kept.get(name, self.reliance), 1.0)
            record = self._records.get(kind)
            kinds.append(kind)
            said.append(opinion)
            chances.append(chances[parent] * (chance if record is None else record.chance(chance, trust)))
        return Judged(kinds, said, chances)

    def learn(self, tree: DraftTree, judged: Judged, tokens: Sequence[int]) -> list[int]:
        """The text went on with `tokens` after the tree's root; the nodes that guessed that."""
        children, guesses, node = tree.children, tree.ids, 0
        path: list[int] = []
        for token in tokens:
            right = next((child for child in children[node] if guesses[child] == token), None)
            for child in children[node]:
                self._add(judged.kinds[child], judged.said[child], child == right)
            if right is None:
                break
            node = right
            path.append(node)
        return path

    def _add(self, kind: Kind, said: float, right: bool) -> None:
        if kind not in self._records:
            self._records[kind] = Record()
        self._records[kind].add(right)
        name = kind[0]
        if name not in self._promises:
            self._promises[name] = Promise(FIRM * self.reliance, FIRM)
        self._promises[name].add(right, said)
