"""Drafters that come with the package, by name: `smollm2-135m/eagle3`."""

from __future__ import annotations

import re
from pathlib import Path

DRAFT_FILE = "draft.gguf"
"""The draft model in a folder that `forerun train draft` filled."""

FOLDER = Path(__file__).parents[1] / "heads"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*/[a-z0-9]+", re.ASCII)


def shipped(name: str) -> Path | None:
    """The folder of the package's head or draft model of this name, or None."""
    folder = FOLDER / name
    there = _NAME.fullmatch(name) and any((folder / file).is_file() for file in ("config.json", DRAFT_FILE))
    return folder if there else None


def shipped_heads() -> list[str]:
    """The names of the package's heads."""
    return sorted(short_name(file.parent) for file in FOLDER.glob("*/*/config.json"))


def shipped_drafts() -> list[str]:
    """The names of the package's draft models."""
    return sorted(short_name(file) for file in FOLDER.glob(f"*/*/{DRAFT_FILE}"))


def drafting_file(path: Path) -> Path:
    """The draft model in a folder, if it holds one; `path` itself otherwise."""
    return path / DRAFT_FILE if (path / DRAFT_FILE).is_file() else path


def short_name(path: Path) -> str:
    """What to call a head's folder or a draft model's file: by its name if it is the package's and no folder
    of the user's, which would go first, has that name; otherwise by its path."""
    folder = path.parent if path.name == DRAFT_FILE else path
    name = f"{folder.parent.name}/{folder.name}"
    if shipped(name) == folder and not Path(name).exists():
        return name
    return f"./{path}" if str(path).startswith("~") else str(path)  # a ~ in front is somebody's home
