"""The program as users run it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = [sys.executable, "-m", "forerun"]


def forerun(
    *arguments: object, input: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the program to its end. `env` adds to the environment; `input` is what standard input holds."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        input=input,
        capture_output=True,
        env={**os.environ, **(env or {})},
        timeout=300,
        check=False,
    )


def error_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """The message of a program that ended with one clear line."""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("forerun: error: ")
    assert "bug" not in line
    return line.removeprefix("forerun: error: ")
