"""The standard streams: which may be closed, full, or in another encoding than models write in."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

from forerun.errors import InputError, one_line


def open_streams() -> None:
    """Make the standard streams ready for use.

    Python has None for a closed one, and the system would give its number to the next file that is opened.

    Raises:
        InputError: standard output is closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
    if sys.stdout is None:
        raise InputError("standard output is closed; there is nowhere to write the answer to")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # models write in any script, whatever the locale; names of files may be any bytes
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def read_stdin() -> bytes:
    """All of standard input.

    Raises:
        InputError: it is closed, cannot be read, or does not end.
    """
    from forerun.text.reading import read_some

    if sys.stdin is None:
        raise InputError("standard input is closed; give the text as an argument")
    try:
        return read_some(sys.stdin.buffer)
    except OSError as error:
        raise InputError(f"cannot read standard input: {error.strerror or error}") from error


def say(message: str) -> None:
    """Write a line to standard error that says who writes it."""
    note(f"forerun: {one_line(message)}")


def note(line: str) -> None:
    """Write a line to standard error. It goes nowhere where that cannot be written: an answer is no worse
    for a note that nobody reads."""
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Let what is still to be written to `stream` go nowhere: the interpreter would try again at its end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
