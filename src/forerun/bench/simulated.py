"""A drafter that is told the answer, to time what speculation would give at a known acceptance.

For models whose own text means nothing (random weights, to time a shape) or for drafters that do not exist
yet. What it gives is a simulation and must be called one wherever it is shown; its name says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree, FloatArray, IntArray


class SimulatedDrafter:
    """Proposes chains in which each token is the true continuation with probability `acceptance`, and a wrong
    one otherwise. Drafting takes no time, which is part of the simulation.

    Args:
        truth: the text that plain decoding writes, prompt included.
        acceptance: between 0 and 1.
        vocab_size: of the target.
        seed: of the wrong guesses.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, truth: Sequence[int], acceptance: float, vocab_size: int, seed: int = 0) -> None:
        self.name = f"simulated:{acceptance:g}"
        self._truth = np.array(truth, dtype=np.int32)
        self._acceptance = acceptance
        self._vocab = vocab_size
        self._draw = np.random.default_rng(seed)
        self._length = 0
        self._last = 0

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._length = len(tokens)
        self._last = int(tokens[-1])

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self._length += len(tokens)
        if tokens:
            self._last = int(tokens[-1])

    def truncate(self, length: int) -> None:
        self._length = length
        self._last = int(self._truth[length - 1])

    def propose(self, budget: Budget) -> DraftTree:
        depth = min(budget.depth, budget.nodes)
        guesses = self._truth[self._length : self._length + depth].copy()
        wrong = self._draw.random(len(guesses)) >= self._acceptance
        guesses[wrong] = (guesses[wrong] + 1) % self._vocab
        tree = DraftTree.chain(self._last, guesses.tolist())
        return DraftTree(tree.ids, tree.above, chances=[self._acceptance**depth for depth in tree.depths])
