"""What `forerun inspect DRAFTER --target MODEL` tells: whether a drafter fits a model, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np

from forerun.errors import InputError, one_line

if TYPE_CHECKING:
    from forerun.models.checkpoint import Checkpoint
    from forerun.models.config import ModelConfig
    from forerun.models.heads import Head
    from forerun.models.rope import Frequencies

SHOWN = 5
"""Tokens that differ and are told."""


class Fit(TypedDict):
    """How a drafter and a model go together.

    why:            what does not fit; None if all does
    notes:          what fits and is worth knowing
    compared_ids:   of a draft model: ids that both vocabularies have
    different_ids:  how many of these mean other tokens
    """

    target: str
    fits: bool
    why: str | None
    notes: list[str]
    compared_ids: int | None
    different_ids: int | None


def fit_of_head(head: Head, target: Checkpoint) -> Fit:
    """Whether a head was made for a model of these sizes."""
    from forerun.models.heads.frequent import frequent_part

    config, why, notes = target.config, None, []
    try:
        head.check_fits(config)
    except InputError as error:
        why = str(error)
    else:
        guessed = frequent_part(head, config).outputs or config.vocab_size
        states = ", ".join(map(str, head.taps_for(config)))
        notes.append(f"reads the hidden states {states} of 0 to {config.layers}")
        notes.append(f"guesses {min(guessed, config.vocab_size):,} of its {config.vocab_size:,} tokens")
        if head.layer is not None:
            notes += _positions(head.layer.inv_freq, head.layer.rope_scale, config)
    return _fit(target, why, notes)


def fit_of_draft(draft: Checkpoint, target: Checkpoint) -> Fit:
    """Whether a model means the same tokens as another, and can draft for it."""
    from forerun import text
    from forerun.models.draft_vocabulary import draft_vocabulary
    from forerun.text.vocabularies import refuse_other_vocabulary, shared_vocabulary

    of_target, config = text.from_checkpoint(target), target.config
    part = draft_vocabulary(draft.metadata, draft.config.vocab_size, draft.path)
    own = part or text.from_checkpoint(draft)
    shared, why = shared_vocabulary(of_target, own), None
    try:
        refuse_other_vocabulary(str(draft.path), of_target, own, config.vocab_size)
    except InputError as error:
        why = str(error)
    notes = [f"{shared.compared - len(shared.others):,} of {shared.compared:,} ids mean the same tokens"]
    if shared.others:
        told = [f"{token} is {here!r}, in the target {there!r}" for token, here, there in shared.others]
        notes.append("others: " + "; ".join(told[:SHOWN]) + ("; ..." if len(told) > SHOWN else ""))
    if draft.config.context < config.context:
        notes.append(f"silent beyond {draft.config.context:,} tokens of {config.context:,}")
    notes += _positions(draft.config.inv_freq, draft.config.rope_scale, config)
    return {**_fit(target, why, notes), "compared_ids": shared.compared, "different_ids": len(shared.others)}


def _positions(frequencies: Frequencies, scale: float, target: ModelConfig) -> list[str]:
    """A note where a drafter of the same head size counts positions otherwise: as its own files say, which
    may be what it was trained with, or an oversight of who wrote them."""
    if frequencies.shape != target.inv_freq.shape:
        return []
    same = np.allclose(frequencies, target.inv_freq, rtol=1e-4) and abs(scale - target.rope_scale) < 1e-4
    return [] if same else ["its rotary base or scaling is not the target's; its own is used"]


def _fit(target: Checkpoint, why: str | None, notes: list[str]) -> Fit:
    return Fit(
        target=str(target.path),
        fits=why is None,
        why=why,
        notes=notes,
        compared_ids=None,
        different_ids=None,
    )


def fit_as_text(fit: Fit) -> str:
    """The facts in lines for people."""
    rows = [("target", fit["target"]), ("fits", "yes" if fit["fits"] else "no")]
    rows += [("", note) for note in fit["notes"]]
    return "\n".join(f"{label:<16} {one_line(text)}".rstrip() for label, text in rows)
