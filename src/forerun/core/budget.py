"""Budgets: how much may be drafted in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.protocols import Budget
from forerun.core.report import Report
from forerun.core.tree import DraftTree


@dataclass(frozen=True)
class FixedBudget:
    """The same budget every step.

    Attributes:
        nodes: guesses a step; 0 is plain decoding.
        depth: longest branch.
    """

    nodes: int = 8
    depth: int = 8

    def __post_init__(self) -> None:
        if self.nodes < 0 or self.depth < 0:
            raise ValueError(f"a budget cannot be negative: nodes {self.nodes}, depth {self.depth}")

    def plan(self, report: Report, room: int) -> Budget:
        """Always the same: the engine clamps it to the room there is."""
        return Budget(self.nodes, self.depth)

    def trim(self, tree: DraftTree, seconds: float) -> DraftTree:
        """All of it is verified."""
        return tree

    def learn(self, tree: DraftTree, tokens: Sequence[int], rows: int, seconds: float | None) -> None:
        """Nothing changes."""
