"""Writing files whole or not at all, so that every failure is one clear line."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forerun.errors import InputError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's numbers for a disk, a quota or a file that is full."""


def check_writable(path: Path) -> None:
    """Say before a long run, not after it, that a file cannot be written. Nothing is changed.

    Raises:
        InputError: it cannot.
    """
    with explained(path):
        if path.exists():
            with open(path, "a", encoding="utf-8"):
                return
        fresh = _beside(path)
        fresh.touch()
        fresh.unlink()


def write_whole(path: Path, *parts: str | bytes | memoryview) -> None:
    """Write a file so that whoever looks finds what was there before, or all of the parts: text
    as UTF-8, with names of files in it as the bytes that they are.

    Raises:
        InputError: it cannot be written.
    """
    stored = [part.encode(errors="surrogateescape") if isinstance(part, str) else part for part in parts]
    with explained(path):
        if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
            with open(path, "wb") as file:
                file.writelines(stored)
            return
        fresh = _beside(path)
        try:
            with open(fresh, "wb") as file:
                file.writelines(stored)
            os.replace(fresh, path.resolve())
        finally:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Name the file where writing to it fails: of a full disk the system does not.

    Raises:
        InputError: an OSError came.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def no_room(said: object) -> str | None:
    """What is full, if that is what an error or another program's words about it tell; None for all else.

    It is known by the system's number, as Python or Rust writes it: the words depend on the user's language.
    """
    limit = "the limit on the size of files (ulimit -f) is reached"
    for number in NO_ROOM:
        if any(form in str(said) for form in (f"[Errno {number}]", f"(os error {number})")):
            return limit if number == errno.EFBIG else "the disk is full"
    return None


def _beside(path: Path) -> Path:
    """A name in the file's own folder, where it can be renamed from."""
    return path.resolve().with_name(f".forerun-{os.getpid()}")
