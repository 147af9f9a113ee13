"""Opening a head: which family it is, its tensors say."""

from __future__ import annotations

from pathlib import Path

from forerun.errors import InputError
from forerun.models.heads.eagle import canonical, looks_like_eagle, read_eagle
from forerun.models.heads.head import Head
from forerun.models.heads.medusa import looks_like_medusa, read_medusa
from forerun.models.heads.reading import read_head_folder
from forerun.models.shipped import short_name


def open_head(path: Path) -> Head:
    """Open a head's folder. InputError, one line, for anything that cannot be used."""
    if path.suffix == ".gguf" and path.is_file():
        raise InputError(f"{path} is a model, not a drafting head; write draft:{short_name(path)}")
    if not (path / "config.json").is_file():
        what = "it has no config.json" if path.is_dir() else "it is no folder"
        raise InputError(f"{path} is not a drafting head's folder: {what}")
    try:
        folder = read_head_folder(path)
        if looks_like_medusa(folder):
            head = read_medusa(folder)
        elif looks_like_eagle(folder):
            head = read_eagle(folder)
        elif "layers.0.self_attn.q_proj.weight" in map(canonical, folder.entries):
            raise InputError(f"{path} holds a whole model, not a drafting head; write draft:{path}")
        else:
            raise InputError(f"{path} holds no drafting head that is known here (EAGLE, EAGLE-3 or Medusa)")
        folder.refuse_what_is_left()
        return head
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def is_head(path: Path) -> bool:
    """Whether a folder holds a drafting head, and no model that can write by itself."""
    try:
        folder = read_head_folder(path)
    except (InputError, OSError):
        return False
    return looks_like_medusa(folder) or looks_like_eagle(folder)
