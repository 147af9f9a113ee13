"""One writer a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forerun.errors import InputError


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold a folder against a second process that would write there too. A kill frees it.

    Raises:
        InputError: another one holds it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process is writing in {folder}; let it end first, or name another folder"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)
