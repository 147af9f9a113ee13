"""A file that `torch.save` wrote, read without being run.

It is a zip archive: NAME/data.pkl are instructions that rebuild a dictionary of tensors, NAME/data/KEY the
tensors' bytes. A pickle's instructions can call anything there is. Here nothing is called: the few
instructions that plain tensors need are followed, and everything else is refused. `pickletools` only tells
them apart.
"""

from __future__ import annotations

import pickletools
import struct
import zipfile
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from forerun.errors import InputError
from forerun.weights.files import map_file
from forerun.weights.safetensors_file import ITEM_SIZES, Entry
from forerun.weights.tensor import Bytes

MOST_INSTRUCTIONS = 64 << 20  # bytes; a thousand tensors take less than a megabyte
STORAGES = {
    "torch FloatStorage": "F32",
    "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16",
    "torch DoubleStorage": "F64",
    "torch LongStorage": "I64",
    "torch IntStorage": "I32",
    "torch ShortStorage": "I16",
    "torch CharStorage": "I8",
    "torch ByteStorage": "U8",
    "torch BoolStorage": "BOOL",
}
TENSOR, PARAMETER, ORDERED = (
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    "collections OrderedDict",
)
LOCAL_HEADER = 30  # bytes of a zip archive's entry before its name


@dataclass(frozen=True)
class _Name:
    """A function or type that the instructions name."""

    name: str


@dataclass(frozen=True, eq=False)
class _Storage:
    dtype: str
    data: Bytes


def read_torch_file(path: Path) -> dict[str, Entry]:
    """The tensors of a file, which stays mapped.

    Raises:
        InputError: it is damaged, or holds anything but tensors by name.
    """
    archive = _Archive(path)
    found = _Machine(archive).run(archive.instructions())
    if not isinstance(found, dict):
        raise InputError(f"{path} does not hold tensors by name")
    for name, value in found.items():
        if not (isinstance(name, str) and isinstance(value, Entry)):
            raise InputError(f"{path} holds {name!r}, which is no tensor")
    return found


class _Archive:
    """The zip archive, mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = np.frombuffer(map_file(path), np.uint8)
        try:
            with zipfile.ZipFile(path) as file:
                self._entries = {info.filename: info for info in file.infolist()}
        except (zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeError) as error:
            raise InputError(
                f"{path} is no archive of tensors as PyTorch 1.6 and later write ({error}); convert it to "
                "safetensors"
            ) from error
        named = [name for name in self._entries if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(named) != 1:
            raise InputError(f"{path} is no archive of tensors: it has no data.pkl")
        self._root = named[0].removesuffix("data.pkl")
        if f"{self._root}byteorder" in self._entries and self._member("byteorder").tobytes() != b"little":
            raise InputError(f"{path} was written on a big-endian machine; convert it to safetensors")

    def instructions(self) -> bytes:
        found = self._member("data.pkl")
        if len(found) > MOST_INSTRUCTIONS:
            raise InputError(f"{self.path} is no file of weights: its data.pkl has {len(found)} bytes")
        return found.tobytes()

    def storage(self, key: str) -> Bytes:
        """Aligned for any type."""
        found = self._member(f"data/{key}")
        return found.copy() if found.ctypes.data % 8 else found

    def _member(self, name: str) -> Bytes:
        info = self._entries.get(self._root + name)
        if info is None:
            raise InputError(f"{self.path} lacks {name!r}; fetch it again")
        if info.compress_type != zipfile.ZIP_STORED:
            raise InputError(
                f"{self.path} is compressed, which PyTorch never does; convert it to safetensors"
            )
        header = self._bytes[info.header_offset : info.header_offset + LOCAL_HEADER].tobytes()
        if len(header) < LOCAL_HEADER or header[:4] != b"PK\x03\x04":
            raise InputError(f"{self.path} is damaged; fetch it again")
        start = info.header_offset + LOCAL_HEADER + sum(struct.unpack_from("<HH", header, 26))
        found = self._bytes[start : start + info.file_size]
        if len(found) != info.file_size:
            raise InputError(f"{self.path} is cut off; fetch it again")
        return found


@dataclass
class _Machine:
    """Follows a pickle's instructions as far as tensors need them."""

    archive: _Archive
    stack: list[object] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, object] = field(default_factory=dict)

    def run(self, text: bytes) -> object:
        try:
            for instruction, argument, _ in pickletools.genops(text):
                if instruction.name == "STOP":
                    return self.stack.pop()
                self._follow(instruction.name, argument)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InputError(f"{self.archive.path} is damaged: its data.pkl makes no sense") from error
        raise InputError(f"{self.archive.path} is cut off; fetch it again")

    def _follow(self, name: str, argument: object) -> None:
        stack = self.stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(name == "NEWTRUE")
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
            case "MARK":
                self.marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._last(int(name[-1]))))
            case "APPEND" | "APPENDS":
                values = self._last(1) if name == "APPEND" else self._since_mark()
                self._top(list).extend(values)
            case "SETITEM" | "SETITEMS":
                values = self._last(2) if name == "SETITEM" else self._since_mark()
                self._top(dict).update(zip(values[::2], values[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                self.memo[int(str(argument))] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[int(str(argument))])
            case "GLOBAL":
                stack.append(self._named(str(argument)))
            case "STACK_GLOBAL":
                stack.append(self._named("{} {}".format(*self._last(2))))
            case "BINPERSID":
                stack.append(self._storage(stack.pop()))
            case "REDUCE":
                what, arguments = self._last(2)
                stack.append(self._made(what, arguments))
            case "BUILD":  # what an OrderedDict is given besides its items
                self._last(1)
                self._top(dict)
            case _:
                self._refuse(f"the instruction {name}")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{self.archive.path} asks for {what}, which no tensors need; it may do harm where it is opened"
        )

    def _named(self, name: str) -> _Name:
        if name not in STORAGES and name not in (TENSOR, PARAMETER, ORDERED):
            self._refuse(name.replace(" ", "."))
        return _Name(name)

    def _since_mark(self) -> list[object]:
        return self._last(len(self.stack) - self.marks.pop())

    def _last(self, count: int) -> list[object]:
        start = len(self.stack) - count
        if start < 0 or count < 0:
            raise ValueError
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise TypeError
        return self.stack[-1]

    def _storage(self, identity: object) -> _Storage:
        """("storage", its type, its key, where it was, its items)."""
        if not isinstance(identity, tuple) or len(identity) != 5 or identity[0] != "storage":
            raise ValueError
        _, kind, key, _, items = identity
        if not isinstance(kind, _Name) or kind.name not in STORAGES or not isinstance(items, int):
            raise ValueError
        dtype, data = STORAGES[kind.name], self.archive.storage(str(key))
        if items < 0 or len(data) != items * ITEM_SIZES[dtype]:
            raise ValueError
        return _Storage(dtype, data)

    def _made(self, what: object, arguments: object) -> object:
        if not isinstance(what, _Name) or not isinstance(arguments, tuple):
            raise TypeError
        if what.name == ORDERED and not arguments:
            return {}
        if what.name == PARAMETER and isinstance(arguments[0], Entry):
            return arguments[0]
        if what.name == TENSOR:
            return self._tensor(*arguments[:4])
        raise ValueError

    def _tensor(self, storage: object, offset: object, shape: object, strides: object) -> Entry:
        if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(offset, int):
            raise TypeError
        if len(shape) > 8 or offset < 0 or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError
        steps = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        if strides != steps and prod(shape) > 1:
            raise InputError(
                f"{self.archive.path} holds a tensor whose values lie apart; convert it to safetensors"
            )
        size = ITEM_SIZES[storage.dtype]
        data = storage.data[offset * size : (offset + prod(shape)) * size]
        if len(data) != prod(shape) * size:
            raise ValueError
        return Entry(storage.dtype, shape, data)
