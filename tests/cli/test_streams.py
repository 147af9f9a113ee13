"""Standard streams that are closed or full, and Ctrl-C before anything has happened."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.program import PROGRAM, error_line

FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")


def shell(redirection: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run the program with streams as a shell redirects them."""
    command = shlex.join([*PROGRAM, *map(str, arguments)])
    return subprocess.run(["sh", "-c", f"{command} {redirection}"], capture_output=True, check=False)


@pytest.mark.parametrize("command", [["--help"], ["generate", "hello", "--json"], ["pull"]])
def test_closed_output(command: list[str]) -> None:
    done = shell(">&-", *command)
    assert done.returncode == 2
    assert "standard output is closed" in error_line(done)


def test_closed_errors(tiny: Path) -> None:
    command = ["generate", "-m", tiny, "hello", "--max-tokens", 3]
    done = shell("2>&-", *command)
    assert (done.returncode, done.stdout) == (0, shell("", *command).stdout)  # no summary strays into it
    assert shell("2>&-", "paint").returncode == 2
    assert shell(">&- 2>&- <&-", *command).returncode == 2


def test_a_log_of_both_has_lines(tiny: Path) -> None:
    options = ["-m", tiny, "hello", "--temperature", 1, "--seed", 1]
    for more, last in (
        (["--max-tokens", 3, "--regex", "[ab]{60}"], "forerun: 3 tokens, "),
        (
            ["--grammar", 'start: /[ab]{60}/ "c" loop\nloop: "a" loop'],
            "forerun: error: the answer cannot follow",
        ),
    ):
        lines = shell("2>&1", "generate", *options, *more).stdout.decode().splitlines()
        assert len(lines) == 2
        assert set(lines[0]) <= set("abc")
        assert lines[1].startswith(last)


def test_closed_input(tiny: Path) -> None:
    done = shell("<&-", "generate", "-m", tiny, "-")
    assert done.returncode == 2
    assert "standard input is closed" in error_line(done)
    assert shell("<&-", "generate", "-m", tiny, "hello", "--max-tokens", 3).returncode == 0


def test_input_that_cannot_be_read(tiny: Path, tmp_path: Path) -> None:
    done = shell(f"0> {tmp_path / 'file'}", "generate", "-m", tiny, "-")
    assert done.returncode == 2
    assert "cannot read standard input" in error_line(done)


@FULL
@pytest.mark.parametrize(
    "command", [["--help"], ["--version"], ["inspect"], ["generate", "--max-tokens=3", "hi"]]
)
def test_full_output(tiny: Path, command: list[str]) -> None:
    model = {"inspect": [tiny], "generate": ["-m", tiny]}.get(command[0], [])
    done = shell("> /dev/full", *command, *model)
    assert done.returncode == 2
    assert "No space left on device (standard output)" in error_line(done)


@FULL
def test_full_errors(tiny: Path) -> None:
    assert shell("2> /dev/full", "generate", "-m", tiny, "hello", "--max-tokens", 3).returncode == 0
    assert shell("2> /dev/full", "paint").returncode == 2
    assert shell("> /dev/full 2>&1", "--help").returncode == 2


@pytest.mark.parametrize("wait", [0.05, 0.1, 0.2, 0.4])
def test_interrupted_while_it_starts(endless: Path, wait: float) -> None:
    """From the moment on that the entry module runs; before it there is only the interpreter."""
    started = "from forerun.cli.app import main; print(flush=True); main()"
    command = [PROGRAM[0], "-c", started, "generate", "-m", str(endless), "hello", "--ignore-end", "--json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")
