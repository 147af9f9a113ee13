"""The program around the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forerun.cli import commands
from forerun.cli.app import run
from forerun.version import __version__
from support.program import error_line, forerun


def test_help_and_version() -> None:
    done = forerun("--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == forerun().stdout
    for command in commands.forerun.commands:
        assert f"\n  {command} " in done.stdout.decode()
        assert forerun(command, "--help").stdout.startswith(f"Usage: forerun {command} ".encode())
    assert forerun("plan", "-h").stdout == forerun("plan", "--help").stdout
    assert forerun("--version").stdout.decode() == f"forerun {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paint"], "No such command 'paint'"),
        (["--loud"], "No such option"),
        (["generate", "--loud", "x"], "No such option"),
        (["generate", "-5"], "No such option"),
        (["generate", "a", "b"], "unexpected extra argument"),
        (["generate", "x", "--max-tokens", "many"], "'many' is not a valid integer"),
        (["generate", "x", "--seed"], "requires an argument"),
        (["cost", "--rounds", "0"], "0 is not in the range"),
        (["train"], "Missing command"),
    ],
)
def test_usage(arguments: list[str], message: str) -> None:
    done = forerun(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    line = error_line(done)
    assert message in line
    assert "--help`)" in line


def test_a_bug_is_told_apart_from_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(model: str) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(commands.forerun.commands["pull"], "callback", broken)
    monkeypatch.delenv("FORERUN_DEBUG", raising=False)
    assert run(["pull"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("forerun: error: this is a bug in forerun: KeyError: 'lost'; set FORERUN_DEBUG=1")
    monkeypatch.setenv("FORERUN_DEBUG", "1")
    assert run(["pull"]) == 70
    assert "in broken" in capsys.readouterr().err


def test_interrupted_before_it_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(model: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands.forerun.commands["pull"], "callback", interrupted)
    assert run(["pull"]) == 130
    assert capsys.readouterr() == ("", "")


def imported(*arguments: object) -> set[str]:
    """The packages that a run of the program imports."""
    script = (
        "import sys; from forerun.cli.app import run\n"
        f"assert run({[str(argument) for argument in arguments]!r}) == 0\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return set(done.stderr.decode().splitlines()[-1].split())


def test_a_start_imports_little(tiny: Path) -> None:
    """The whole start has 0.3 s for imports, and numpy alone takes a third of that."""
    heavy = {
        "torch",
        "transformers",
        "huggingface_hub",
        "gguf",
        "rich",
        "safetensors",
        "pydantic",
        "llguidance",
    }
    assert not heavy & imported("generate", "-m", tiny, "hello", "--max-tokens", 1)
