"""A draft model: a smaller model of the same vocabulary runs ahead of the target.

Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318; trees that keep the most probable nodes as in
EAGLE-2, Li et al., 2406.16858. Every depth of a tree costs the draft model one forward, however many nodes it
has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from forerun.core.protocols import Budget
from forerun.core.tokens import TokenBuffer
from forerun.core.tree import DoubleArray, DraftTree, FloatArray, IntArray

MOST_SIBLINGS = 8
MOST_FOLLOWED = 2
"""Nodes of a depth that the draft model goes on from."""


class Guide(Protocol):
    """The draft model with its own cache: one sequence, and branches that go on from its end."""

    @property
    def length(self) -> int:
        """Tokens kept."""

    @property
    def capacity(self) -> int: ...

    def advance(self, tokens: IntArray) -> FloatArray:
        """Compute and keep tokens; float32 [vocabulary], the logits at the last."""

    def look(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        """Compute more nodes of a tree below what is kept, float32 [n, vocabulary]. parents: int32 [n], rows
        in the order they were looked at since something was kept or forgotten, or -1: what is kept."""

    def keep(self, path: IntArray) -> None:
        """Keep these of the rows looked at, each the child of the one before; forget the others."""

    def truncate(self, length: int) -> None: ...


class Ranked(Protocol):
    """Candidates for one position: `tokens` with the `chances` that the target says them, most promising
    first; `proposal`, float64 [vocabulary], is what they were drawn from without replacement, or None."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def chances(self) -> list[float]: ...
    @property
    def proposal(self) -> DoubleArray | None: ...


class Ranker(Protocol):
    """Turns the draft model's logits into candidates. `drawn`: they are draws, so which nodes a tree has must
    be settled before their tokens are known."""

    @property
    def drawn(self) -> bool: ...

    def rank(self, logits: FloatArray, history: IntArray, path: list[int], count: int) -> Ranked:
        """At most `count` candidates for what follows history + path."""


@dataclass
class Growing:
    """A tree being grown; node 0 is the root.

    Attributes:
        rows: which nodes the draft model has computed below the root, in the order of its rows.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    chances: list[float] = field(default_factory=lambda: [1.0])
    rows: list[int] = field(default_factory=list)
    proposals: dict[int, DoubleArray] = field(default_factory=dict)

    def add(self, parent: int, ranked: Ranked) -> list[int]:
        """Candidates become nodes; their numbers."""
        first = len(self.tokens)
        self.tokens += ranked.tokens
        self.parents += [parent] * len(ranked.tokens)
        self.chances += [self.chances[parent] * chance for chance in ranked.chances]
        if ranked.proposal is not None:
            self.proposals[parent] = ranked.proposal
        return list(range(first, len(self.tokens)))

    def best(self, count: int) -> list[int]:
        """The most probable nodes but the root, at most `count`, in that order; each follows its parent."""
        return sorted(range(1, len(self.tokens)), key=lambda node: (-self.chances[node], node))[:count]

    def path_tokens(self, node: int) -> list[int]:
        """The tokens below the root, down to `node`."""
        path = []
        while node:
            path.append(self.tokens[node])
            node = self.parents[node]
        return path[::-1]

    def only(self, nodes: list[int]) -> DraftTree:
        """The tree of these nodes, ascending, the root first and every node's parent among them."""
        place = {node: at for at, node in enumerate(nodes)}
        return DraftTree(
            [self.tokens[node] for node in nodes],
            [place.get(self.parents[node], -1) for node in nodes],
            proposals={place[node]: q for node, q in self.proposals.items() if node in place},
            chances=[self.chances[node] for node in nodes],
        )


class ModelDrafter:
    """Drafts with a model of its own.

    The model's cache holds a beginning of the text (`guide.length` tokens). What is accepted of a tree was
    computed for it already and is kept; the rest of the text is caught up with when the next tree is drafted.

    Args:
        guide: the draft model.
        ranker: what its logits mean.
        name: for reports.
        siblings: candidates that a node of a tree gets at most; 1 makes chains.
    """

    taps: tuple[int, ...] = ()

    def __init__(
        self, guide: Guide, ranker: Ranker, name: str = "draft", siblings: int = MOST_SIBLINGS
    ) -> None:
        self.name = name
        self._siblings = siblings
        self._guide = guide
        self._ranker = ranker
        self._text = TokenBuffer()
        self._grown: Growing | None = None

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._guide.truncate(0)
        self._text.truncate(0)
        self._grown = None
        self.observe(tokens.tolist(), features)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self._text.extend(tokens)
        self._keep(tokens)

    def truncate(self, length: int) -> None:
        self._text.truncate(length)
        self._guide.truncate(self._text.length - 1)
        self._grown = None

    def propose(self, budget: Budget) -> DraftTree:
        text = self._text.tokens
        depth = min(budget.depth, budget.nodes)
        room = self._guide.capacity - len(text)
        if depth < 1 or room < budget.nodes:  # the draft model's own context ends here
            return DraftTree.chain(int(text[-1]))
        self._guide.truncate(len(text) - 1)  # asked twice: the root's logits are wanted again
        logits = self._guide.advance(text[self._guide.length :])
        grown = self._grown = Growing([int(text[-1])])
        if self._ranker.drawn:
            return self._grow_drawn(grown, logits, budget.nodes, depth)
        return self._grow_ranked(grown, logits, budget.nodes, depth, budget.least_chance)

    def _grow_ranked(
        self, grown: Growing, logits: FloatArray, nodes: int, depth: int, least_chance: float
    ) -> DraftTree:
        """Depth by depth below the most probable nodes; the `nodes` most probable are kept. Deeper ones are
        less probable than what they follow: none is computed that cannot be kept or is less likely than
        `least_chance`, nor more than `nodes`."""
        siblings = min(nodes, self._siblings)
        level = grown.add(0, self._rank(grown, 0, logits, siblings))
        for _ in range(depth - 1):
            kept = grown.best(nodes)
            least = grown.chances[kept[-1]] if len(kept) == nodes else 0.0
            chosen = [node for node in kept if node in level and grown.chances[node] > least]
            chosen = [node for node in chosen if grown.chances[node] >= least_chance]
            chosen = chosen[: min(MOST_FOLLOWED, nodes - len(grown.rows))]
            if not chosen:
                break
            level = []
            for node, row in zip(chosen, self._look(grown, chosen), strict=True):
                level += grown.add(node, self._rank(grown, node, row, siblings))
        return grown.only([0, *sorted(grown.best(nodes))])

    def _grow_drawn(self, grown: Growing, logits: FloatArray, nodes: int, depth: int) -> DraftTree:
        """Depth by depth; how many draws a node gets is settled before they are made, by its own chance."""
        level, rows = [0], logits[None]
        for below in range(depth):
            draws = nodes // depth + (below < nodes % depth)
            by_chance = sorted(range(len(level)), key=lambda at: -grown.chances[level[at]])
            children = []
            for rank, at in enumerate(by_chance[:draws]):
                count = draws // len(level) + (rank < draws % len(level))
                children += grown.add(level[at], self._rank(grown, level[at], rows[at], count))
            level = children
            if below + 1 < depth:
                rows = self._look(grown, level)
        return grown.only(list(range(len(grown.tokens))))

    def _rank(self, grown: Growing, node: int, logits: FloatArray, count: int) -> Ranked:
        return self._ranker.rank(logits, self._text.tokens, grown.path_tokens(node), count)

    def _look(self, grown: Growing, nodes: list[int]) -> FloatArray:
        """Logits at these nodes, whose parents have been computed."""
        place = {node: row for row, node in enumerate(grown.rows)}
        grown.rows += nodes
        return self._guide.look(
            np.array([grown.tokens[node] for node in nodes], dtype=np.int32),
            np.array([place.get(grown.parents[node], -1) for node in nodes], dtype=np.int32),
        )

    def _keep(self, tokens: Sequence[int]) -> None:
        """Keep what the draft model has computed of the tokens just observed, but the last: its logits are
        wanted."""
        grown, self._grown = self._grown, None
        if grown is None:
            return
        children = {
            (grown.parents[node], grown.tokens[node]): (row, node) for row, node in enumerate(grown.rows)
        }
        node, path = 0, []
        for token in tokens[:-1]:
            if (node, token) not in children:
                break
            row, node = children[node, token]
            path.append(row)
        if path:
            self._guide.keep(np.array(path, dtype=np.int32))
