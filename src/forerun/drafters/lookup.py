"""Prompt lookup: guess that what followed the last few tokens before will follow them again.

Saxena, "Prompt Lookup Decoding" (2023); Yang et al., "Inference with Reference", arXiv 2304.04487.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree, FloatArray, IntArray


class LookupDrafter:
    """A chain copied from behind the latest earlier place where the text's longest n-gram ending occurs.

    The index holds, for each n, where each n-gram last ended. A token costs `max_ngram` dictionary writes and
    a draft at most `max_ngram` reads: neither grows with the text.
    """

    name = "lookup"
    taps: tuple[int, ...] = ()

    def __init__(self, max_ngram: int = 4, min_ngram: int = 1) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"n-grams of {min_ngram} to {max_ngram} tokens make no sense")
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self._text: list[int] = []
        self._after: list[dict[tuple[int, ...], int]] = []

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._text = []
        self._after = [{} for _ in self.sizes]
        self.observe(tokens.tolist(), features)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        text = self._text
        for token in tokens:
            end = len(text)  # n-grams that end here have something after them only now
            for size, after in zip(self.sizes, self._after, strict=True):
                if size <= end:
                    after[tuple(text[end - size : end])] = end
            text.append(token)

    def propose(self, budget: Budget) -> DraftTree:
        text = self._text
        wanted = min(budget.nodes, budget.depth)
        for size, after in zip(self.sizes, self._after, strict=True):
            place = after.get(tuple(text[-size:])) if size <= len(text) else None
            if place is not None:
                copied = text[place : place + wanted]
                while len(copied) < wanted:  # the match reaches the end: the text has a period, go round
                    copied += copied[: wanted - len(copied)]
                return DraftTree.chain(text[-1], copied)
        return DraftTree.chain(text[-1])

    def truncate(self, length: int) -> None:
        """Forgotten tokens may have hidden earlier matches, so the index is made again: O(length), rare."""
        kept = self._text[:length]
        self._text = []
        self._after = [{} for _ in self.sizes]
        self.observe(kept, None)
