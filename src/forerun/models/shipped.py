"""Drafters that come with the package, by name: `smollm2-135m/eagle3`."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "heads"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*/[a-z0-9]+", re.ASCII)


def shipped(name: str) -> Path | None:
    """The folder of the package's head or draft model of this name, or None."""
    folder = FOLDER / name
    return folder if _NAME.fullmatch(name) and (folder / "config.json").is_file() else None


def short_name(folder: Path) -> str:
    """What to call a drafter's folder: by its name if it is the package's and no folder of the user's, which
    would go first, has that name; otherwise by its path."""
    name = f"{folder.parent.name}/{folder.name}"
    return name if shipped(name) == folder and not Path(name).exists() else str(folder)
