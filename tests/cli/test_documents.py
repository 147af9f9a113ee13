"""What the documents say is what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from forerun.cli import commands
from support.heads import Sizes
from support.tiny import vocabulary, write_tiny_hf

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CARDS = {
    str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("src/forerun/heads/*/*/MODEL_CARD.md")
}

DOCUMENTS = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))}
EXAMPLES = [
    pytest.param(code, id=f"{name}-{number}", marks=() if "path/to/" in code else pytest.mark.model)
    for name, text in DOCUMENTS.items()
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL), 1)
]


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


@pytest.mark.parametrize("name", ["generate", "verify", "bench", "cost", "plan", "tune"])
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
    told = dict(re.findall(r"^\| `(?:-\w, )?(--[\w-]+)[^|]*\| `?([^|`]+)`? \|", text, re.MULTILINE))
    for parameter in command.params:
        if isinstance(parameter.default, str | int | float) and parameter.default and not parameter.hidden:
            assert told[parameter.opts[-1]] == f"{parameter.default}".removesuffix(".0")


def test_every_option_of_training_is_mentioned() -> None:
    text = (ROOT / "docs/training.md").read_text()
    train = commands.forerun.commands["train"]
    assert isinstance(train, click.Group)
    options = {option.opts[0] for command in train.commands.values() for option in command.params}
    assert {option for option in options if not re.search(rf"`[^`\n]*{option}\b", text)} == set()


@pytest.mark.parametrize("code", EXAMPLES)
def test_python_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the default model, or with a tiny model and head where an example names paths."""
    monkeypatch.chdir(tmp_path)
    write_tiny_hf(tmp_path / "path/to/model")
    Sizes(target=256, hidden=256, vocab=len(vocabulary()), outputs=100).eagle3().save(
        tmp_path / "path/to/head"
    )
    exec(compile(code, "example", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("text", [*DOCUMENTS.values(), *CARDS.values()], ids=[*DOCUMENTS, *CARDS])
def test_commands_in_examples_can_be_read(text: str) -> None:
    """Every `forerun ...` of a shell example names commands and options that there are."""
    for block in _examples(text):
        for arguments in _commands(block):
            _parse(commands.forerun, arguments)


def test_commands_that_cannot_be_read_are_found() -> None:
    for wrong in ("paint", "train paint", "train eagle3 -o x --heads 2", "inspect --nothing", "cost 1 2"):
        text = f"Thus:\n\n    forerun pull\n    forerun {wrong}\n\nand so on"
        with pytest.raises(click.UsageError):
            test_commands_in_examples_can_be_read(text)


def _examples(text: str) -> list[str]:
    """Shell examples: fenced, or indented after an empty line."""
    fenced = r"```(\w*)\n(.*?)```"
    found = [block for kind, block in re.findall(fenced, text, re.DOTALL) if kind in ("sh", "text")]
    indented = re.findall(r"(?<=\n\n)(?: {4}.*\n)+", re.sub(fenced, "", text, flags=re.DOTALL) + "\n")
    return found + [block for block in indented if re.match(r" +(forerun|[A-Z]+=)", block)]


def _parse(command: click.Command, arguments: list[str]) -> None:
    """As click does before it runs a command.

    Raises:
        click.UsageError: there is no such command or option.
    """
    context = command.make_context(command.name, list(arguments))
    if isinstance(command, click.Group):
        _, inner, rest = command.resolve_command(context, arguments)
        assert inner is not None
        _parse(inner, rest)


def _commands(block: str) -> list[list[str]]:
    """The words behind each `forerun` of a block, up to where its command ends; variables are filled in."""
    for name, value in re.findall(r'^ *([A-Z]+)="(.*)"$', block, re.MULTILINE):
        block = block.replace(f"${name}", value)
    joined = re.sub(
        r" +#.*", "", block.replace("\\\n", " ")
    )  # shlex would take the line's end with a comment
    reader = shlex.shlex(joined, posix=True, punctuation_chars="();&|>\n")
    reader.whitespace, reader.whitespace_split = " \t", True
    found: list[list[str]] = []
    inside = False
    for word in reader:
        if word == "forerun" and not inside:
            inside = True
            found.append([])
        elif set(word) <= set("();&|>\n"):
            inside = False
        elif inside:
            found[-1].append(word)
    return found


def test_tests_that_are_named_are_there() -> None:
    there = {
        name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (\w+)", file.read_text())
    }
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/exactness.md").read_text()))
    assert len(named) > 30
    assert named <= there
