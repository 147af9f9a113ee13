"""A budget by cost: verify what pays, and nothing else.

A step over a tree of which k nodes are verified emits 1 + sum(p_i) tokens on average, where p_i is the chance
that the text goes through node i, and takes t(1 + k) seconds and the drafter's. The nodes with the largest
chances are the best k, so the step that is worth most is the k with the largest

    (1 + p_1 + ... + p_k) / (t(1 + k) + draft)            (Leviathan et al., arXiv 2211.17192, for trees and a
                                                           measured t as in Sequoia, 2402.12374)

k = 0 is plain decoding and always among them: a drafter that does not pay is not verified. Its guesses are
still compared with the text, which costs nothing, so it comes back when it would pay again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.core.curve import CostCurve
from forerun.core.protocols import Budget
from forerun.core.report import Report
from forerun.core.tree import DoubleArray, DraftTree

MEMORY = 0.97
"""How much of a record stays when an outcome is added."""

DOUBT = 2.0
"""Outcomes that the drafter's own opinion is worth."""

EDGE = 1.02
"""Guesses are verified if that promises at least so many times plain decoding's speed: less is noise."""

NO_OPINION = 0.4
"""The chance of a guess that the drafter says nothing about."""

CARRIED = 8.0
"""Outcomes that what earlier texts taught is worth when a text begins."""

PROBE = 2
"""Guesses a step of a drafter that is watched but not verified."""

CHEAP = 0.02
"""A drafter that takes less than this part of a plain step is asked every step."""

FIRST_DEPTH = 4
"""How deep a drafter is asked before it is known what that takes."""


@dataclass
class Record:
    """How often guesses of one kind were right, the last ones counting most."""

    right: float = 0.0
    seen: float = 0.0

    def add(self, right: bool) -> None:
        self.right = MEMORY * self.right + right
        self.seen = MEMORY * self.seen + 1.0

    def carried(self) -> Record:
        """The same rate, as far as it counts for another text."""
        part = min(1.0, CARRIED / self.seen)
        return Record(self.right * part, self.seen * part)

    def chance(self, opinion: float) -> float:
        return (self.right + DOUBT * opinion) / (self.seen + DOUBT)


Kind: TypeAlias = tuple[str, str, int]
"""What guesses are counted together with: their drafter, and how sure it was or how deep they are."""


@dataclass
class Experience:
    """What earlier texts taught of a drafter.

    Attributes:
        records: how often guesses of each kind were right.
        draft: seconds a proposal takes, lately; 0 while it is not known, or does not count.
        level: seconds that a depth of a proposal takes.
        resting: steps for which the drafter is still left alone.
    """

    records: dict[Kind, Record] = field(default_factory=dict)
    draft: float = 0.0
    level: float = 0.0
    resting: int = 0


class CostBudget:
    """Implements `core.protocols.Policy`.

    Args:
        curve: of the target.
        nodes, depth: the most ever proposed.
        rests: whether a drafter that takes time and does not pay is left alone for some steps. If not, what
            it takes is not counted either: it is asked anyway.
        experience: of earlier texts, where a new one begins; what this text teaches is added to it. It
            changes the time a text takes, never the text.
    """

    def __init__(
        self,
        curve: CostCurve,
        nodes: int = 15,
        depth: int = 12,
        *,
        rests: bool = True,
        experience: Experience | None = None,
    ) -> None:
        self._curve = curve
        self._rests = rests
        self._most = Budget(nodes, depth)
        self._known = Experience() if experience is None else experience
        self._records = {kind: record.carried() for kind, record in self._known.records.items()}
        self._pays = True
        self._asked = False
        self._first = True  # no proposal yet: the first one has the whole prompt to catch up with
        self._reach = [0.5**d for d in range(depth + 1)]  # chance to be right so deep

    def plan(self, report: Report, room: int) -> Budget:
        self._asked = self._known.resting == 0
        if not self._asked:
            self._known.resting -= 1
            return Budget(0, 0)
        if not self._pays and self._known.draft < CHEAP * self._curve(1):
            return Budget(PROBE, PROBE)
        if self._known.draft < CHEAP * self._curve(1):
            unknown = self._rests and self._known.draft == 0
            depth = min(FIRST_DEPTH, self._most.depth) if unknown else self._most.depth
            return Budget(self._most.nodes, depth, self._curve(1))
        return Budget(self._most.nodes, self._paying_depth(), self._curve(1))

    def _paying_depth(self) -> int:
        """How deep an expensive drafter is asked: as deep as a chain is worth most."""
        best, value, expected = 1, 0.0, 1.0
        for depth in range(1, self._most.depth + 1):
            expected += self._reach[depth]
            worth = expected / (self._curve(1 + depth) + depth * self._known.level)
            if worth > value:
                best, value = depth, worth
        return best

    def trim(self, tree: DraftTree, seconds: float) -> DraftTree:
        """The part of the proposed tree that is worth verifying; `seconds`: what proposing took."""
        if not self._asked:
            return tree
        known = self._known
        if self._rests and not self._first:
            known.draft = seconds if known.draft == 0 else 0.8 * known.draft + 0.2 * seconds
        plain = self._curve(1)
        chances = self._chances(tree)
        self._remember_reach(tree, chances, seconds)
        order = np.argsort(-chances[1:], kind="stable") + 1
        best, value, expected = 0, EDGE / plain, 1.0
        for k, node in enumerate(order.tolist(), start=1):
            expected += float(chances[node])
            worth = expected / (self._curve(1 + k) + self._known.draft)
            if worth > value and (k == len(order) or not self._tied(tree, chances, order, k)):
                best, value = k, worth
        self._pays = best > 0
        self._rest(seconds, plain)
        self._first = False
        if best == len(tree) - 1:
            return tree
        return tree.only(sorted([0, *order[:best].tolist()]))

    def learn(self, tree: DraftTree, tokens: Sequence[int], rows: int, seconds: float | None) -> None:
        """What came of a step.

        Args:
            tree: as it was proposed.
            tokens: that were emitted.
            rows, seconds: of the target's forward, if it was for this tree alone.
        """
        if seconds is not None:
            self._curve.saw(rows, seconds)
        if len(tree) == 1:
            return
        children, kinds, node = tree.children(), self._kinds(tree), 0
        for token in tokens:
            match = next((child for child in children[node] if tree.tokens[child] == token), None)
            for child in children[node]:
                for records in (self._records, self._known.records):
                    records.setdefault(kinds[child], Record()).add(child == match)
            if match is None:
                break
            node = match

    def _remember_reach(self, tree: DraftTree, chances: DoubleArray, seconds: float) -> None:
        """How likely the best guess of each depth was, and what a depth took."""
        depths = tree.depths().tolist()
        deepest = max(depths)
        if deepest == 0:
            return
        if not self._first:
            level, before = seconds / deepest, self._known.level
            self._known.level = level if before == 0 else 0.8 * before + 0.2 * level
        best = [0.0] * (deepest + 1)
        for depth, chance in zip(depths, chances.tolist(), strict=True):
            best[depth] = max(best[depth], chance)
        for depth in range(1, min(deepest, self._most.depth) + 1):
            self._reach[depth] += 0.2 * (best[depth] - self._reach[depth])
        ratio = self._reach[deepest] / max(self._reach[deepest - 1], 1e-9)
        for depth in range(deepest + 1, self._most.depth + 1):  # deeper than asked: as it went on so far
            self._reach[depth] = self._reach[depth - 1] * min(ratio, 1.0)

    def _rest(self, seconds: float, plain: float) -> None:
        """An expensive drafter that does not pay is left alone for so long, in this text and the next, that
        what asking took is a small part of it."""
        if self._rests and not self._pays and seconds >= CHEAP * plain:
            self._known.resting = int(seconds / (CHEAP * plain))

    def _tied(self, tree: DraftTree, chances: DoubleArray, order: npt.NDArray[np.int64], k: int) -> bool:
        """Whether a cut after k nodes would look at what was drawn: candidates that were drawn (for the
        rejection rule) are kept or dropped a whole depth at a time."""
        return bool(tree.proposals) and chances[order[k - 1]] == chances[order[k]]

    def _kinds(self, tree: DraftTree) -> list[Kind]:
        """What each guess is counted with: its drafter, and how sure that was (in tenths) or its depth."""
        names = tree.origins or ("",) * len(tree)
        if tree.chances is None or tree.proposals:
            return [(name, "depth", depth) for name, depth in zip(names, tree.depths().tolist(), strict=True)]
        above = np.maximum(tree.chances[np.maximum(tree.parents, 0)], 1e-9)
        tenths = np.minimum(10.0 * tree.chances / above, 10.0).astype(int).tolist()
        return [(name, "chance", tenth) for name, tenth in zip(names, tenths, strict=True)]

    def _chances(self, tree: DraftTree) -> DoubleArray:
        """float64 [n]: the chance that the text goes through each node, by opinion and record."""
        kinds = self._kinds(tree)
        opinions = None if tree.chances is None or tree.proposals else tree.chances.tolist()
        found = [1.0] * len(tree)
        for node, parent in enumerate(tree.parents.tolist()[1:], start=1):
            opinion = NO_OPINION if opinions is None else opinions[node] / max(opinions[parent], 1e-9)
            record = self._records.get(kinds[node])
            found[node] = found[parent] * (opinion if record is None else record.chance(opinion))
        return np.array(found)
