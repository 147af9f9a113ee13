"""Files that a command writes: whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from forerun.errors import InputError


def check_writable(path: Path) -> None:
    """Say before a long run, not after it, that a file cannot be written. Nothing is changed.

    Raises:
        InputError: it cannot.
    """
    try:
        if path.exists():
            with open(path, "a", encoding="utf-8"):
                return
        fresh = _beside(path)
        fresh.touch()
        fresh.unlink()
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file so that whoever looks finds what was there before, or all of `text`.

    Raises:
        InputError: it cannot be written.
    """
    fresh = _beside(path)
    try:
        if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
            path.write_text(text, encoding="utf-8")
            return
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path.resolve())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A name in the file's own folder, where it can be renamed from."""
    target = path.resolve()
    return target.with_name(f".forerun-{os.getpid()}")
