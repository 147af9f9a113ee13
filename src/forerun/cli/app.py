"""The program `forerun`: one command, one exit status."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from forerun.cli.failures import explain


def main() -> None:
    """Run what the command line says, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status.

    The commands are imported in here, so that even a Ctrl-C meanwhile ends without a traceback.
    """
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # models write in any script, whatever the locale
        from forerun.cli.commands import invoke

        status = invoke(list(arguments) or ["--help"])
        sys.stdout.flush()
        return status
    except (Exception, KeyboardInterrupt) as error:
        return explain(error)
