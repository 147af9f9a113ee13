"""The folder that a drafter is written to: nothing of anybody else's is written over, and the weights in it
are those of one layout."""

from __future__ import annotations

from pathlib import Path

from forerun.errors import InputError
from forerun.files import explained
from forerun.models.hub import resolve_model
from forerun.models.shipped import DRAFT_FILE
from forerun.training.trainer import CHECKPOINT
from forerun.weights.hf_folder import HEAD_FILES, HYDRA_FILES, INDEX, MEDUSA_FILES, PICKLED, SINGLE

CARD = "MODEL_CARD.md"
CONFIG = "config.json"
WEIGHTS = (SINGLE, MEDUSA_FILES[0], HYDRA_FILES[0], DRAFT_FILE)
"""Of all kinds and layouts."""

READ = (SINGLE, INDEX, PICKLED, *HEAD_FILES, DRAFT_FILE)
"""Files of weights that are looked for in a folder, whoever wrote them."""


def check_output(folder: Path, model: str) -> None:
    """Refuse a folder whose files a training would write over, or that would be read in place of what it
    writes: the model's own, or one of other weights. `model`: the target, as the user names it, on this
    machine by now.

    Raises:
        InputError: says what is in the way.
    """
    if folder.resolve() == resolve_model(model).resolve():
        raise InputError(f"{folder} is the model's own folder; name another one for the drafter (-o)")
    if (folder / CHECKPOINT).exists() or (folder / CARD).exists():  # of an earlier training
        return
    there = next((name for name in (*READ, CONFIG) if (folder / name).exists()), None)
    if there is not None:
        raise InputError(
            f"{folder} holds {there}, which no training has written; name another folder for the drafter (-o)"
        )


def keep_one_layout(folder: Path, kind: str, layout: str) -> None:
    """Remove the weights that the same training wrote in another layout: readers look for several files, and
    take the first that they find.

    Raises:
        InputError: one cannot be removed.
    """
    written = SINGLE
    if layout == "original" and kind in ("medusa", "hydra"):
        written = (MEDUSA_FILES if kind == "medusa" else HYDRA_FILES)[0]
    elif kind == "draft" and layout == "small":
        written = DRAFT_FILE
    for name in WEIGHTS:
        if name != written:
            with explained(folder / name):
                (folder / name).unlink(missing_ok=True)
