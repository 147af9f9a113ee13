"""What computes a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from forerun.models.rows import Cache, IntArray, Output, Outputs, Rows

if TYPE_CHECKING:
    from forerun._core import DraftTree
    from forerun.models.config import ModelConfig


class Backend(Protocol):
    """A loaded model. Its arithmetic is width-invariant: a row's results are the same bits whatever else is
    in the forward, however the tokens before it were computed."""

    @property
    def config(self) -> ModelConfig: ...

    def new_cache(self, capacity: int) -> Cache:
        """An empty sequence with place for `capacity` tokens."""

    def forward(self, rows: Rows, logits: IntArray, taps: tuple[int, ...] = ()) -> Output:
        """Compute and stage `rows`. `logits` [m]: int32 indices of the rows whose logits are wanted."""

    def verify(self, tree: DraftTree, cache: Cache, taps: tuple[int, ...] = ()) -> Outputs:
        """The same of a tree's nodes behind what the cache holds, with the logits of all of them."""
        n = len(tree)
        rows = Rows(tree.tokens, tree.parents, [cache], np.zeros(n, dtype=np.int32))
        return self.forward(rows, np.arange(n, dtype=np.int32), taps)
