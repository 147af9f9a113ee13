"""What only a terminal gets to see."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.cli.progress import LateProgress
from support.program import PROGRAM


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with LateProgress("loading") as progress:
        progress(1, 10)
    assert shown.getvalue() == ""
    monkeypatch.setattr(LateProgress, "patience", 0.0)
    with LateProgress("loading") as progress:
        progress(1, 10)
        progress(5, 10)
    assert "loading" in shown.getvalue()
    assert "50%" in shown.getvalue()


def test_a_bar_comes_only_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LateProgress, "patience", 0.0)
    with LateProgress("loading") as progress:
        progress(5, 10)
    assert capsys.readouterr() == ("", "")


def test_the_summary_has_a_line_of_its_own(tiny: Path) -> None:
    command = [*PROGRAM, "generate", "-m", str(tiny), "hello", "--allowed-token", "65", "--max-tokens", "3"]
    piped = subprocess.run(command, capture_output=True, check=True).stdout
    assert not piped.endswith(b"\n")
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=theirs) as process:
        assert process.wait(60) == 0
    os.close(theirs)
    shown = os.read(ours, 10_000)
    os.close(ours)
    assert shown.startswith(piped + b"\r\nforerun: 3 tokens")
