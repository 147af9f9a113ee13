"""How a command ends when it does not succeed: one line on standard error, and an exit status."""

from __future__ import annotations

import os
import sys

from forerun.errors import ForerunError, one_line

BAD_INPUT, BUG, INTERRUPTED, PIPE_CLOSED = 2, 70, 130, 141
"""Exit statuses besides those of `ForerunError`: sysexits.h's EX_SOFTWARE, and 128 plus SIGINT or SIGPIPE, as
in shells."""


def explain(error: BaseException) -> int:
    """Say on standard error what is to be said of `error`; returns the exit status."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        silence_stdout()
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
        silence_stdout()  # it may be what failed, and the interpreter would try again
        say_error(f"the system refused: {error}")
        return BAD_INPUT
    say_error(
        f"this is a bug in forerun: {type(error).__name__}: {error}; set FORERUN_DEBUG=1 to see where,"
        " and report it"
    )
    return BUG


def say_error(message: str) -> None:
    """Print an error as every command does."""
    print(f"forerun: error: {one_line(message)}", file=sys.stderr)


def silence_stdout() -> None:
    """Let what is still to be written to standard output go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
