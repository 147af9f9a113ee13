"""The cost curve of a loaded model, measured in a moment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import numpy as np

from forerun.models.backend import Backend
from forerun.models.records import model_key, read_record, write_record
from forerun.models.rows import Cache, Rows

WIDTHS = (1, 2, 4, 8, 16)
CONTEXT = 32
REPEATS = 5
WORTH_KEEPING = 3  # widths: a curve of fewer is too rough for later runs
RECORDS = "curves"
CHECKED, CHECK_SECONDS = 8, 0.05  # rows of a forward that checks a curve kept from another time
TOLERANCE = 0.25


def measure_curve(backend: Backend, seconds: float = 0.25) -> dict[int, float]:
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
            took = forward_seconds(backend, cache, n)
            found[n] = min(found.get(n, took), took)
    return found


def curve_key(path: Path, *, dtype: str, kv: str, threads: int, kernels: str) -> dict[str, object]:
    """What a model's cost curve depends on, besides the machine."""
    return {**model_key(path), "dtype": dtype, "kv": kv, "threads": threads, "kernels": kernels}


def known_curve(key: Mapping[str, object]) -> dict[int, float] | None:
    """The curve measured before, or None."""
    record = read_record(RECORDS, key)
    try:
        found = {int(n): float(seconds) for n, seconds in (record or {}).items()}  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return found if 1 in found and all(n > 0 and 0 < s < 3600 for n, s in found.items()) else None


def remembered_curve(backend: Backend, key: Mapping[str, object]) -> dict[int, float]:
    """The curve, measured if it was not before, or on a machine that was busy then."""
    known = known_curve(key) or {}
    if known and not too_slow(known, backend):
        return known
    # what takes less now was never as slow, and what takes more may be disturbed now
    found = {n: min(seconds, known.get(n, seconds)) for n, seconds in measure_curve(backend).items()}
    found = {**known, **found}
    if len(found) >= WORTH_KEEPING:
        write_record(RECORDS, key, {str(n): seconds for n, seconds in found.items()})
    return found


def too_slow(known: Mapping[int, float], backend: Backend) -> bool:
    """Whether a forward over several rows takes much less than was measured before: such a curve would keep
    trees small for good. (One that is too fast is found out by the steps themselves.)"""
    if CHECKED not in known:
        return True
    end = perf_counter() + CHECK_SECONDS
    cache = backend.new_cache(CHECKED)
    for _ in range(2):  # the first forward of all takes longer
        if forward_seconds(backend, cache, CHECKED) < (1.0 - TOLERANCE) * known[CHECKED]:
            return True
        if perf_counter() > end:
            break
    return False


def forward_seconds(backend: Backend, cache: Cache, n: int) -> float:
    """What a forward over n rows takes now."""
    rows, wanted = Rows.chain(np.zeros(n, dtype=np.int32), cache), np.arange(n, dtype=np.int32)
    start = perf_counter()
    backend.forward(rows, wanted)
    return perf_counter() - start
