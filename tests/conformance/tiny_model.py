"""A tiny attention model in numpy: the reference backend of the conformance suite.

Every row is computed on its own, from the keys and values of its own path in logical order, so its results
cannot depend on what else is in the forward. Keys and values are staged in slots and kept by `commit`, like
the real
thing: a cache that mixes up slots, positions or branches changes the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from forerun.models.backend import Backend
from forerun.models.rows import Cache, IntArray, Output, Rows

HIDDEN = 12
LAYERS = 2


@dataclass
class TinyCache:
    capacity: int
    slots: list[list[np.ndarray]] = field(default_factory=list)
    staged: list[list[np.ndarray]] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.slots)

    def commit(self, path: IntArray | list[int]) -> None:
        above = -1
        for row in path:
            assert self.parents[row] == above, "a committed path goes from parent to child"
            above = row
        self.slots += [self.staged[row] for row in path]
        self.staged, self.parents = [], []
        assert self.length <= self.capacity

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        del self.slots[length:]
        self.staged, self.parents = [], []


class TinyBackend:
    """Random weights from a seed. `sharpness` scales the logits: small is nearly uniform, large nearly
    certain."""

    verify = Backend.verify

    def __init__(self, vocab_size: int = 24, seed: int = 0, sharpness: float = 3.0) -> None:
        draw = np.random.default_rng(seed)
        self.config: Any = SimpleNamespace(
            vocab_size=vocab_size,
            hidden_size=HIDDEN,
            layers=LAYERS,
            context=4096,
            eos_token_ids=(vocab_size - 1,),
        )
        self._embed = draw.normal(size=(vocab_size, HIDDEN))
        self._layers = [
            [draw.normal(size=(HIDDEN, HIDDEN)) / np.sqrt(HIDDEN) for _ in range(5)] for _ in range(LAYERS)
        ]
        self._head = draw.normal(size=(vocab_size, HIDDEN)) * sharpness / np.sqrt(HIDDEN)
        self.forwards = 0

    def new_cache(self, capacity: int) -> Cache:
        return TinyCache(capacity)

    def forward(self, rows: Rows, logits: IntArray, taps: tuple[int, ...] = ()) -> Output:
        self.forwards += 1
        for cache in rows.caches:
            assert isinstance(cache, TinyCache)
            if not rows.continues:
                cache.staged, cache.parents = [], []
        wanted = set(logits.tolist())
        given: dict[int, np.ndarray] = {}
        features = np.zeros((len(rows.tokens), len(taps), HIDDEN), dtype=np.float32)
        own: list[int] = []  # each row's place among its cache's rows
        for row, (token, parent, owner) in enumerate(
            zip(rows.tokens.tolist(), rows.parents.tolist(), rows.owner.tolist(), strict=True)
        ):
            cache = rows.caches[owner]
            assert isinstance(cache, TinyCache)
            assert parent < (len(cache.staged) if rows.continues else row)
            assert parent < 0 or rows.continues or rows.owner[parent] == owner
            place = parent if parent < 0 or rows.continues else own[parent]
            above = place
            path = []
            while above >= 0:
                path.append(cache.staged[above])
                above = cache.parents[above]
            states, entry = self._row(token, cache.slots + path[::-1])
            own.append(len(cache.staged))
            cache.staged.append(entry)
            cache.parents.append(place)
            assert cache.length + len(cache.staged) <= cache.capacity
            for tap, layer in enumerate(taps):
                features[row, tap] = states[layer]
            if row in wanted:
                given[row] = (self._head * states[-1]).sum(axis=1).astype(np.float32)
        out = np.array([given[row] for row in logits.tolist()], dtype=np.float32)
        return Output(out.reshape(len(logits), self.config.vocab_size), features)

    def _row(self, token: int, before: list[list[np.ndarray]]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        position = len(before)
        x = self._embed[token] + 0.3 * np.sin(position * (1.0 + np.arange(HIDDEN)) / 7.0)
        states, entry = [x], []
        for layer, (query, key, value, up, down) in enumerate(self._layers):
            normed = x / np.sqrt((x * x).mean() + 1e-6)
            entry.append(np.stack([(key * normed).sum(axis=1), (value * normed).sum(axis=1)]))
            q = (query * normed).sum(axis=1)
            seen = np.array([slot[layer] for slot in [*before, entry]])  # [positions, 2, hidden]
            scores = (seen[:, 0] * q).sum(axis=1)
            weights = np.exp(scores - scores.max())
            x = x + (seen[:, 1] * (weights / weights.sum())[:, None]).sum(axis=0)
            normed = x / np.sqrt((x * x).mean() + 1e-6)
            x = x + (down * np.tanh((up * normed).sum(axis=1))).sum(axis=1)
            states.append(x)
        return states, entry
