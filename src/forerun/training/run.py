"""From a model to a trained drafter: write data, train, save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from forerun import text
from forerun.errors import InputError
from forerun.files import write_whole
from forerun.models.backend import Backend
from forerun.models.checkpoint import Checkpoint, open_checkpoint
from forerun.models.hub import public_name, resolve_model
from forerun.training import means
from forerun.training.batches import Batch, Conversations
from forerun.training.data import Recorder, open_to_read
from forerun.training.draft import Draft, Shape
from forerun.training.eagle import Eagle
from forerun.training.eagle3 import Eagle3
from forerun.training.eagle_head import EagleHead, Layout
from forerun.training.export import Recipe, model_card
from forerun.training.folder import CARD, keep_one_layout
from forerun.training.heads_ahead import HeadsAhead
from forerun.training.hydra import BEGINNING_ROWS, Hydra
from forerun.training.lock import sole_writer
from forerun.training.means import KeptMeans
from forerun.training.medusa import Medusa
from forerun.training.served import Served
from forerun.training.speedup import Costs
from forerun.training.trainer import (
    CHECKPOINT,
    Figures,
    Progress,
    Settings,
    Trainer,
    load_weights,
    read_checkpoint,
)
from forerun.words import counted


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        kind: "eagle3", "eagle", "medusa", "hydra" or "draft".
        model: the target, as the user names it.
        folder: takes the drafter and the training's state.
        data: folders of data.
        settings: of the loop.
        draft_vocabulary: tokens that the drafter's file names; at most all.
        loss_vocabulary: tokens between which the loss tells, at least as many; None are those, or those of
            the training that is gone on with. A layout other than "small" names them all; a draft model has
            no others.
        start: a folder of an earlier training of this kind, to begin from its weights.
        command: the command line, for the card.
        steps: of EAGLE-3's training-time test.
        layout: of the drafter's files; of Medusa and Hydra "original" needs the whole vocabulary.
        heads: of Medusa or Hydra.
        blocks: of each.
        hidden, layers: of a draft model; see `draft.Shape`.
        costs: of the target, to tell what the drafter should gain.
        target: the loaded model, needed where the data lacks hidden states.
    """

    kind: str
    model: str
    folder: Path
    data: list[Path]
    settings: Settings
    draft_vocabulary: int = 8192
    loss_vocabulary: int | None = None
    start: Path | None = None
    command: str = ""
    steps: int = 4
    layout: Layout = "small"
    heads: int = 4
    blocks: int = 1
    hidden: int | None = None
    layers: int = 4
    costs: Costs | None = None
    target: Backend | None = None


def train(
    job: Job,
    show: Callable[[Progress, float], None],
    tell: Callable[[Progress, Figures], None],
    begin: Callable[[float], None] = lambda share: None,
) -> Figures:
    """Train, or go on with a training that was interrupted; the drafter in `job.folder` is always whole.

    Args:
        show: called after every batch with progress and the share of the budget spent.
        tell: called at every checkpoint with held-out figures.
        begin: called before, with the share done, where a beginning is solved for (Hydra's).

    Raises:
        InputError: data or folders that cannot be used.
    """
    checkpoint = open_checkpoint(resolve_model(job.model))
    job.folder.mkdir(parents=True, exist_ok=True)
    with sole_writer(job.folder):
        return _train(job, checkpoint, show, tell, begin)


def _train(
    job: Job,
    checkpoint: Checkpoint,
    show: Callable[[Progress, float], None],
    tell: Callable[[Progress, Figures], None],
    begin: Callable[[float], None],
) -> Figures:
    config = checkpoint.config
    state = read_checkpoint(job.folder)
    stores = open_to_read(job.data, config.hidden_size, config.layers, config.vocab_size)
    recorder = None if job.target is None else Recorder(job.target)
    counts = None if state is None else state["counts"]
    if counts is not None and [type(count) for count in counts] != [int] * len(stores):
        raise InputError(
            f"{job.folder} holds a training on {counted(len(counts), 'folder')} of data, not on "
            f"{len(stores)}; go on with the same --data, or elsewhere"
        )
    data = Conversations(stores, counts, recorder=recorder)
    if not data.training:
        raise InputError("the data holds no conversation to train on; write more")
    torch.manual_seed(job.settings.seed)
    module = _module(job, checkpoint, data, state).to("cuda" if torch.cuda.is_available() else "cpu")
    shape = {
        "eagle3": [job.steps],
        "eagle": [],
        "medusa": [job.heads, job.blocks],
        "hydra": [job.heads, job.blocks],
        "draft": [job.hidden, job.layers, job.layout],
    }
    about = {"kind": job.kind, "shape": shape[job.kind], "rate": job.settings.rate, "seed": job.settings.seed}
    kept = _kept(job, data, module.width, fresh=state is None)
    trainer = Trainer(module, data, job.folder, job.settings, about, kept)
    if state is not None:
        trainer.resume(state)
    elif isinstance(module, Hydra) and job.start is None:
        module.begin(_first_batches(data, job.settings, trainer.device, begin))
    recipe = Recipe(job.kind, job.model, job.command, data.tokens, len(module.vocabulary), len(module.named))

    def keep(figures: Figures) -> None:
        if job.costs is not None and figures.by_depth:
            figures.speed_up = job.costs.speed_up(figures.by_depth, module.guess_bytes)
        _save(job, checkpoint, module, recipe, trainer, figures)
        tell(trainer.at, figures)

    trainer.run(show, keep)
    if kept is not None:
        kept.remove()
    figures = trainer.judge()
    keep(figures)
    return figures


def held_out(job: Job) -> Conversations:
    """The data that it was trained on, of which a part was kept apart."""
    config = open_checkpoint(resolve_model(job.model)).config
    return Conversations(open_to_read(job.data, config.hidden_size, config.layers, config.vocab_size))


def add_to_card(folder: Path, served: Served) -> None:
    """Tell in the model card how the drafter did where it serves."""
    card = folder / CARD
    write_whole(card, card.read_text(encoding="utf-8", errors="surrogateescape") + served.line())


def _kept(job: Job, data: Conversations, width: int, fresh: bool) -> KeptMeans | None:
    """The file that spares later passes over the data a part of their work, if there will be any."""
    if fresh:
        (job.folder / means.NAME).unlink(missing_ok=True)
    once = job.settings.minutes is None and (job.settings.epochs or 1) <= 1
    begun = (job.folder / means.NAME).exists()
    if once or not (begun or means.room_for_means(job.folder, data, width)):
        return None
    return KeptMeans(job.folder, data, width)


def _first_batches(
    data: Conversations, settings: Settings, device: torch.device, begin: Callable[[float], None]
) -> Iterator[Batch]:
    """With `BEGINNING_ROWS` rows that are wanted, or all there are."""
    rows = 0
    for places in data.epoch(settings.seed, 0, settings.rows):
        if rows < BEGINNING_ROWS:
            yield data.batch(places, checked=True).to(device)
            rows += sum(place.wanted for place in places)
            begin(min(1.0, rows / BEGINNING_ROWS))


def _module(job: Job, checkpoint: Checkpoint, data: Conversations, state: dict[str, Any] | None) -> Any:
    counts = torch.from_numpy(data.token_counts(checkpoint.config.vocab_size))
    if state is not None:
        vocabulary = _vocabulary(state, job, checkpoint.config.vocab_size)
    else:
        vocabulary = most_frequent(counts, job.loss_vocabulary or job.draft_vocabulary)
    named = vocabulary
    if job.layout == "small":
        named = vocabulary[most_frequent(counts[vocabulary], job.draft_vocabulary)]
    if job.kind == "eagle3":
        module: Any = Eagle3(checkpoint, vocabulary, job.steps, named)
    elif job.kind == "eagle":
        module = Eagle(checkpoint, vocabulary, named)
    elif job.kind == "medusa":
        module = Medusa(checkpoint, vocabulary, job.heads, job.blocks, named)
    elif job.kind == "hydra":
        module = Hydra(checkpoint, vocabulary, job.heads, job.blocks, named)
    else:
        shape = Shape(job.hidden, job.layers, job.layout != "small")
        module = Draft(checkpoint, text.from_checkpoint(checkpoint), vocabulary, shape)
    if job.start and state is None:
        weights = {**_start(job.start, job.kind), "vocabulary": vocabulary}
        load_weights(module, module.grown(weights) if isinstance(module, HeadsAhead) else weights, job.start)
    return module


def most_frequent(counts: torch.Tensor, size: int) -> torch.Tensor:
    """int64, ascending: so many tokens that occur most often, all where there are no more. Of equals the low
    ids, which tokenizers give to frequent pieces: data may have fewer different tokens than are wanted."""
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


def _vocabulary(state: dict[str, Any], job: Job, size: int) -> torch.Tensor:
    """The tokens of a training that is gone on with, int64 [n]; the target has `size`."""
    found = state["module"].get("vocabulary")
    fine = isinstance(found, torch.Tensor) and found.dtype == torch.int64 and found.ndim == 1
    fine = fine and len(found) > 0 and bool((found.diff() > 0).all())
    if not fine or not 0 <= int(found[0]) <= int(found[-1]) < size:
        raise InputError(
            f"cannot go on from {job.folder / CHECKPOINT}: its draft vocabulary is not the model's"
        )
    trained, named = len(found), min(job.draft_vocabulary, size)
    asked = min(job.loss_vocabulary or (named if job.kind == "draft" else trained), size)
    if asked != trained or named > trained:
        raise InputError(
            f"{job.folder} holds a training with a vocabulary of {trained}, not of {max(asked, named)}; "
            "go on with that, or elsewhere"
        )
    return found


def _start(folder: Path, kind: str) -> dict[str, Any]:
    """The weights of an earlier training of this kind: of its checkpoint nothing else is needed."""
    state = read_checkpoint(folder, ("module", "about"), "begin")
    if state is None:
        raise InputError(f"{folder} holds no training to begin from")
    other = state["about"].get("kind")
    if other != kind:
        raise InputError(f"{folder} holds a training of {other}, not of {kind}")
    weights: dict[str, Any] = state["module"]
    return weights


def _save(
    job: Job, checkpoint: Checkpoint, module: Any, recipe: Recipe, trainer: Trainer, figures: Figures
) -> None:
    if isinstance(module, EagleHead | HeadsAhead):
        module.save(job.folder, public_name(job.model), job.layout)
    else:
        module.save(job.folder)
    keep_one_layout(job.folder, job.kind, job.layout)
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    card = model_card(recipe, checkpoint, job.settings, trainer.at, figures, trained)
    write_whole(job.folder / CARD, card)
