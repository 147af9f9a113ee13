"""The program `forerun`: one command, one exit status.

Nothing is imported before Ctrl-C is under control but what the interpreter has already: importing the rest
takes a while, and a Ctrl-C in it must not look like a fault.
"""

from __future__ import annotations

import _signal as signal  # `signal` without its enumerations, which take long to import
import os
import sys

TYPE_CHECKING = False  # as `typing` has it, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

INTERRUPTED, NO_MEMORY = 130, 2


def main() -> None:
    """Run what the command line says, and exit."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a job in the background does not
    if heeds:
        signal.signal(signal.SIGINT, _leave)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's own threads have nothing to do here
    status = INTERRUPTED
    try:
        _import_commands()
        if heeds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # another one, while the first was being dealt with
        pass
    except MemoryError:
        os.write(2, b"forerun: error: there is not enough memory to start\n")
        status = NO_MEMORY
    if status == INTERRUPTED:
        os._exit(status)  # the interpreter may end by the signal itself, where it interrupted an import
    if heeds:
        signal.signal(signal.SIGINT, _leave)
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    from forerun.cli.failures import explain

    try:
        from forerun.cli.streams import open_streams

        open_streams()
        from forerun.cli.commands import invoke

        try:
            return invoke(list(arguments) or ["--help"])
        finally:
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        return explain(error)


def _import_commands() -> None:
    """Import what every command needs. What goes wrong here does so again in `run`, which explains it."""
    try:
        import forerun.cli.commands
        import forerun.cli.failures  # noqa: F401
    except Exception:
        pass


def _leave(_: int, __: FrameType | None) -> None:
    os._exit(INTERRUPTED)
