"""Opening files that hold weights or describe them, so that every failure is one clear line."""

from __future__ import annotations

import json
import mmap
import os
import stat
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from forerun.errors import InputError

LARGEST_JSON = 64 << 20  # bytes; the largest index of a published model takes a few megabytes


def map_file(path: Path) -> mmap.mmap:
    """The whole of a regular file, mapped read-only. It stays mapped as long as anything refers to it.

    The bytes are the file's own: shortening or rewriting the file in place breaks a model that runs from it.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path} is not a regular file")
            if status.st_size == 0:
                raise InputError(f"{path} is empty; fetch it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def release(data: npt.NDArray[np.uint8]) -> None:
    """Let the system have back the memory of a view into a mapped file; it is read again when it is needed.

    Without this all of a file that was read once counts as this process's memory.
    """
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = data.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    # only whole pages: the others belong to neighbours too
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (start + len(data)) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0:
        mapped.madvise(mmap.MADV_DONTNEED, first, length)


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file. InputError when the file is missing, too large, or holds anything else."""
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_JSON + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if len(text) > LARGEST_JSON:
        raise InputError(
            f"{path} is larger than {LARGEST_JSON >> 20} MB, too large for a description of a model"
        )
    return parse_json(text, str(path))


def parse_json(text: bytes, source: str) -> dict[str, object]:
    """The JSON object in `text`, which came from `source`. A key given twice is an error."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:  # ValueError: bad UTF-8, bad JSON, numbers of absurd length
        raise InputError(f"{source} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{source} does not hold a JSON object")
    return cast(dict[str, object], value)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} is given twice")
    return made
