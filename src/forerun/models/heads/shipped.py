"""Heads that come with the package, by name: `smollm2-135m/eagle3`."""

from __future__ import annotations

import re
from pathlib import Path

from forerun.errors import InputError
from forerun.models.config import ModelConfig
from forerun.models.hub import resolve_model

FOLDER = Path(__file__).parents[2] / "heads"
BEST_FIRST = ("eagle3", "eagle", "medusa")
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*/[a-z0-9]+", re.ASCII)


def shipped_head(name: str) -> Path | None:
    """The folder of the package's head of this name, or None."""
    folder = FOLDER / name
    return folder if _NAME.fullmatch(name) and (folder / "config.json").is_file() else None


def fitting_heads(target: ModelConfig) -> list[str]:
    """Names of the package's heads that were made for a model of this shape, the best family first. One that
    was made for another model of the same shape only guesses badly."""
    from forerun.models.heads.opening import open_head

    found = []
    for folder in FOLDER.glob("*/*"):
        name = f"{folder.parent.name}/{folder.name}"
        if shipped_head(name) is None:
            continue
        head = open_head(folder)
        try:
            head.check_fits(target)
        except InputError:
            continue
        found.append((BEST_FIRST.index(head.family), name))
    return [name for _, name in sorted(found)]


def resolve_head(where: str) -> Path:
    """The folder of a head: the package's of this name, a folder, or a hub id's, fetched if need be.

    Raises:
        InputError: there is none.
    """
    return shipped_head(where) or resolve_model(where, head=True)
