"""Heads that come with the package, by name: `smollm2-135m/eagle3`."""

from __future__ import annotations

import re
from pathlib import Path

from forerun.models.hub import resolve_model

FOLDER = Path(__file__).parents[2] / "heads"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*/[a-z0-9]+", re.ASCII)


def shipped_head(name: str) -> Path | None:
    """The folder of the package's head of this name, or None."""
    folder = FOLDER / name
    return folder if _NAME.fullmatch(name) and (folder / "config.json").is_file() else None


def resolve_head(where: str) -> Path:
    """The folder of a head: the package's of this name, a folder, or a hub id's, fetched if need be.

    Raises:
        InputError: there is none.
    """
    return shipped_head(where) or resolve_model(where, head=True)
