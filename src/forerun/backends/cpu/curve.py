"""The cost curve of a loaded model, measured in a moment."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from forerun.models.backend import Backend
from forerun.models.rows import Rows

WIDTHS = (1, 2, 4, 8, 16)
CONTEXT = 32
REPEATS = 5


def measure_curve(backend: Backend, seconds: float = 0.15) -> dict[int, float]:
    """Seconds of a forward by its rows, the fastest of a few each, all within about `seconds` (a slow model
    gets fewer, but always that of one row and that of the most)."""
    cache = backend.new_cache(CONTEXT + max(WIDTHS))
    tokens = np.zeros(CONTEXT, dtype=np.int32)
    backend.forward(Rows.chain(tokens, cache), np.zeros(0, dtype=np.int32))
    cache.commit(np.arange(CONTEXT, dtype=np.int32))
    end = perf_counter() + seconds
    found: dict[int, float] = {}
    for _ in range(REPEATS):
        for n in (1, WIDTHS[-1], *WIDTHS[1:-1]):
            if perf_counter() > end and len(found) >= 2:
                return found
            rows, wanted = Rows.chain(np.zeros(n, dtype=np.int32), cache), np.arange(n, dtype=np.int32)
            start = perf_counter()
            backend.forward(rows, wanted)
            took = perf_counter() - start
            found[n] = min(found.get(n, took), took)
    return found
