"""`forerun train`: make a drafter for a model, from nothing but the model."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.options import model_option, threads_option
from forerun.errors import InputError

if TYPE_CHECKING:
    from forerun.training.trainer import Figures, Progress

GIGABYTE = 1 << 30
POSITIVE = click.FloatRange(0, min_open=True)
QUIET_SECONDS = 60.0
"""Between two lines where standard error is no terminal."""


def options(*several: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator."""

    def decorate(command: Any) -> Any:
        for one in reversed(several):
            command = one(command)
        return command

    return decorate


folder = click.Path(path_type=Path, file_okay=False)
data_options = options(
    model_option,
    click.option(
        "-o", "--output", type=folder, required=True, metavar="DIR", help="Where everything is kept."
    ),
    click.option(
        "--tokens", type=click.IntRange(1), default=2_000_000, metavar="N", help="Tokens of data to write."
    ),
    click.option(
        "--prompts",
        type=click.Path(path_type=Path, exists=True),
        metavar="PATH",
        help="Requests to answer: a text file (one a paragraph), a .jsonl file, or a folder of these. "
        "Without it the model makes its own.",
    ),
    click.option("--disk", type=POSITIVE, metavar="GB", help="Data may take this much."),
    click.option(
        "--seed", type=click.IntRange(0, 2**32 - 1), default=0, metavar="S", help="Of data and training."
    ),
    threads_option,
)


@click.group()
def train() -> None:
    """Make a drafter for a model, on this machine and without a data set: the model writes the data.

    Stop it when you like; the same command goes on.
    """


@train.command()
@data_options
def data(
    model: str,
    output: Path,
    tokens: int,
    prompts: Path | None,
    disk: float | None,
    seed: int,
    threads: int | None,
) -> None:
    """Only write data into DIR (other trainings can use it: --data DIR)."""
    write_data(output, model, tokens, prompts, disk, seed, threads)


@train.command()
@data_options
@click.option(
    "--data", "given", type=folder, multiple=True, metavar="DIR", help="Train on this data; repeatable."
)
@click.option("--minutes", type=POSITIVE, metavar="M", help="Train for so long.")
@click.option("--epochs", type=POSITIVE, default=3.0, help="Or: passes over the data.")
@click.option("--rate", type=POSITIVE, default=1e-3, help="Highest learning rate.")
@click.option("--batch", type=click.IntRange(16), default=4096, metavar="N", help="Rows of text a batch.")
@click.option(
    "--draft-vocab", type=click.IntRange(1), default=8192, metavar="N", help="Tokens the head can say."
)
@click.option(
    "--unroll", type=click.IntRange(1, 8), default=4, metavar="K", help="Steps of training-time test."
)
@click.option("--start", type=folder, metavar="DIR", help="Begin from the weights of this earlier training.")
def eagle3(
    model: str,
    output: Path,
    tokens: int,
    prompts: Path | None,
    disk: float | None,
    seed: int,
    threads: int | None,
    given: tuple[Path, ...],
    minutes: float | None,
    epochs: float,
    rate: float,
    batch: int,
    draft_vocab: int,
    unroll: int,
    start: Path | None,
) -> None:
    """An EAGLE-3 head: one layer that reads three of the target's hidden states."""
    need_torch(threads)
    folders = list(given)
    if not folders:
        folders = [output / "data"]
        write_data(folders[0], model, tokens, prompts, disk, seed, threads)
    from forerun.training.run import Job, train
    from forerun.training.trainer import Settings

    settings = Settings(minutes=minutes, epochs=None if minutes else epochs, rate=rate, rows=batch, seed=seed)
    command = "forerun " + " ".join(sys.argv[1:])
    job = Job("eagle3", model, output, folders, settings, draft_vocab, unroll, start, command)
    with TrainingDisplay() as display:
        figures = train(job, display.show, display.tell)
    print(
        f"{output}: mean accepted length {figures.mean_accepted_length:.2f} on held-out text, single chains"
    )


def need_torch(threads: int | None) -> None:
    """Refuse where torch is missing; let it use so many threads."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("training needs PyTorch; install it with: pip install 'forerun[torch]'")
    from forerun.training.threads import use_threads

    use_threads(threads)


def write_data(
    folder: Path,
    model: str,
    tokens: int,
    prompts: Path | None,
    disk: float | None,
    seed: int,
    threads: int | None,
) -> None:
    """Let the model write until the folder holds so many tokens."""
    from forerun.cli.options import load_engine
    from forerun.training.data import open_to_write
    from forerun.training.prompts import read_prompts
    from forerun.training.writer import Writer

    engine = load_engine(
        model, drafter="none", dtype="auto", kv="auto", context=None, threads=threads, kernels=""
    )
    asked = None if prompts is None else read_prompts(prompts)
    with open_to_write(engine, folder, model=model, seed=seed, prompts=prompts) as store:
        if disk is not None:
            tokens = min(tokens, int(disk * GIGABYTE / store.position_bytes))
        writer = Writer(engine, store, seed=seed, prompts=asked)
        with Display("writing data") as display:
            writer.write(tokens, lambda done, total: display(done / total, f"{done:,} of {total:,} tokens"))


class Display:
    """A progress bar on a terminal, a line a minute elsewhere; on standard error."""

    def __init__(self, label: str) -> None:
        self._label, self._last = label, monotonic()
        self._bar: Any = None

    def __call__(self, share: float, detail: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=share, detail=detail)
        elif monotonic() - self._last > QUIET_SECONDS:
            self.line(f"{self._label}: {share:.1%}, {detail}")
            self._last = monotonic()

    def line(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"))
            self._bar = Progress(
                *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
            )
            self._task = self._bar.add_task(self._label, total=1.0, detail="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class TrainingDisplay(Display):
    """What a training shows."""

    def __init__(self) -> None:
        super().__init__("training")

    def show(self, at: Progress, spent: float) -> None:
        speed = at.tokens / max(at.seconds, 1e-9)
        self(spent, f"loss {at.loss:.3f}, {at.tokens:,} tokens, {speed:,.0f}/s")

    def tell(self, at: Progress, figures: Figures) -> None:
        depths = " ".join(f"{share:.3f}" for share in figures.by_depth)
        self.line(
            f"after {at.tokens:,} tokens: loss {at.loss:.3f}, held out: right to depth {depths}, "
            f"mean accepted length {figures.mean_accepted_length:.2f}, among four {figures.among_four:.3f}, "
            f"sampled {figures.sampled:.3f}"
        )

    def __enter__(self) -> TrainingDisplay:
        super().__enter__()
        return self
