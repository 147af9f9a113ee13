"""What was measured of a model on this machine, kept from one start to the next.

A record is a JSON object in the user's cache. Its name is made of what it depends on (the model's file, how
it is executed, the machine, the version), so that a record of something else is never found. What is read is
distrusted: anything that is not as it was written counts as missing, and nothing fails because it cannot be
written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from forerun.errors import InputError
from forerun.files import write_whole
from forerun.models.known import cache_folder
from forerun.models.machine import machine
from forerun.version import __version__
from forerun.weights.files import read_json

MOST_RECORDS = 256
"""Of a kind."""


def model_key(path: Path) -> dict[str, object]:
    """What tells one model on disk from another: place, size and time of change of its files."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    stats = [file.stat() for file in files]
    return {
        "path": str(path.absolute()),
        "size": sum(stat.st_size for stat in stats),
        "changed": max((stat.st_mtime_ns for stat in stats), default=0),
    }


def read_record(kind: str, key: Mapping[str, object]) -> Mapping[str, object] | None:
    """The record of this kind and key, or None."""
    try:
        found = read_json(_path(kind, key))
    except InputError:
        return None
    value = found.get("value")
    return value if found.get("key") == _whole(key) and isinstance(value, dict) else None


def write_record(kind: str, key: Mapping[str, object], value: Mapping[str, object]) -> Path | None:
    """Keep a record; returns its file, or None where there is no place for it."""
    with suppress(OSError, InputError):
        path = _path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"key": _whole(key), "value": value}, indent=1))
        _forget_oldest(path.parent)
        return path
    return None


def forget_record(kind: str, key: Mapping[str, object]) -> None:
    """Remove a record, if there is one."""
    with suppress(OSError, InputError):
        _path(kind, key).unlink(missing_ok=True)


def _forget_oldest(folder: Path) -> None:
    records = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in records[:-MOST_RECORDS]:
        path.unlink(missing_ok=True)


def _whole(key: Mapping[str, object]) -> dict[str, object]:
    return {**key, "machine": machine(), "version": __version__}


def _path(kind: str, key: Mapping[str, object]) -> Path:
    digest = hashlib.sha256(json.dumps(_whole(key), sort_keys=True).encode()).hexdigest()[:20]
    return cache_folder() / kind / f"{digest}.json"
