"""Opening a head: which family it is, its tensors say."""

from __future__ import annotations

from pathlib import Path

from forerun.errors import InputError
from forerun.models.heads.eagle import canonical, looks_like_eagle, read_eagle
from forerun.models.heads.gguf import read_head_file
from forerun.models.heads.head import Head
from forerun.models.heads.hydra import looks_like_hydra, read_hydra
from forerun.models.heads.medusa import looks_like_medusa, read_medusa
from forerun.models.heads.reading import Folder, read_head_folder
from forerun.models.hub import Sought, resolve_model
from forerun.weights.gguf_file import is_gguf

SPECULATORS = ("eagle", "eagle3")
"""Kinds of speculators' drafters that are read. Others have the same tensors and another meaning."""


def find_head(where: str, family: str = "head") -> Head:
    """The head that the drafter `family:where` names: a folder, a GGUF file, a hub id, or the package's.

    Raises:
        InputError: there is none, it cannot be used, or it is of another family; "head" is any.
    """
    head = open_head(resolve_model(where, Sought.HEAD))
    if family not in ("head", head.family):
        raise InputError(f"{where} is of the family {head.family}; write {head.family}:{where}")
    return head


def open_head(path: Path) -> Head:
    """Open a head's folder, or its GGUF file. InputError, one line, for anything that cannot be used."""
    if not (path.is_file() or (path / "config.json").is_file()):
        what = "it has no config.json" if path.is_dir() else "it is no folder"
        raise InputError(f"{path} is not a drafting head's folder: {what}")
    try:
        folder = _read(path)
        kind = folder.config.get("speculators_model_type")
        if kind not in (None, *SPECULATORS):
            raise InputError(
                f"{path} holds a drafter of speculators' kind {kind!r}; those that are known here are"
                f" {' and '.join(SPECULATORS)}"
            )
        if looks_like_hydra(folder):
            head = read_hydra(folder)
        elif looks_like_medusa(folder):
            head = read_medusa(folder)
        elif looks_like_eagle(folder):
            head = read_eagle(folder)
        elif "layers.0.self_attn.q_proj.weight" in map(canonical, folder.entries):
            raise InputError(f"{path} holds a whole model, not a drafting head; write draft:{path}")
        else:
            raise InputError(
                f"{path} holds no drafting head that is known here (EAGLE, EAGLE-3, Medusa or Hydra)"
            )
        folder.refuse_what_is_left()
        return head
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _read(path: Path) -> Folder:
    """The tensors and the configuration of a folder or a GGUF file. InputError for a file that is a model."""
    if not path.is_file():
        return read_head_folder(path)
    if not is_gguf(path):
        raise InputError(f"{path} is not a drafting head's folder, and no GGUF file")
    return read_head_file(path)


def is_head(path: Path) -> bool:
    """Whether a folder or a file holds a drafting head, and no model that can write by itself."""
    try:
        folder = _read(path)
    except (InputError, OSError):
        return False
    return looks_like_hydra(folder) or looks_like_medusa(folder) or looks_like_eagle(folder)
