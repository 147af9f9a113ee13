"""The files of a head's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forerun.errors import InputError
from forerun.models.rope import Frequencies
from forerun.weights.files import read_json
from forerun.weights.hf_folder import HEAD_FILES, PICKLED, read_entries
from forerun.weights.safetensors_file import Entry, read_safetensors
from forerun.weights.tensor import KINDS, Tensor

INTEGERS = {"I64": np.int64, "I32": np.int32}


@dataclass
class Folder:
    """A head's configuration and its tensors by the file's own names. What a family understands it takes;
    what is left at the end is refused.

    layout: who writes such files, where names of tensors and the configuration do not tell
    rope:   frequencies and the factor on cos and sin, where these do not come from the configuration
    """

    path: Path
    config: Mapping[str, object]
    entries: dict[str, Entry]
    layout: str | None = None
    rope: tuple[Frequencies, float] | None = None
    taken: set[str] = field(default_factory=set)

    @property
    def source(self) -> str:
        """Where the configuration is, for messages."""
        return str(self.path / "config.json" if self.path.is_dir() else self.path)

    def tensor(self, name: str, canonical: str) -> Tensor | None:
        """A tensor of numbers under its canonical name, or None."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        self.taken.add(name)
        if entry.dtype not in KINDS:
            raise InputError(
                f"tensor {name!r} in {self.path} is {entry.dtype}; {', '.join(KINDS)} can be read"
            )
        if not 1 <= len(entry.shape) <= 2 or 0 in entry.shape:
            raise InputError(f"tensor {name!r} in {self.path} has the shape {entry.shape}")
        return Tensor(canonical, entry.dtype, entry.shape, entry.data)

    def put(self, tensors: dict[str, Tensor], name: str, canonical: str) -> None:
        """Add a tensor that is there to those under canonical names.

        Raises:
            InputError: there is one of that name already, or it cannot be read.
        """
        tensor = self.tensor(name, canonical)
        if canonical in tensors:
            raise InputError(f"{self.path} holds {canonical!r} twice, under two names")
        assert tensor is not None
        tensors[canonical] = tensor

    def integers(self, name: str) -> npt.NDArray[np.int64] | None:
        """A vector of whole numbers, or None."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        self.taken.add(name)
        if entry.dtype not in INTEGERS or len(entry.shape) != 1 or entry.shape[0] == 0:
            raise InputError(f"tensor {name!r} in {self.path} is no vector of whole numbers")
        return np.frombuffer(entry.data.tobytes(), INTEGERS[entry.dtype]).astype(np.int64)

    def length(self, name: str) -> int | None:
        """How many entries a vector has, or None without one."""
        entry = self.entries.get(name)
        return None if entry is None or len(entry.shape) != 1 else entry.shape[0]

    def refuse_what_is_left(self) -> None:
        """Whatever no one understood would change what is computed."""
        left = sorted(self.entries.keys() - self.taken)
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise InputError(
                f"{self.path} holds the tensor {left[0]!r}{more}, which this kind of head does not have"
            )

    def check(self, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse missing tensors, and shapes that contradict each other."""
        for name, shape in shapes.items():
            if name not in tensors:
                raise InputError(f"{self.path} lacks the tensor {name!r}; fetch it again")
            if tensors[name].shape != shape:
                raise InputError(
                    f"tensor {name!r} in {self.path} has the shape {tensors[name].shape}, not {shape}"
                )


def read_head_folder(path: Path) -> Folder:
    """Configuration and tensors. InputError for what cannot be read."""
    config = read_json(path / "config.json")
    for name in HEAD_FILES:
        if (path / name).exists():
            read = read_safetensors if name.endswith(".safetensors") else _read_pickled
            return Folder(path, config, read(path / name))
    if (path / PICKLED).exists() and not any(file.suffix == ".safetensors" for file in path.iterdir()):
        return Folder(path, config, _read_pickled(path / PICKLED))
    return Folder(path, config, read_entries(path))


def _read_pickled(path: Path) -> dict[str, Entry]:
    from forerun.weights.torch_file import read_torch_file  # for older heads only, and slow to import

    return read_torch_file(path)
