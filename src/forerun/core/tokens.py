"""The token ids of a text that grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.tree import IntArray


class TokenBuffer:
    """Token ids in one array with room behind them: to append costs the same however long the text is.

    Attributes:
        length: how many.
    """

    def __init__(self, tokens: Sequence[int] | IntArray = ()) -> None:
        self._room: IntArray = np.zeros(256, dtype=np.int32)
        self.length = 0
        self.extend(tokens)

    @property
    def tokens(self) -> IntArray:
        """int32 [length], a view."""
        return self._room[: self.length]

    def extend(self, tokens: Sequence[int] | IntArray) -> None:
        """Append these."""
        end = self.length + len(tokens)
        if end > self._room.size:
            self._room = np.concatenate([self._room, np.zeros(end, dtype=np.int32)])
        self._room[self.length : end] = tokens
        self.length = end

    def truncate(self, length: int) -> None:
        """Forget what is behind the first `length`."""
        self.length = min(self.length, length)
