"""`forerun train`: make a drafter for a model, from nothing but the model."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.failures import told_if_interrupted
from forerun.cli.options import FiniteRange, model_option, threads_option
from forerun.cli.streams import say
from forerun.cli.train_display import AGAIN, Display, TrainingDisplay, expected
from forerun.errors import InputError
from forerun.lists import quoted
from forerun.models.config import LARGEST_VOCABULARY

if TYPE_CHECKING:
    from forerun.engine import Engine
    from forerun.training.eagle_head import Layout
    from forerun.training.run import Job

GIGABYTE = 1 << 30
POSITIVE = FiniteRange(0, min_open=True)
DRAFT_VOCAB = 8192
GUESSES = 8
"""Verified a step where a trained drafter is tried."""


def gathered(name: str, kind: type[Any], *several: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator. The command gets them as one argument `name`: a dataclass with a
    field for each."""

    def decorate(command: Callable[..., None]) -> Any:
        @wraps(command)
        def call(**values: Any) -> None:
            found = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            command(**values, **{name: found})

        made: Any = call
        for one in reversed(several):
            made = one(made)
        return made

    return decorate


@dataclass(frozen=True)
class Wish:
    """What is asked about model and data; see the options."""

    model: str
    output: Path
    tokens: int
    prompts: Path | None
    disk: float | None
    seed: int
    threads: int | None


@dataclass(frozen=True)
class Course:
    """What is asked about training; see the options."""

    given: tuple[Path, ...]
    minutes: float | None
    epochs: float
    rate: float
    batch: int
    draft_vocab: int | None
    start: Path | None


folder = click.Path(path_type=Path, file_okay=False)
data_options = gathered(
    "wish",
    Wish,
    model_option,
    click.option(
        "-o",
        "--output",
        type=folder,
        required=True,
        metavar="DIR",
        help="The folder for the data and the drafter.",
    ),
    click.option(
        "--tokens",
        type=click.IntRange(1),
        default=2_000_000,
        metavar="N",
        help="Tokens of data that the model writes.",
    ),
    click.option(
        "--prompts",
        type=click.Path(path_type=Path, exists=True),
        metavar="PATH",
        help="Requests to answer: a text file (one a paragraph), a .jsonl file, or a folder of these. "
        "Without it the model makes its own.",
    ),
    click.option(
        "--disk",
        type=POSITIVE,
        metavar="GB",
        help="Keep hidden states up to this much; those of further tokens are computed again in training.",
    ),
    click.option(
        "--seed", type=click.IntRange(0, 2**32 - 1), default=0, metavar="S", help="Of data and training."
    ),
    threads_option,
)
training_options = gathered(
    "course",
    Course,
    click.option(
        "--data",
        "given",
        type=folder,
        multiple=True,
        metavar="DIR",
        help="Train on data written before. Repeatable.",
    ),
    click.option("--minutes", type=POSITIVE, metavar="M", help="Train for M minutes, instead of --epochs."),
    click.option("--epochs", type=POSITIVE, default=3.0, metavar="N", help="Passes over the data."),
    click.option("--rate", type=POSITIVE, default=1e-3, metavar="R", help="Highest learning rate."),
    click.option(
        "--batch", type=click.IntRange(16), default=1024, metavar="N", help="Tokens of text a batch, about."
    ),
    click.option(
        "--draft-vocab",
        type=click.IntRange(16),
        show_default=str(DRAFT_VOCAB),
        metavar="N",
        help="Tokens that it can guess, the most frequent ones.",
    ),
    click.option(
        "--start", type=folder, metavar="DIR", help="Begin from the weights of an earlier training."
    ),
)


loss_vocab_option = click.option(
    "--loss-vocab",
    type=click.IntRange(16),
    metavar="N",
    help="Tokens between which the loss tells, by default those of --draft-vocab; where both are given, no"
    " fewer. The file names those of --draft-vocab (in the layout small).",
)

layout_option = click.option(
    "--layout",
    type=click.Choice(["small", "original", "speculators"]),
    default="small",
    help="How the head is written: small (for this engine: without what is the target's own), or whole, "
    "as its authors or as speculators lay it out (for other engines too).",
)


@click.group(no_args_is_help=False)
def train() -> None:
    """Make a drafter for a model.

    It needs no data set: the model itself writes what the drafter learns from. Stop it when you like: the
    same command goes on where it was.
    """


@train.command()
@data_options
def data(wish: Wish) -> None:
    """Write data only.

    Trainings take it with --data DIR.
    """
    write_data(wish, open_target(wish), wish.output)


@train.command()
@data_options
@training_options
@click.option(
    "--unroll",
    type=click.IntRange(1, 8),
    default=4,
    metavar="K",
    help="Guesses in a row that training looks at.",
)
@loss_vocab_option
@layout_option
def eagle3(wish: Wish, course: Course, unroll: int, loss_vocab: int | None, layout: Layout) -> None:
    """Train an EAGLE-3 head.

    One layer, which reads three of the model's hidden states.
    """
    run(wish, replace(new_job("eagle3", wish, course, loss_vocab), steps=unroll, layout=layout))


@train.command()
@data_options
@training_options
@loss_vocab_option
@click.option(
    "--layout",
    type=click.Choice(["small", "original"]),
    default="small",
    help="How the head is written: small (for this engine), or whole, as its authors lay it out.",
)
def eagle(wish: Wish, course: Course, loss_vocab: int | None, layout: Layout) -> None:
    """Train an EAGLE-1 head.

    One layer, which foretells the model's final hidden state.
    """
    run(wish, replace(new_job("eagle", wish, course, loss_vocab), layout=layout))


@train.command()
@data_options
@training_options
@click.option("--heads", type=click.IntRange(1, 16), default=4, metavar="K", help="Tokens guessed ahead.")
@click.option("--blocks", type=click.IntRange(1, 8), default=1, metavar="K", help="Residual blocks a head.")
@loss_vocab_option
@click.option(
    "--layout",
    type=click.Choice(["small", "original"]),
    default="small",
    help="How the heads are written: small (vLLM's, with the draft vocabulary), or as their authors lay them"
    " out, with the whole vocabulary.",
)
def medusa(
    wish: Wish, course: Course, heads: int, blocks: int, loss_vocab: int | None, layout: Layout
) -> None:
    """Train Medusa heads.

    Each guesses one token further ahead, from the model's final hidden state.
    """
    job = heads_job("medusa", wish, course, loss_vocab, layout)
    run(wish, replace(job, heads=heads, blocks=blocks))


@train.command()
@data_options
@training_options
@click.option("--heads", type=click.IntRange(1, 16), default=3, metavar="K", help="Tokens guessed ahead.")
@click.option("--blocks", type=click.IntRange(1, 8), default=1, metavar="K", help="Blocks a head.")
@loss_vocab_option
@click.option(
    "--layout",
    type=click.Choice(["small", "original"]),
    default="small",
    help="How the heads are written: small (for this engine: without an output layer), or as their authors"
    " lay them out, with the whole vocabulary.",
)
def hydra(
    wish: Wish, course: Course, heads: int, blocks: int, loss_vocab: int | None, layout: Layout
) -> None:
    """Train Hydra heads.

    Medusa's, each of which also reads the tokens that those before it guess.
    """
    job = heads_job("hydra", wish, course, loss_vocab, layout)
    run(wish, replace(job, heads=heads, blocks=blocks))


@train.command()
@data_options
@training_options
@click.option(
    "--hidden",
    type=click.IntRange(32, 4096),
    metavar="N",
    help="Begin from nothing, with so many values a token between layers; without it, the model's own layers "
    "are the beginning.",
)
@click.option("--layers", type=click.IntRange(1, 64), default=4, metavar="N", help="Decoder layers.")
@click.option(
    "--layout",
    type=click.Choice(["small", "original"]),
    default="small",
    help="How the draft model is written: small (for this engine: in 4 bits, with the draft vocabulary), or "
    "whole, as a Hugging Face folder (for other engines too).",
)
def draft(wish: Wish, course: Course, hidden: int | None, layers: int, layout: Layout) -> None:
    """Train a small draft model.

    It begins as some of the model's own layers, or from nothing (--hidden).
    """
    if hidden is not None and hidden % 32:
        raise InputError(f"--hidden is {hidden}; it must be a multiple of 32")
    if layout == "original":
        refuse_part(course)
    run(wish, replace(new_job("draft", wish, course), hidden=hidden, layers=layers, layout=layout))


def heads_job(kind: str, wish: Wish, course: Course, loss_vocab: int | None, layout: Layout) -> Job:
    """The training of heads whose authors' layout has the whole vocabulary."""
    if layout == "original":
        refuse_part(course, loss_vocab)
        course = replace(course, draft_vocab=LARGEST_VOCABULARY)
    return replace(new_job(kind, wish, course, loss_vocab), layout=layout)


def refuse_part(course: Course, loss_vocab: int | None = None) -> None:
    """Of a layout that has the whole vocabulary.

    Raises:
        InputError: a part of it is asked for.
    """
    for option, value in (("--draft-vocab", course.draft_vocab), ("--loss-vocab", loss_vocab)):
        if value is not None:
            raise InputError(
                f"--layout original has the whole vocabulary; leave {option} out, or write --layout small"
            )


def new_job(kind: str, wish: Wish, course: Course, loss_vocab: int | None = None) -> Job:
    """The training of one kind of drafter, its data written. Minutes go before epochs."""
    draft_vocab = named_tokens(course.draft_vocab, loss_vocab)
    need_torch(wish.threads)
    from forerun.backends.cpu import CpuBackend
    from forerun.training.folder import check_output
    from forerun.training.run import Job
    from forerun.training.speedup import measure_costs
    from forerun.training.store import Store
    from forerun.training.trainer import Settings

    engine = open_target(wish)
    check_output(wish.output, wish.model)
    folders = list(course.given) or [wish.output / "data"]
    if not course.given:
        write_data(wish, engine, folders[0])
    settings = Settings(
        minutes=course.minutes,
        epochs=None if course.minutes else course.epochs,
        rate=course.rate,
        rows=course.batch,
        seed=wish.seed,
    )
    backend = engine.backend
    assert isinstance(backend, CpuBackend)
    return Job(
        kind,
        wish.model,
        wish.output,
        folders,
        settings,
        draft_vocab,
        loss_vocab,
        course.start,
        command_line(),
        costs=measure_costs(backend),
        target=None if all(Store(folder).is_whole for folder in folders) else backend,
    )


def named_tokens(draft_vocab: int | None, loss_vocab: int | None) -> int:
    """How many tokens the drafter's file names: --draft-vocab, or its default within --loss-vocab."""
    if draft_vocab is None:
        return min(DRAFT_VOCAB, loss_vocab or DRAFT_VOCAB)
    if loss_vocab is not None and loss_vocab < draft_vocab:
        raise InputError(f"--loss-vocab is {loss_vocab}, less than the {draft_vocab} tokens of --draft-vocab")
    return draft_vocab


def open_target(wish: Wish, draft_tokens: int | None = None) -> Engine:
    """The model that is drafted for."""
    from forerun.cli.options import load_engine

    return load_engine(
        wish.model,
        drafter="none",
        dtype="auto",
        kv="auto",
        context=None,
        threads=wish.threads,
        kernels="",
        draft_tokens=draft_tokens,
    )


def command_line() -> str:
    """What the user typed, for the card."""
    return shlex.join(["forerun", *sys.argv[1:]])


def run(wish: Wish, job: Job) -> None:
    """Train, try the drafter where it serves, and say what came of it."""
    from forerun.training.run import add_to_card, held_out
    from forerun.training.run import train as train_drafter
    from forerun.training.served import serve

    display = TrainingDisplay()
    with told_if_interrupted(lambda: display.far(job.folder)), display:
        figures = train_drafter(job, display.show, display.tell, display.begin)
    # as anybody would load it, now that the drafter is there
    engine = open_target(wish, draft_tokens=GUESSES)
    name = quoted(f"{'draft' if job.kind == 'draft' else 'head'}:{job.folder.absolute()}")
    untried = f"the drafter is in {job.folder}; it was not tried to the end"
    with told_if_interrupted(lambda: untried), Display("trying it") as trying:
        served = serve(engine, name, GUESSES, held_out(job), trying)
    if served is not None:
        add_to_card(job.folder, served)
    judged = "no text was held out to judge it by"
    if figures.by_depth:
        judged = f"mean accepted length of chains {figures.mean_accepted_length:.2f} on held-out text"
    print(
        f"{job.folder}: {judged}"
        + expected(figures.speed_up)
        + ("" if served is None else f"; served in trees of {GUESSES}: {served.mean_accepted_length:.2f}")
    )


def need_torch(threads: int | None) -> None:
    """Refuse where torch is missing; let it use so many threads."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("training needs PyTorch; install it with: pip install 'forerun[torch]'")
    from forerun.training.threads import use_threads

    use_threads(threads)


def write_data(wish: Wish, engine: Engine, folder: Path) -> None:
    """Let the model write until the folder holds as many tokens as wished."""
    from forerun.training.data import open_to_write
    from forerun.training.prompts import read_prompts
    from forerun.training.writer import Writer

    prompts = None if wish.prompts is None else read_prompts(wish.prompts)
    room = None if wish.disk is None else int(wish.disk * GIGABYTE)
    with open_to_write(
        engine, folder, model=wish.model, seed=wish.seed, prompts=wish.prompts, most_bytes=room
    ) as store:
        writer = Writer(engine, store, seed=wish.seed, prompts=prompts)

        def far() -> str:
            return f"{folder} holds {writer.tokens:,} of {wish.tokens:,} tokens; {AGAIN}"

        with told_if_interrupted(far), Display("writing data") as display:
            writer.write(
                wish.tokens, lambda done, total: display(done / total, f"{done:,} of {total:,} tokens")
            )
        if writer.tokens < wish.tokens:
            say(
                f"there is no more to write about: {folder} holds {writer.tokens:,} of {wish.tokens:,} tokens"
            )
