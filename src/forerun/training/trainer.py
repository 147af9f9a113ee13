"""The training loop: one for every kind of drafter. Stopping it at any time loses minutes at most."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from forerun.errors import InputError
from forerun.files import write_whole
from forerun.training.batches import Batch, Conversations, Place, in_batches
from forerun.training.means import KeptMeans
from forerun.words import counted

CHECKPOINT = "checkpoint.pt"
PARTS = {"module": dict, "optimizer": dict, "progress": dict, "counts": list, "about": dict}
"""Of a checkpoint, with their types."""

WARM_UP = 0.02
"""The share of the budget in which the learning rate rises."""

LEAST_RATE = 0.02
"""The last learning rate, as a share of the highest."""


class Student(Protocol):
    """What can be trained; a torch module."""

    @property
    def width(self) -> int:
        """Values of a row of `targets`."""

    @property
    def guess_bytes(self) -> int:
        """Bytes of weights that a guess reads where it serves."""

    def targets(self, batch: Batch) -> Tensor:
        """What the loss needs of the target's distributions at the wanted rows: bfloat16 [n, `width`]."""

    def loss(self, batch: Batch, means: Tensor) -> tuple[Tensor, float]:
        """The loss to minimise and a figure to show: the cross-entropy of its first guess."""

    def guesses(self, batch: Batch, depth: int) -> tuple[Tensor, Tensor]:
        """Which guesses are right with all before them, bool [n, depth], or less where it guesses less deep;
        bool [n]: among the best four."""


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        epochs: passes over the data, or None.
        minutes: of training, or None; one of the two is given.
        rate: the highest learning rate.
        rows: of a batch, at most about.
        seed: of the order of the data.
        checkpoint_minutes: between two checkpoints.
        depth: guesses deep that held-out text is judged.
        judged_rows: of held-out text at a checkpoint, at most about.
    """

    epochs: float | None = None
    minutes: float | None = None
    rate: float = 1e-3
    rows: int = 1024
    seed: int = 0
    checkpoint_minutes: float = 4.0
    depth: int = 5
    judged_rows: int = 60_000


@dataclass
class Figures:
    """What held-out text says.

    Attributes:
        by_depth: share of chains whose guesses up to this depth are what the target wrote at temperature 0;
            empty where no such text is held out, and then nothing is known.
        among_four: share of positions whose token is among the four best first guesses.
        sampled: the share of right first guesses where the target sampled at higher temperatures.
        speed_up: how many times as fast as plain decoding the best chain should be here, if that is known.
    """

    by_depth: list[float]
    among_four: float
    sampled: float
    speed_up: float | None = None

    @property
    def mean_accepted_length(self) -> float:
        """Tokens a forward of the target would give, chains alone."""
        return 1 + sum(self.by_depth)


@dataclass
class Progress:
    """Where training is. `loss` is a running mean of the first guess's cross-entropy."""

    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0


class Trainer:
    """Trains a student on conversations; keeps its state in a folder.

    Args:
        module: a torch module that is a Student.
        data: what to train on.
        folder: for the checkpoint.
        settings: how.
        about: what a checkpoint must agree with to be gone on from.
        kept: keeps what `module.targets` gives from one pass over the data to the next.
    """

    def __init__(
        self,
        module: Any,
        data: Conversations,
        folder: Path,
        settings: Settings,
        about: Mapping[str, object],
        kept: KeptMeans | None = None,
    ) -> None:
        self.module, self.data, self.folder, self.settings = module, data, folder, settings
        self.about, self.kept = dict(about), kept
        trained = [p for p in module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
        )
        self.at = Progress()
        self._batches = 0
        self.device = trained[0].device

    def run(
        self,
        show: Callable[[Progress, float], None],
        keep: Callable[[Figures], None],
    ) -> None:
        """Train to the end of the budget.

        Args:
            show: called after every batch with the progress and the share of the budget spent.
            keep: called at every checkpoint and at the end with held-out figures, to save what there is.

        Raises:
            InputError: there is no data, the training diverged, or its checkpoint cannot be written.
        """
        saved = monotonic()
        try:
            while True:
                groups = self.data.epoch(self.settings.seed, self.at.epoch, self.settings.rows)
                if not groups:
                    raise InputError("there is no data to train on; write more")
                self._batches = len(groups)
                while self.at.batch < len(groups):
                    if self.spent() >= 1:
                        return
                    self._seed_noise()
                    self._train(groups[self.at.batch])
                    self.at.batch += 1
                    show(self.at, self.spent())
                    if monotonic() - saved > 60 * self.settings.checkpoint_minutes:
                        self.save()
                        keep(self.judge())
                        saved = monotonic()
                self.at.epoch, self.at.batch = self.at.epoch + 1, 0
        finally:
            self.save()

    def spent(self) -> float:
        """The share of the budget that is spent, 0 to 1."""
        if self.settings.minutes is None:
            done = self.at.epoch + self.at.batch / max(1, self._batches)
            return min(1.0, done / (self.settings.epochs or 1.0))
        return min(1.0, self.at.seconds / (60 * self.settings.minutes))

    def rate(self) -> float:
        """The learning rate now: a short rise, then half a cosine (arXiv 1608.03983)."""
        spent = self.spent()
        if spent < WARM_UP:
            return self.settings.rate * (spent / WARM_UP + 1e-3)
        wave = 0.5 + 0.5 * math.cos(math.pi * (spent - WARM_UP) / (1 - WARM_UP))
        return self.settings.rate * (LEAST_RATE + (1 - LEAST_RATE) * wave)

    def _seed_noise(self) -> None:
        """What is drawn in a step depends on where training is alone."""
        place = np.random.SeedSequence((self.settings.seed, self.at.epoch, self.at.batch))
        torch.manual_seed(int(place.generate_state(1)[0]))

    def _train(self, places: list[Place]) -> None:
        start = monotonic()
        batch = self.data.batch(places).to(self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        with torch.autocast(self.device.type, torch.bfloat16):
            loss, first = self.module.loss(batch, self._targets(batch, places))
        if not math.isfinite(first) or not bool(loss.isfinite()):
            self.data.batch(places, checked=True)  # is it the data's fault?
            raise self._diverged()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        at = self.at
        at.loss = first if not at.tokens else 0.98 * at.loss + 0.02 * first
        at.tokens += batch.size
        at.seconds += monotonic() - start

    def _targets(self, batch: Batch, places: list[Place]) -> Tensor:
        found = None if self.kept is None else self.kept.read(places)
        if found is not None:
            return found.to(self.device)
        means: Tensor = self.module.targets(batch)
        if self.kept is not None and bool(means.isfinite().all()):
            self.kept.keep(places, means)
        return means

    def judge(self) -> Figures:
        """Try the student on held-out text."""
        chains, among = self._guesses(self.data.greedy_held_out, self.settings.depth)
        sampled, _ = self._guesses(self.data.held_out, 1)
        return Figures(
            [float(x) for x in chains.float().mean(0)] if len(chains) else [],
            float(among.float().mean()) if len(among) else 0.0,
            float(sampled.float().mean()) if len(sampled) else 0.0,
        )

    def _guesses(self, places: list[Any], depth: int) -> tuple[Tensor, Tensor]:
        chains, among = [], [torch.zeros(0, dtype=torch.bool)]
        share = max(1, round(sum(place.tokens for place in places) / self.settings.judged_rows))
        for batch in in_batches(self.data, places[::share], self.settings.rows):
            with torch.autocast(self.device.type, torch.bfloat16):
                right, best = self.module.guesses(batch.to(self.device), depth)
            chains.append(right.cpu())
            among.append(best.cpu())
        return torch.cat(chains) if chains else torch.zeros(0, depth), torch.cat(among)

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is whole.

        Raises:
            InputError: it cannot be written, or nothing good comes of these weights any more.
        """
        trained = [weights for group in self.optimizer.param_groups for weights in group["params"]]
        if not all(bool(weights.isfinite().all()) for weights in trained):
            raise self._diverged()
        state = {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.at),
            "counts": self.data.counts,
            "about": self.about,
        }
        written = io.BytesIO()  # torch does not tell a full disk from a fault of its own
        torch.save(state, written)
        write_whole(self.folder / CHECKPOINT, written.getbuffer())

    def _diverged(self) -> InputError:
        if not self.at.tokens:
            return InputError(
                "the loss is not finite before anything is trained: hidden states of --data or weights of"
                " --start are too large to compute with; name others"
            )
        return InputError(
            f"the training diverged after {counted(self.at.tokens, 'token')}: its numbers are not finite any "
            f"more; train with a lower --rate than {self.settings.rate:g}, in another folder"
        )

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state.

        Raises:
            InputError: it is of another training, or damaged.
        """
        if state["about"] != self.about:
            raise InputError(
                f"{self.folder} holds a training with other settings; go on with those, or elsewhere"
            )
        load_weights(self.module, state["module"], self.folder)
        ours = self.optimizer.state_dict()["param_groups"]  # settings, which are those of this run
        try:
            self.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": ours})
            self.at = Progress(**state["progress"])
            sound = _is_sound(self.at) and all(_fits(*one) for one in self.optimizer.state.items())
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"cannot go on from {self.folder / CHECKPOINT}: {error}") from error
        if not sound:
            raise InputError(
                f"cannot go on from {self.folder / CHECKPOINT}: it is damaged; remove it or name another"
                " folder"
            )


def _is_sound(at: Progress) -> bool:
    """Whether a training can have come so far."""
    counts, figures = (at.epoch, at.batch, at.tokens), (at.seconds, at.loss)
    return all(type(n) is int and 0 <= n < 1 << 62 for n in counts) and all(
        type(x) is float and 0 <= x < math.inf for x in figures
    )


def _fits(weights: object, state: Mapping[str, object]) -> bool:
    """Whether this is AdamW's state for these weights, all finite: its fused kernels trust the sizes."""
    if not isinstance(weights, Tensor):
        return False
    shapes = {"step": torch.Size(), "exp_avg": weights.shape, "exp_avg_sq": weights.shape}
    return state.keys() == shapes.keys() and all(
        isinstance(value, Tensor) and value.shape == shapes[name] and bool(value.isfinite().all())
        for name, value in state.items()
    )


def load_weights(module: torch.nn.Module, weights: Mapping[str, Any], folder: Path) -> None:
    """Take over the weights of the training in `folder`.

    Raises:
        InputError: they are of other sizes, or not finite.
    """
    numbers = [w for w in weights.values() if isinstance(w, Tensor) and w.is_floating_point()]
    if not all(bool(w.isfinite().all()) for w in numbers):
        raise InputError(f"{folder / CHECKPOINT} holds weights that are not finite; name another folder")
    try:
        module.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise InputError(
            f"{folder} holds a training of other sizes, or for another model; name another folder"
        ) from error


def read_checkpoint(
    folder: Path, parts: Sequence[str] = tuple(PARTS), aim: str = "go on"
) -> dict[str, Any] | None:
    """The state that `Trainer.save` wrote, or None. `parts`: what of it is wanted, to this aim.

    Raises:
        InputError: the file is damaged, or lacks a part.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"cannot {aim} from {path}: {error.strerror or error}") from error
    with file:
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
            missing = [part for part in parts if not isinstance(state.get(part), PARTS[part])]
        except Exception as error:  # torch raises many kinds, with pages of advice
            raise InputError(
                f"cannot {aim} from {path}: it is damaged, or no checkpoint; remove it or name another folder"
            ) from error
    if missing:
        raise InputError(f"cannot {aim} from {path}: it lacks {', '.join(sorted(missing))}")
    return state
