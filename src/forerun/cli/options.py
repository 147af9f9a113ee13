"""Options that several commands have, and how a model is loaded for them."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from forerun.cli.progress import LateProgress
from forerun.errors import InputError
from forerun.lists import split_items
from forerun.models.hub import DEFAULT_MODEL

if TYPE_CHECKING:
    from forerun.engine import Engine


class FiniteRange(click.FloatRange):
    """A number in a range; neither infinite nor none at all (nan), which compares with no bound."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        number = float(super().convert(value, parameter, context))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", parameter, context)
        return number


model_option = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    default=DEFAULT_MODEL,
    help="A GGUF file, a Hugging Face folder, a hub id (org/name), or a known name.",
)
dtype_option = click.option(
    "--dtype",
    metavar="TYPE",
    default="auto",
    help="How weights are executed: auto (as in the file), f32, bf16, q8, q4.",
)
kv_option = click.option(
    "--kv", metavar="TYPE", default="auto", help="How keys and values are kept: auto, f32, bf16, f16, q8."
)
prompts_option = click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON lines with prompts; by default built-in ones.",
)
threads_option = click.option(
    "--threads", type=int, metavar="N", help="Threads to compute with; by default all usable cores."
)
kernels_option = click.option("--kernels", default="", hidden=True, help="An instruction set by name.")
memory_option = click.option(
    "--memory",
    metavar="SIZE",
    help="The most memory to take, such as 24GB; what needs more is refused. By default without a limit.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def _context(_: click.Context, parameter: click.Parameter, value: str | None) -> int | Literal["auto"] | None:
    if value is None or value == "auto":
        return "auto" if value else None
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number of tokens nor auto") from None


context_option = click.option(
    "--context",
    callback=_context,
    metavar="N",
    help="Most tokens of prompt and answer; by default the model's own. auto: as many as --memory allows.",
)


def argument_text(name: str, value: str) -> str:
    """The text that an argument is. Python keeps bytes that its locale knows no character for as halves of
    surrogate pairs; they are UTF-8 nevertheless where the locale is "C".

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        value.encode()
        return value
    except UnicodeEncodeError:
        pass
    try:
        return os.fsencode(value).decode()
    except UnicodeError:
        raise InputError(f"{name} is not valid UTF-8; convert it to UTF-8") from None


def temperature_list(text: str) -> list[float]:
    """'0,1' -> [0.0, 1.0], each once.

    Raises:
        InputError: it is no list of numbers; which numbers are temperatures is said by `SamplingParams`.
    """
    try:
        return list(dict.fromkeys(map(float, split_items("--temperature", text))))
    except ValueError:
        raise InputError(f"--temperature {text!r} is no list of numbers, such as 0,1") from None


def load_engine(
    model: str,
    *,
    drafter: str,
    dtype: str,
    kv: str,
    context: int | Literal["auto"] | None,
    threads: int | None,
    kernels: str,
    draft_tokens: int | None = None,
    memory: str | None = None,
    tuned: bool = True,
) -> Engine:
    """`forerun.load`, with a progress bar where it takes long."""
    from forerun.api import load

    with LateProgress("loading") as progress:
        return load(
            model,
            drafter=drafter,
            dtype=dtype,
            kv=kv,
            context=context,
            threads=threads,
            kernels=kernels,
            draft_tokens=draft_tokens,
            memory=memory,
            tuned=tuned,
            progress=progress,
        )
