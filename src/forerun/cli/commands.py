"""The commands, and how arguments reach them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, cast

import typer
from typer.main import get_command

from forerun.cli.cost import cost
from forerun.cli.failures import BAD_INPUT, say_error
from forerun.cli.generate import generate
from forerun.cli.inspect import inspect
from forerun.cli.pull import pull

app = typer.Typer(add_completion=False, rich_markup_mode=None)
for command in (generate, cost, inspect, pull):
    app.command()(command)

# UsageError; typer does not export it, and keeps it in different places in different versions
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"forerun {version('forerun')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Exact speculative decoding for language models on your own machine."""


def invoke(arguments: list[str]) -> int:
    """Run the command that the arguments name; returns the exit status. What goes wrong in it is raised."""
    try:
        # not through the command's own `main`, which has its own idea of how a program ends
        with get_command(app).make_context("forerun", arguments) as context:
            context.command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except _UsageError as error:
        path = error.ctx.command_path if error.ctx else "forerun"
        say_error(f"{error.format_message()} (see `{path} --help`)")
        return BAD_INPUT
    return 0
