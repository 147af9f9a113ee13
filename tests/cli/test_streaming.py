"""Text as it comes, and what happens when nobody wants it any more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.program import PROGRAM, error_line, forerun


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """`forerun generate` while it runs; killed if it still does at the end."""
    with subprocess.Popen(
        [*PROGRAM, "generate", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a test run in the background ignores Ctrl-C, and its children would inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_text_comes_before_the_end(endless: Path) -> None:
    with started("-m", endless, "hello", "--ignore-end") as process:
        assert process.stdout is not None
        assert len(process.stdout.read(200)) == 200
        assert process.poll() is None


@pytest.mark.parametrize("drafter", ["none", "lookup"])
def test_interrupted(endless: Path, drafter: str) -> None:
    with started("-m", endless, "hello", "--ignore-end", "--drafter", drafter) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begin = process.stdout.read(100)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()  # communicate() knows nothing of what is buffered
        errors = process.stderr.read()
        assert process.wait(60) == 130
    (summary,) = errors.decode().splitlines()
    assert summary.startswith("forerun: ")
    assert summary.endswith("finish: interrupted")
    tokens = int(summary.split()[1])
    whole = forerun("generate", "-m", endless, "hello", "--ignore-end", "--max-tokens", tokens).stdout
    assert whole.startswith(begin + rest[:-8])  # at most half a character and its stand-in differ
    assert len(begin + rest) <= len(whole)


def test_interrupted_json(endless: Path) -> None:
    with started("-m", endless, "hello", "--ignore-end", "--json") as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")
    assert json.loads(out)["finish_reason"] is None


def test_the_reader_goes_away(endless: Path) -> None:
    with started("-m", endless, "hello", "--ignore-end") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


def test_the_reader_of_a_short_answer_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*PROGRAM, "--help"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_disk_is_full(tiny: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, "generate", "-m", str(tiny), "hello", "--max-tokens", "5"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 2
    assert "No space left on device" in error_line(done)
