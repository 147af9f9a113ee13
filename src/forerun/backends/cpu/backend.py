"""A model on the CPU: implements `models.backend.Backend` over the C++ core."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from forerun import _core
from forerun.backends.cpu.heads import CpuHead, load_head
from forerun.models.config import ModelConfig
from forerun.models.heads.head import TEXT_TOKENS, Head
from forerun.models.rows import Cache, IntArray, Output, Rows


def usable_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


class CpuBackend:
    """A loaded model. Width-invariant: a row's results are the same bits whatever else is in the forward,
    however the tokens before it were computed, and at any number of threads.

    Args:
        config: what the model is.
        model: the core's decoder.
        kv: how caches keep keys and values, "f32", "bf16", "f16" or "q8".
        formats: how weights are executed and how many bytes one forward of one row reads of each.
    """

    def __init__(self, config: ModelConfig, model: _core.Model, kv: str, formats: Mapping[str, int]) -> None:
        self.config = config
        self.kv = kv
        self.formats = formats
        self._model = model

    @property
    def kernels(self) -> str:
        """The instruction set in use."""
        return self._model.kernels

    @property
    def threads(self) -> int:
        return self._model.threads

    @property
    def bytes_per_forward(self) -> int:
        """Bytes of weights that a forward reads, embedding rows and the cache aside."""
        return sum(self.formats.values())

    def new_cache(self, capacity: int) -> Cache:
        config = self.config
        return _core.Cache(config.layers, config.kv_heads, config.head_dim, self.kv, capacity)

    def forward(self, rows: Rows, logits: IntArray, taps: tuple[int, ...] = ()) -> Output:
        caches = cast("list[_core.Cache]", rows.caches)
        states = np.array(taps, dtype=np.int32)
        wanted, features = self._model.forward(
            rows.tokens, rows.parents, rows.owner, caches, logits, states, rows.continues
        )
        return Output(wanted, features)

    def verify(self, tree: _core.DraftTree, cache: Cache, taps: tuple[int, ...] = ()) -> _core.Output:
        return self._model.verify(tree, cast("_core.Cache", cache), taps)

    def first_layers(self, layers: int) -> CpuBackend:
        """The model's first layers, then its norm and head. The weights are shared, and not counted again."""
        config = replace(self.config, layers=layers)
        return CpuBackend(config, self._model.first_layers(layers), self.kv, {})

    def load_head(self, head: Head, dtype: str = "auto", text_tokens: int = TEXT_TOKENS) -> CpuHead:
        """A drafting head beside this model, whose threads, embedding and output layer it shares.

        Raises:
            InputError: it was made for another model.
        """
        return load_head(
            head, self._model, self.config, dtype=dtype, text_tokens=text_tokens, kernels=self._model.kernels
        )

    def profile(self) -> dict[str, float]:
        """Seconds that the last forward spent in `linear`, `attention`, `head` and `other`."""
        return self._model.profile
