"""The program: run within this process, which spares its start, or as users run it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from unittest import mock

from forerun.cli.app import run

PROGRAM = [sys.executable, "-m", "forerun"]


def forerun(*arguments: object, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command within this process. `input` is what standard input holds."""
    out, errors = io.BytesIO(), io.BytesIO()
    with (
        mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(input))),
        mock.patch("sys.stdout", io.TextIOWrapper(out)),
        mock.patch("sys.stderr", io.TextIOWrapper(errors, errors="backslashreplace", write_through=True)),
    ):
        status = run([str(argument) for argument in arguments])
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), errors.getvalue())


def process(
    *arguments: object, input: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the program as a process of its own, to its end. `env` adds to the environment."""
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
