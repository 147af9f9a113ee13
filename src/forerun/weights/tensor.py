"""A tensor as it lies in a file: its kind, its shape, and its bytes.

Nothing is converted here. A kind is either a float format or one of ggml's block formats, in which a row
of inputs is cut into blocks of 32 or 256 values with their scales; what the bytes of a block mean is the
business of the backend that executes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forerun.errors import InputError
from forerun.words import counted

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Kind:
    """How numbers are stored: `block` values take `size` bytes. `ggml_id` is the type's number in GGUF."""

    name: str
    ggml_id: int
    block: int
    size: int


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("F32", 0, 1, 4),
        Kind("F16", 1, 1, 2),
        Kind("BF16", 30, 1, 2),
        Kind("Q4_0", 2, 32, 18),
        Kind("Q4_1", 3, 32, 20),
        Kind("Q5_0", 6, 32, 22),
        Kind("Q5_1", 7, 32, 24),
        Kind("Q8_0", 8, 32, 34),
        Kind("Q4_K", 12, 256, 144),
        Kind("Q5_K", 13, 256, 176),
        Kind("Q6_K", 14, 256, 210),
    )
}
INTEGERS: Mapping[str, Kind] = {"I32": Kind("I32", 26, 1, 4), "I64": Kind("I64", 27, 1, 8)}
"""Whole numbers: maps of tokens, no weights."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of a model, not yet converted.

    name:  the canonical name, which is Hugging Face's without the leading `model.`
    kind:  a key of KINDS, or of INTEGERS
    shape: (outputs, inputs), the last axis contiguous, or (n,)
    data:  uint8, one axis, read-only, exactly `nbytes(kind, shape)` long; a view into the mapped file,
           at no particular alignment
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: Bytes

    @property
    def size(self) -> int:
        """How many numbers the tensor holds."""
        return count(self.shape)


def count(shape: tuple[int, ...]) -> int:
    """The product of `shape`, in Python's integers, which do not overflow whatever a header says."""
    total = 1
    for n in shape:
        total *= n
    return total


def nbytes(kind: str, shape: tuple[int, ...]) -> int:
    """The bytes that a tensor takes. InputError when a row of inputs is not a whole number of blocks."""
    layout = KINDS.get(kind) or INTEGERS[kind]
    if shape[-1] % layout.block:
        raise InputError(
            f"a row of {counted(shape[-1], 'value')} cannot be stored as {kind}, whose blocks hold"
            f" {layout.block}"
        )
    return count(shape) // layout.block * layout.size
