"""One safetensors file, mapped: an 8-byte length, a JSON header, and the tensors' bytes without gaps.

The format (https://huggingface.co/docs/safetensors): the header maps names to
`{"dtype": "BF16", "shape": [n, m], "data_offsets": [begin, end]}`, offsets counted from the header's end.
As in the reference implementation, the tensors must cover the rest of the file exactly, without holes or
overlaps; that also finds a file that was cut off.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from forerun.errors import InputError
from forerun.files import write_whole
from forerun.weights.bfloat16 import to_bfloat16
from forerun.weights.files import map_file, parse_json
from forerun.weights.tensor import Bytes, count
from forerun.words import counted

LARGEST_HEADER = 100_000_000  # bytes, the reference implementation's limit
ITEM_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Entry:
    """One tensor of a safetensors file; `data` are as many bytes as dtype and shape need, read-only."""

    dtype: str
    shape: tuple[int, ...]
    data: Bytes


def read_safetensors(path: Path) -> dict[str, Entry]:
    """Map a safetensors file and read its header. InputError for anything that is not as it should be."""
    mapped = map_file(path)
    whole = np.frombuffer(mapped, np.uint8)
    if len(whole) < 8:
        raise InputError(f"{path} is too short to be a safetensors file; fetch it again")
    (length,) = struct.unpack_from("<Q", mapped)
    if length > min(LARGEST_HEADER, len(whole) - 8):
        raise InputError(
            f"{path} is not a whole safetensors file: it promises a header of {counted(length, 'byte')};"
            " fetch it again"
        )
    header = parse_json(mapped[8 : 8 + length], f"the header of {path}")
    header.pop("__metadata__", None)
    data = whole[8 + length :]
    spans: list[tuple[int, int, str]] = []
    made: dict[str, Entry] = {}
    for name, value in header.items():
        dtype, shape, begin, end = _entry(value, f"tensor {name!r} in {path}")
        spans.append((begin, end, name))
        made[name] = Entry(dtype, shape, data[begin:end])
    _check_cover(spans, len(data), path)
    return made


def _entry(value: object, what: str) -> tuple[str, tuple[int, ...], int, int]:
    """A header's entry, checked on its own: dtype, shape, first and last byte."""
    if not isinstance(value, dict):
        raise InputError(f"{what} has no proper entry in the header")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_SIZES:
        raise InputError(f"{what} has the unknown type {dtype!r}")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise InputError(f"{what} has a malformed shape or malformed offsets")
    begin, end = offsets
    size = count(tuple(shape)) * ITEM_SIZES[dtype]
    if end - begin != size:
        raise InputError(f"{what} has {counted(end - begin, 'byte')} where its shape and type need {size}")
    return dtype, tuple(shape), begin, end


def _whole_numbers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) <= 8 and all(type(n) is int and n >= 0 for n in value)


def _check_cover(spans: list[tuple[int, int, str]], size: int, path: Path) -> None:
    """The tensors must follow one another from the first byte of data to the last."""
    position = 0
    for begin, end, name in sorted(spans):
        if begin != position or end > size:
            raise InputError(
                f"tensor {name!r} in {path} lies at bytes {begin} to {end} of {size}, outside the file or"
                " over another; fetch it again"
            )
        position = end
    if position != size:
        raise InputError(f"{path} has {counted(size - position, 'byte')} of no tensor; fetch it again")


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Write a file, floats as bfloat16. A file of that name stays until the new one is whole."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = []
    end = 0
    for name, values in tensors.items():
        dtype, stored = _stored(values)
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [end, end + len(stored)],
        }
        end += len(stored)
        data.append(stored)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write_whole(path, struct.pack("<Q", len(text)), text, *data)


def _stored(values: npt.NDArray[np.generic]) -> tuple[str, bytes]:
    """A tensor's type and bytes: floats as bfloat16, whole numbers and bits as they are."""
    if values.dtype.kind == "f":
        return "BF16", to_bfloat16(values.astype(np.float32)).astype("<u2").tobytes()
    if values.dtype.kind == "b":
        return "BOOL", values.astype(np.uint8).tobytes()
    return "I64", values.astype("<i8").tobytes()
