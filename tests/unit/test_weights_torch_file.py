"""Files that `torch.save` wrote: tensors are read as they are, nothing is run, all else is refused."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.errors import InputError
from forerun.models.heads import is_head, open_head
from forerun.weights.torch_file import read_torch_file
from support.heads import Sizes

STORAGES = {
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
    "bool": "BoolStorage",
}


class Global:
    """Pickled as a name of a module, as torch's classes and functions are."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Call:
    """Pickled as a call."""

    def __init__(self, module: str, name: str, *arguments: object) -> None:
        self.what, self.arguments = Global(module, name), arguments


class Pickler(pickle._Pickler):  # type: ignore[name-defined]  # the one in Python, whose names can be made up
    """Writes what torch writes, without torch."""

    def __init__(self, file: io.BytesIO, stored: dict[str, bytes]) -> None:
        super().__init__(file, 2)
        self.stored = stored

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Global):
            self.write(b"c" + f"{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Call):
            self.save(obj.what)
            self.save(obj.arguments)
            self.write(b"R")
        elif isinstance(obj, np.ndarray):
            key = str(len(self.stored))
            self.stored[key] = obj.tobytes()
            self.save(Global("torch._utils", "_rebuild_tensor_v2"))
            self.write(b"(")
            self.write(b"(")
            for part in ("storage", Global("torch", STORAGES[obj.dtype.name]), key, "cpu", obj.size):
                self.save(part)
            self.write(b"tQ")
            strides = tuple(step // obj.itemsize for step in obj.strides)
            for part in (0, obj.shape, strides, False):
                self.save(part)
            self.save(Call("collections", "OrderedDict"))
            self.write(b"tR")
        else:
            super().save(obj, save_persistent_id)


def write(path: Path, value: object, change: Callable[[dict[str, bytes]], None] = lambda _: None) -> Path:
    """A file as torch writes it; `change`: what becomes of its parts."""
    stored: dict[str, bytes] = {}
    text = io.BytesIO()
    Pickler(text, stored).dump(value)
    parts = {"data.pkl": text.getvalue(), **{f"data/{key}": data for key, data in stored.items()}}
    change(parts)
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts.items():
            file.writestr(f"archive/{name}", data)
    return path


def test_tensors_are_read(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    made = {
        "a": draw.normal(size=(3, 5)).astype(np.float32),
        "b": draw.normal(size=7).astype(np.float16),
        "c": np.arange(4),
        "d": np.array([True, False]),
    }
    found = read_torch_file(write(tmp_path / "x.pt", made))
    assert {name: (entry.dtype, entry.shape) for name, entry in found.items()} == {
        "a": ("F32", (3, 5)),
        "b": ("F16", (7,)),
        "c": ("I64", (4,)),
        "d": ("BOOL", (2,)),
    }
    assert all(found[name].data.tobytes() == values.tobytes() for name, values in made.items())


def test_what_torch_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(3, 4).bfloat16()
    made = OrderedDict(
        linear.state_dict(), shared=torch.arange(12).reshape(3, 4)[1:], parameter=linear.weight
    )
    torch.save(made, tmp_path / "x.pt")
    found = read_torch_file(tmp_path / "x.pt")
    assert found["weight"].dtype == "BF16"
    assert found["weight"].data.tobytes() == found["parameter"].data.tobytes()
    assert found["weight"].data.tobytes() == linear.weight.detach().view(torch.int16).numpy().tobytes()
    assert found["shared"].data.view(np.int64).tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    torch.save({"x": torch.randn(3, 4).T}, tmp_path / "x.pt")
    with pytest.raises(InputError, match="lie apart"):
        read_torch_file(tmp_path / "x.pt")


@pytest.mark.parametrize("kind", ["eagle", "medusa", "hydra"])
def test_heads_in_older_files(kind: str, tmp_path: Path) -> None:
    tiny = Sizes().eagle(embedding=True) if kind == "eagle" else getattr(Sizes(), kind)()
    theirs = open_head(tiny.save(tmp_path / "new"))
    old = tmp_path / "old"
    old.mkdir()
    (tmp_path / "new" / "config.json").rename(old / "config.json")
    write(old / ("pytorch_model.bin" if kind == "eagle" else f"{kind}_lm_head.pt"), dict(tiny.arrays))
    ours = open_head(old)
    assert is_head(old)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert tensor.data.tobytes() == theirs.tensors[name].data.tobytes()


MALICIOUS = {
    "posix.system": lambda path: Call(os.system.__module__, "system", f"touch {path}"),
    "builtins.exec": lambda path: {"x": Call("builtins", "exec", f"open({str(path)!r}, 'w')")},
    "torch.load": lambda path: Call("torch", "load", str(path)),
    "torch._utils._rebuild_tensor_v2.__globals__": lambda path: Global(
        "torch._utils", "_rebuild_tensor_v2.__globals__"
    ),
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_malicious_files_are_refused(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = write(tmp_path / "x.pt", MALICIOUS[name](trace))
    with pytest.raises(InputError, match=f"asks for {name}, which no tensors need"):
        read_torch_file(path)
    (tmp_path / "config.json").write_text("{}")
    path.rename(tmp_path / "medusa_lm_head.pt")
    assert not is_head(tmp_path)
    assert not trace.exists()


def cut(parts: dict[str, bytes]) -> None:
    parts["data.pkl"] = parts["data.pkl"][:-9]


def shorter(parts: dict[str, bytes]) -> None:
    parts["data/0"] = parts["data/0"][:-4]


BROKEN = {
    "makes no sense": (np.zeros(5, np.float32), shorter),
    "lacks 'data/0'": (np.zeros(5, np.float32), lambda parts: parts.pop("data/0")),
    "no data.pkl": ({}, lambda parts: parts.pop("data.pkl")),
    "big-endian": ({}, lambda parts: parts.update(byteorder=b"big")),
    "cut off|makes no sense": ({"x": 1}, cut),
    "holds 'x', which is no tensor": ({"x": 1}, lambda _: None),
    "tensors by name": ([], lambda _: None),
    "asks for __builtin__.set": ({"x": {1}}, lambda _: None),
    "the instruction STRING": ({}, lambda parts: parts.update({"data.pkl": b"S'x'\n."})),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_broken_files_are_refused(reason: str, tmp_path: Path) -> None:
    value, change = BROKEN[reason]
    value = {"x": value} if isinstance(value, np.ndarray) else value
    path = write(tmp_path / "x.pt", value, change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=reason):
        read_torch_file(path)


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(InputError, match="no archive of tensors"):
        read_torch_file(tmp_path / "x.pt")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_files_are_read_or_refused(tmp_path: Path, damage: list[tuple[int, int]]) -> None:
    path = write(tmp_path / "x.pt", {"a": np.ones((2, 3), np.float32), "b": np.arange(3)})
    data = bytearray(path.read_bytes())
    for place, value in damage:
        data[place % len(data)] = value
    path.write_bytes(data)
    try:
        for entry in read_torch_file(path).values():
            entry.data.sum()
    except InputError:
        pass
