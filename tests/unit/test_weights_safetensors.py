"""Safetensors files and folders of them: zero copy, every span checked, shards by their index."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from small_models import shapes, write_folder, write_safetensors

from forerun.errors import InputError
from forerun.models.checkpoint import open_checkpoint
from forerun.weights.hf_folder import read_folder
from forerun.weights.safetensors_file import read_safetensors


def write_raw(path: Path, header: object, data: bytes, length: int | None = None) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_as_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    arrays: dict[str, np.ndarray] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(5, dtype=np.float16),
        "c": np.arange(4, dtype=np.int64),
        "scalar": np.array(3.0, np.float32),
        "none": np.zeros((0, 4), np.float32),
    }
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np"})
    found = read_safetensors(path)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert found[name].data.tobytes() == array.tobytes()
        assert not found[name].data.flags.writeable


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{", b"", "not valid JSON"),
        (b"[]", b"", "does not hold a JSON object"),
        (b"\xff\xff", b"", "not valid JSON"),
        (b"[" * 100000, b"", "not valid JSON"),
        (b'{"a": ' + b"9" * 10000 + b"}", b"", "not valid JSON|no proper entry"),
        (b'{"a": 1, "a": 2}', b"", "given twice"),
        ({"a": 1}, b"", "no proper entry"),
        ({"a": {}}, b"", "unknown type None"),
        ({"a": entry(dtype="F33")}, bytes(8), "unknown type 'F33'"),
        ({"a": entry(dtype=["F32"])}, bytes(8), "unknown type"),
        ({"a": entry(shape=[2.0])}, bytes(8), "malformed shape"),
        ({"a": entry(shape=[-2])}, bytes(8), "malformed shape"),
        ({"a": entry(shape=[True, 2])}, bytes(8), "malformed shape"),
        ({"a": entry(shape="2")}, bytes(8), "malformed shape"),
        ({"a": entry(shape=[1] * 9)}, bytes(8), "malformed shape"),
        ({"a": entry(offsets=[0, 8, 8])}, bytes(8), "malformed offsets"),
        ({"a": entry(offsets=[8, 0])}, bytes(8), "has -8 bytes"),
        ({"a": entry(shape=[3])}, bytes(8), "has 8 bytes where its shape and type need 12"),
        ({"a": entry(shape=[1 << 62, 1 << 62])}, bytes(8), "need"),
        ({"a": entry(offsets=[8, 16])}, bytes(16), "outside the file or over another"),
        ({"a": entry(), "b": entry()}, bytes(8), "outside the file or over another"),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12), "outside the file or over another"),
        ({"a": entry()}, bytes(7), "outside the file"),
        ({"a": entry()}, bytes(9), "1 byte of no tensor"),
    ],
)
def test_damaged(tmp_path: Path, header: object, data: bytes, words: str) -> None:
    path = tmp_path / "m.safetensors"
    write_raw(path, header, data)
    with pytest.raises(InputError, match=words) as caught:
        read_safetensors(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("length", [1 << 63, 1 << 40, 100])
def test_header_length_beyond_the_file(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    write_raw(path, {"a": entry()}, bytes(8), length)
    with pytest.raises(InputError, match="promises a header of"):
        read_safetensors(path)


def test_too_short(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"\1\0\0")
    with pytest.raises(InputError, match="too short"):
        read_safetensors(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        read_safetensors(path)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_kinds(tmp_path: Path, kind: str) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", kind=kind))
    assert {t.kind for t in checkpoint.tensors.values()} == {kind}
    assert {name: t.shape for name, t in checkpoint.tensors.items()} == shapes("llama")


def test_shards_hold_the_same_tensors(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=3)
    assert {name: t.shape for name, t in open_checkpoint(folder).tensors.items()} == shapes("llama")


def test_missing_shard(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match=r"shard 'model-00002-of-00003.safetensors'.*not in the folder"):
        open_checkpoint(folder)


def test_tensor_not_in_its_shard(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=2)
    index = folder / "model.safetensors.index.json"
    named = json.loads(index.read_text())["weight_map"]
    named["model.norm.weight"] = next(file for file in named.values() if file != named["model.norm.weight"])
    index.write_text(json.dumps({"weight_map": named}))
    with pytest.raises(InputError, match=r"'model.norm.weight' is not in .*where the index places it"):
        open_checkpoint(folder)


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/x.safetensors", "x.bin", 3, None])
def test_index_points_out_of_the_folder(tmp_path: Path, shard: object) -> None:
    folder = write_folder(tmp_path / "m", shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(InputError, match="no safetensors file of this folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {}}])
def test_index_without_a_map(tmp_path: Path, index: object) -> None:
    folder = write_folder(tmp_path / "m", shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="has no 'weight_map'"):
        open_checkpoint(folder)


def test_unreadable_dtype_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    safetensors.numpy.save_file({"model.norm.weight": np.zeros(4, np.int8)}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"'model.norm.weight' .* is I8; F32, F16, BF16 can be read"):
        open_checkpoint(folder)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="convert them to safetensors"):
        open_checkpoint(folder)
    with pytest.raises(InputError, match="convert them to safetensors"):
        open_checkpoint(folder / "pytorch_model.bin")


def test_no_weights(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"neither model.safetensors nor model.safetensors.index.json"):
        open_checkpoint(folder)


def test_stored_frequencies_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(
        path, [("model.layers.0.self_attn.rotary_emb.inv_freq", (8,)), ("model.norm.weight", (4,))]
    )
    assert set(read_folder(tmp_path)) == {"norm.weight"}


def test_a_name_with_and_without_prefix(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", [("norm.weight", (4,)), ("model.norm.weight", (4,))])
    with pytest.raises(InputError, match="is there twice"):
        read_folder(tmp_path)
