"""How a command ends when it does not succeed: one line on standard error, and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forerun.cli.streams import say, silence
from forerun.errors import ForerunError
from forerun.files import no_room

BAD_INPUT, BUG, INTERRUPTED, PIPE_CLOSED = 2, 70, 130, 141
"""Exit statuses besides those of `ForerunError`: sysexits.h's EX_SOFTWARE, and 128 plus SIGINT or SIGPIPE, as
in shells."""


def explain(error: BaseException) -> int:
    """Say on standard error what is to be said of `error`; returns the exit status."""
    if _interrupted(error):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        silence(sys.stdout)
        return PIPE_CLOSED
    if os.environ.get("FORERUN_DEBUG"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, ForerunError):
        say_error(str(error))
        return error.exit_status
    if isinstance(error, MemoryError):
        say_error("there is not enough memory; use a smaller --context or --dtype, or a smaller model")
        return BAD_INPUT
    if isinstance(error, OSError):
        silence(sys.stdout)  # it may be what failed
        what = None if error.filename is None else os.fsdecode(error.filename)
        if what is None and no_room(error):  # files of ours are named where they are written
            what = "standard output"
        say_error(f"the system refused: {error.strerror or error}" + (f" ({what})" if what else ""))
        return BAD_INPUT
    if isinstance(error, ImportError):
        while isinstance(error.__cause__, ImportError):  # numpy wraps a page of advice around it
            error = error.__cause__
        say_error(
            f"a part of forerun cannot be loaded: {error}; there is too little memory (`ulimit -v` shows a"
            " limit), or forerun has to be installed again"
        )
        return BAD_INPUT
    say_error(
        f"this is a bug in forerun: {type(error).__name__}: {error}; set FORERUN_DEBUG=1 to see where,"
        " and report it"
    )
    return BUG


@contextmanager
def told_if_interrupted(far: Callable[[], str]) -> Iterator[None]:
    """Say how far it came, and what is kept, where Ctrl-C ends what is done within."""
    try:
        yield
    except BaseException as error:
        if _interrupted(error):
            say(f"interrupted: {far()}")
        raise


def say_error(message: str) -> None:
    """Print an error as every command does."""
    say(f"error: {message}")


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is what happened, if only as the cause of what a library made of it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False
