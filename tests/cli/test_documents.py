"""What the documents say is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from forerun.cli import commands

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def shell_commands(text: str) -> list[str]:
    """The lines of the text's shell examples."""
    return [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


def test_ci_runs_the_readmes_commands() -> None:
    script = (ROOT / ".ci/run").read_text().splitlines()
    first, second = shell_commands(README)[:2]
    assert first.startswith("pip install . && forerun generate")
    assert second == "pip install '.[test]' && pytest"
    assert script.index(first) < script.index(second)


def test_the_readme_lists_every_command() -> None:
    assert set(re.findall(r"\| `forerun (\w+)", README)) == set(commands.forerun.commands)


def test_the_readmes_tree_is_the_source() -> None:
    listed = re.search(r"```\nsrc/forerun/\n(.*?)```", README, re.DOTALL)
    assert listed
    named = {line.split()[0] for line in listed[1].splitlines() if line.startswith("  ")}
    there = {path.name + "/" for path in (ROOT / "src/forerun").iterdir() if (path / "__init__.py").exists()}
    assert there <= named
    assert all((ROOT / "src/forerun" / name).exists() for name in named)


@pytest.mark.parametrize("name", ["generate", "bench", "cost", "plan", "tune"])
def test_every_option_is_documented(name: str) -> None:
    text = (ROOT / f"docs/{name}.md").read_text()
    command = commands.forerun.commands[name]
    there = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
        if option.startswith("--")
    }
    assert set(re.findall(r"^\| `(?:-\w, )?(--[\w-]+)", text, re.MULTILINE)) == there


def test_tests_that_are_named_are_there() -> None:
    there = {
        name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (\w+)", file.read_text())
    }
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/exactness.md").read_text()))
    assert len(named) > 30
    assert named <= there
