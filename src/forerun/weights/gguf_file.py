"""GGUF files: metadata and tensors, read over a memory map.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian throughout:

    "GGUF"  version:u32  tensors:u64  pairs:u64
    pairs   x  key:string  type:u32  value
    tensors x  name:string  axes:u32  length:u64 x axes  type:u32  offset:u64
    padding to `general.alignment`, then the tensors' bytes, each at its offset from here
    string = length:u64 and that many bytes of UTF-8;  array = type:u32  count:u64  values

The `gguf` package reads the same, one numpy object an array element: seconds for a vocabulary of 49,152
tokens. Here an array of strings is one pass and an array of numbers is one view, which takes a hundredth
of the time. A count or a length is believed only after it is known to fit in what is left of the file, so a
damaged header can ask neither for much memory nor for a long loop.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forerun.errors import InputError
from forerun.weights.files import map_file
from forerun.weights.tensor import INTEGERS, KINDS, Tensor, nbytes

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MOST_AXES = 4
LONGEST_KEY = 65535

BOOL, STRING, ARRAY = 7, 8, 9
SCALARS = {  # value type -> numpy's little-endian name of it
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", BOOL: "<u1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
SMALLEST_PAIR = 8 + 4 + 1  # bytes: an empty key, a type, one byte of value
SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8  # bytes: an empty name, one axis

KIND_OF_ID = {kind.ggml_id: kind.name for kind in (*KINDS.values(), *INTEGERS.values())}


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """What a GGUF file holds, checked: every tensor is inside the file and none overlaps another.

    metadata: values are str, int, float, bool, list[str], or a read-only one-axis numpy array of numbers
    tensors:  by the file's own names; shapes in numpy's order, (outputs, inputs), the reverse of the file's
    """

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, Tensor]


def is_gguf(path: Path) -> bool:
    """Whether the file begins with GGUF's magic."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def read_gguf(path: Path) -> GGUFFile:
    """Map a GGUF file and read its header. InputError for anything that is not as it should be."""
    header = _Header(path, map_file(path))
    try:
        return header.read()
    except struct.error as error:  # a number was wanted beyond the last byte
        raise InputError(f"{path} is cut off inside its header; fetch it again") from error


class _Header:
    """Reads a header from its first byte to its last, keeping the position."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self.mapped = mapped
        self.end = len(mapped)
        self.position = 0

    def read(self) -> GGUFFile:
        pairs, tensors = self.counts()
        metadata: dict[str, object] = {}
        for _ in range(pairs):
            key = self.name("key")
            if key in metadata:
                raise self.fault(f"the key {key!r} is given twice")
            metadata[key] = self.value(self.number("<I"), key)
        return GGUFFile(self.path, metadata, self.tensors(tensors, self.alignment(metadata)))

    def counts(self) -> tuple[int, int]:
        """Check magic and version; how many pairs and how many tensors follow."""
        if self.mapped[: len(MAGIC)] != MAGIC:
            raise InputError(f"{self.path} is not a GGUF file: it does not begin with 'GGUF'")
        self.position = len(MAGIC)
        version = self.number("<I")
        if version not in VERSIONS:
            if version & 0xFFFF == 0:
                raise self.fault("it is big-endian; convert the model again for little-endian machines")
            raise self.fault(
                f"its version is {version} and only 2 and 3 can be read; convert the model again"
            )
        tensors, pairs = self.number("<Q"), self.number("<Q")
        self.fits(pairs, SMALLEST_PAIR, "key-value pairs")
        self.fits(tensors, SMALLEST_TENSOR, "tensors")
        return pairs, tensors

    def alignment(self, metadata: Mapping[str, object]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or value <= 0 or value & (value - 1):
            raise self.fault(f"general.alignment is {value!r}, not a power of two")
        return value

    def tensors(self, count: int, alignment: int) -> dict[str, Tensor]:
        entries = [self.entry() for _ in range(count)]
        start = (self.position + alignment - 1) // alignment * alignment
        whole = np.frombuffer(self.mapped, np.uint8)
        made: dict[str, Tensor] = {}
        spans: list[tuple[int, int, str]] = []
        for name, kind, shape, offset in entries:
            try:
                size = nbytes(kind, shape)
            except InputError as error:
                raise self.fault(f"tensor {name!r}: {error}") from error
            begin = start + offset
            if offset % alignment:
                raise self.fault(
                    f"tensor {name!r} begins at {offset}, not a multiple of the alignment {alignment}"
                )
            if begin + size > self.end:
                raise self.fault(
                    f"tensor {name!r} ends at byte {begin + size} and the file at {self.end};"
                    " it is cut off or damaged, fetch it again"
                )
            if name in made:
                raise self.fault(f"tensor {name!r} is there twice")
            made[name] = Tensor(name, kind, shape, whole[begin : begin + size])
            spans.append((begin, begin + size, name))
        spans.sort()
        for (_, end, name), (begin, _, following) in itertools.pairwise(spans):
            if begin < end:
                raise self.fault(f"tensors {name!r} and {following!r} overlap")
        return made

    def entry(self) -> tuple[str, str, tuple[int, ...], int]:
        """One tensor's name, kind, shape and offset."""
        name = self.name("tensor name")
        axes = self.number("<I")
        if not 1 <= axes <= MOST_AXES:
            raise self.fault(f"tensor {name!r} has {axes} axes; 1 to {MOST_AXES} can be read")
        lengths = struct.unpack_from(f"<{axes}Q", self.mapped, self.position)
        self.position += 8 * axes
        if 0 in lengths:
            raise self.fault(f"tensor {name!r} is empty")
        kind_id, offset = self.number("<I"), self.number("<Q")
        if kind_id not in KIND_OF_ID:
            raise self.fault(
                f"tensor {name!r} has the type {_type_name(kind_id)}; readable are {', '.join(KINDS)}"
            )
        return name, KIND_OF_ID[kind_id], tuple(reversed(lengths)), offset

    def value(self, kind: int, key: str) -> object:
        """The value of a pair, whose type is `kind`."""
        if kind == STRING:
            return self.text(f"the value of {key!r}")
        if kind == ARRAY:
            return self.array(key)
        if kind not in SCALARS:
            raise self.fault(f"the key {key!r} has the unknown value type {kind}")
        return self.scalars(kind, 1, key).item()

    def array(self, key: str) -> object:
        kind, count = self.number("<I"), self.number("<Q")
        if kind == STRING:
            return self.strings(count, key)
        if kind not in SCALARS:
            raise self.fault(f"the key {key!r} is an array of the unknown value type {kind}")
        return self.scalars(kind, count, key)

    def scalars(self, kind: int, count: int, key: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        """`count` numbers as a view into the file."""
        dtype = np.dtype(SCALARS[kind])
        self.fits(count, dtype.itemsize, f"values of {key!r}")
        if count == 0:
            return np.zeros(0, dtype)
        numbers = np.frombuffer(self.mapped, dtype, count, self.position)
        self.position += numbers.nbytes
        if kind != BOOL:
            return numbers
        if numbers.max() > 1:
            raise self.fault(f"the key {key!r} holds a truth value that is neither 0 nor 1")
        return numbers.view(np.bool_)

    def strings(self, count: int, key: str) -> list[str]:
        """`count` strings: the one hot loop here, a vocabulary and its merges are 100,000 of them."""
        self.fits(count, 8, f"strings of {key!r}")
        mapped, end, position = self.mapped, self.end, self.position
        length_at = struct.Struct("<Q").unpack_from
        found: list[str] = []
        add = found.append
        try:
            for _ in range(count):
                (length,) = length_at(mapped, position)
                position += 8
                if length > end - position:
                    raise self.fault(
                        f"a string of {key!r} reaches beyond the end of the file; fetch it again"
                    )
                add(mapped[position : position + length].decode())
                position += length
        except UnicodeDecodeError as error:
            raise self.fault(f"a string of {key!r} is not UTF-8") from error
        self.position = position
        return found

    def text(self, what: str) -> str:
        length = self.number("<Q")
        self.fits(length, 1, f"bytes in {what}")
        raw = self.mapped[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.fault(f"{what} is not UTF-8") from error

    def name(self, what: str) -> str:
        text = self.text(f"a {what}")
        if len(text) > LONGEST_KEY:
            raise self.fault(f"a {what} is {len(text)} characters long")
        return text

    def number(self, code: str) -> int:
        value: int = struct.unpack_from(code, self.mapped, self.position)[0]
        self.position += struct.calcsize(code)
        return value

    def fits(self, count: int, size: int, what: str) -> None:
        """Refuse a count of things, each of `size` bytes or more, that the rest of the file cannot hold."""
        if count * size > self.end - self.position:
            raise self.fault(f"its header promises {count} {what}, more than the file holds; fetch it again")

    def fault(self, what: str) -> InputError:
        return InputError(f"{self.path} cannot be read: {what}")


def _type_name(kind_id: int) -> str:
    from gguf.constants import GGMLQuantizationType  # takes a while to import, and only this message needs it

    try:
        return GGMLQuantizationType(kind_id).name
    except ValueError:
        return f"{kind_id}, which is unknown"
