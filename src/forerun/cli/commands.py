"""The commands, and how arguments reach them."""

from __future__ import annotations

import click

from forerun.cli.bench import bench
from forerun.cli.cost import cost
from forerun.cli.failures import BAD_INPUT, say_error
from forerun.cli.generate import generate
from forerun.cli.inspect import inspect
from forerun.cli.plan import plan
from forerun.cli.pull import pull
from forerun.cli.train import train
from forerun.cli.tune import tune
from forerun.cli.verify import verify
from forerun.version import __version__


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"forerun {__version__}")
        context.exit()


@click.group(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
def forerun() -> None:
    """Exact speculative decoding for language models on your own machine."""


for command in (generate, verify, bench, tune, cost, plan, inspect, pull, train):
    forerun.add_command(command)


def invoke(arguments: list[str]) -> int:
    """Run the command that the arguments name; returns the exit status. What goes wrong in it is raised."""
    try:
        # not through the command's own `main`, which has its own idea of how a program ends
        with forerun.make_context("forerun", arguments) as context:
            forerun.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "forerun"
        say_error(f"{error.format_message()} (see `{path} --help`)")
        return BAD_INPUT
    return 0
