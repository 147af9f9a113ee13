"""Drafters that mean ill, and one that knows the answer and hides it among garbage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree, FloatArray, IntArray

OUTSIDE = [-1, -(2**31), 2**31 - 1, 2**40]


class ChaosDrafter:
    """Random trees of any size, whatever the budget says: wrong tokens, duplicates, end tokens, ids outside
    the vocabulary, the wrong root, nothing at all. With chance `knows` a node carries the token that `truth`
    has at its place, so that long acceptance, late rejection and every cut inside an accepted block happen
    too.

    Args:
        truth: the text that plain decoding writes, prompt included.
    """

    name = "chaos"

    def __init__(
        self, seed: int, truth: Sequence[int], knows: float, most_nodes: int, vocab_size: int,
        taps: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.taps = taps
        self._draw = np.random.default_rng(seed)
        self._truth = list(truth)
        self._knows = knows
        self._most = most_nodes
        self._vocab = vocab_size
        self._text: list[int] = []
        self.pairs = 0
        """Features seen, each with the token that follows it."""

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._text = tokens.tolist()
        self.pairs = 0

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self._text += tokens
        if self.taps:
            assert features is not None
            assert features.shape[:2] == (len(tokens), len(self.taps))
            self.pairs += len(tokens)

    def truncate(self, length: int) -> None:
        del self._text[length:]

    def propose(self, budget: Budget) -> DraftTree:
        draw = self._draw
        root = self._text[-1] if draw.random() < 0.9 else int(draw.integers(self._vocab))
        tokens, parents, depths = [root], [-1], [0]
        for node in range(1, int(draw.integers(self._most + 1)) + 1):
            parent = node - 1 if draw.random() < 0.6 else int(draw.integers(node))
            place = len(self._text) + depths[parent]
            kind = draw.random()
            if kind < self._knows and place < len(self._truth):
                token = self._truth[place]
            elif kind > 0.95:
                token = OUTSIDE[int(draw.integers(len(OUTSIDE)))]
            elif kind > 0.9:
                token = self._vocab - 1
            elif kind > 0.85:
                token = tokens[-1]
            else:
                token = int(draw.integers(self._vocab))
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
        origins = tuple(f"chaos{node % 2}" for node in range(len(tokens))) if draw.random() < 0.5 else ()
        return DraftTree(np.array(tokens, dtype=np.int64), np.array(parents), origins)
