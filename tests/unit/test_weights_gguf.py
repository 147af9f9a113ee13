"""GGUF headers: equal to what the gguf package reads, and one clear line for every kind of damage."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from small_models import add_tensors, finish, gguf_writer, shapes, write_gguf

from forerun.errors import InputError
from forerun.models.checkpoint import open_checkpoint
from forerun.weights.gguf_file import read_gguf
from forerun.weights.names import canonical_name
from forerun.weights.tensor import KINDS, nbytes

U32, I32, BOOL, STRING, ARRAY, U64 = 4, 5, 7, 8, 9, 10


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def header(
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: int = 64,
    counts: tuple[int, int] | None = None,
    version: int = 3,
) -> bytes:
    """A file by hand; `counts` (tensors, pairs) overrides the true ones."""
    pairs, tensors = pairs or [], tensors or []
    promised = counts or (len(tensors), len(pairs))
    raw = b"GGUF" + struct.pack("<IQQ", version, *promised) + b"".join(pairs) + b"".join(tensors)
    return raw + bytes(-len(raw) % 32) + bytes(data)


def refused(path: Path, raw: bytes, words: str) -> None:
    path.write_bytes(raw)
    with pytest.raises(InputError, match=words) as caught:
        read_gguf(path)
    assert "\n" not in str(caught.value)


def test_kinds_are_ggmls() -> None:
    for kind in KINDS.values():
        theirs = gguf.GGMLQuantizationType[kind.name]
        assert (kind.ggml_id, (kind.block, kind.size)) == (theirs.value, gguf.GGML_QUANT_SIZES[theirs])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_as_the_package_reads_it(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", kind=kind)
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for other in theirs.tensors:
        mine = ours.tensors[other.name]
        assert mine.kind == other.tensor_type.name
        assert mine.shape == tuple(reversed(other.shape.tolist()))
        assert mine.data.tobytes() == other.data.tobytes()
        assert len(mine.data) == nbytes(mine.kind, mine.shape)
        assert not mine.data.flags.writeable
    checkpoint = open_checkpoint(path)
    assert checkpoint.format == "gguf"
    assert {canonical_name(t.name) for t in theirs.tensors} == set(checkpoint.tensors)


def test_metadata_as_the_package_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4000000000)
    writer.add_int32("i32", -2000000000)
    writer.add_uint64("u64", 1 << 63)
    writer.add_int64("i64", -(1 << 62))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "héllo ▁世界 🙂")
    writer.add_array("texts", ["", "a", "▁世界", "🙂"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("reals", [0.5, 0.25])
    writer.add_array("flags", [True, False, True])
    finish(writer)
    ours, theirs = read_gguf(path).metadata, gguf.GGUFReader(path)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            value = ours[key]
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents(), key
    assert type(ours["u64"]) is int
    assert type(ours["yes"]) is bool
    assert type(ours["f32"]) is float


def test_another_alignment(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf_writer(path)
    writer.add_custom_alignment(256)
    add_tensors(writer, shapes("llama"))
    finish(writer)
    theirs = {t.name: t.data.tobytes() for t in gguf.GGUFReader(path).tensors}
    assert {name: t.data.tobytes() for name, t in read_gguf(path).tensors.items()} == theirs


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is empty"),
        (b"GG", "does not begin with 'GGUF'"),
        (b"PK\x03\x04" + bytes(100), "does not begin with 'GGUF'"),
        (b"GGUF\x03\x00", "cut off inside its header"),
        (header(version=1), "version is 1"),
        (header(version=4), "version is 4"),
        (header(version=3 << 24), "big-endian"),
        (header(counts=(1 << 60, 0)), "promises 1152921504606846976 tensors"),
        (header(counts=(0, 1 << 63)), "promises 9223372036854775808 key-value pairs"),
        (header(counts=(0, 3)), "cut off|unknown|promises|twice"),
    ],
)
def test_start_of_the_file(tmp_path: Path, raw: bytes, words: str) -> None:
    refused(tmp_path / "m.gguf", raw, words)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (pair("k", 13, b"\0\0\0\0"), "unknown value type 13"),
        (pair("k", ARRAY, struct.pack("<IQ", 99, 1)), "array of the unknown value type 99"),
        (pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1)), "array of the unknown value type 9"),
        (pair("k", ARRAY, struct.pack("<IQ", U32, 1 << 62)), "more than the file holds"),
        (pair("k", ARRAY, struct.pack("<IQ", STRING, 1 << 61)), "more than the file holds"),
        (pair("k", ARRAY, struct.pack("<IQQ", STRING, 1, 1 << 40)), "reaches beyond the end"),
        (pair("k", ARRAY, struct.pack("<IQQ", STRING, 1, 2) + b"\xff\xfe"), "not UTF-8"),
        (pair("k", STRING, struct.pack("<Q", 1 << 63)), "more than the file holds"),
        (pair("k", STRING, struct.pack("<Q", 1) + b"\xff"), "not UTF-8"),
        (struct.pack("<Q", 1 << 50), "more than the file holds"),
        (pair("k", BOOL, b"\x02"), "neither 0 nor 1"),
        (pair("general.alignment", U32, struct.pack("<I", 0)), "not a power of two"),
        (pair("general.alignment", U32, struct.pack("<I", 48)), "not a power of two"),
        (pair("general.alignment", STRING, text("32")), "not a power of two"),
        (pair("x" * 70000, U32, bytes(4)), "70000 characters"),
    ],
)
def test_damaged_pairs(tmp_path: Path, entry: bytes, words: str) -> None:
    refused(tmp_path / "m.gguf", header([entry]), words)


def test_key_given_twice(tmp_path: Path) -> None:
    entry = pair("k", U32, bytes(4))
    refused(tmp_path / "m.gguf", header([entry, entry]), "'k' is given twice")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([tensor("t", (8,), kind=77)], "has the type 77, which is unknown"),
        ([tensor("t", (256,), kind=23)], "has the type IQ4_XS; readable are F32"),
        ([tensor("t", (8,), kind=24)], "has the type I8"),
        ([tensor("t", (17,))], "ends at byte .* cut off or damaged"),
        ([tensor("t", (1 << 40, 1 << 40))], "ends at byte"),
        ([tensor("t", (1 << 63, 2))], "ends at byte"),
        ([tensor("t", (8,), offset=1 << 63)], "ends at byte"),
        ([tensor("t", (8,), offset=64)], "ends at byte"),
        ([tensor("t", (4,), offset=4)], "not a multiple of the alignment"),
        ([tensor("t", (0,))], "is empty"),
        ([tensor("t", ())], "0 axes"),
        ([tensor("t", (1, 1, 1, 1, 1))], "5 axes"),
        ([text("t") + struct.pack("<I", 1 << 31)], "2147483648 axes"),
        ([tensor("t", (33,), kind=8)], "a row of 33 values cannot be stored as Q8_0"),
        ([tensor("t", (128,), kind=12)], "a row of 128 values cannot be stored as Q4_K"),
        ([tensor("t", (4,)), tensor("t", (4,), offset=32)], "'t' is there twice"),
        ([tensor("a", (12,)), tensor("b", (4,), offset=32)], "'a' and 'b' overlap"),
    ],
)
def test_damaged_tensors(tmp_path: Path, entries: list[bytes], words: str) -> None:
    refused(tmp_path / "m.gguf", header(tensors=entries), words)


def test_cut_off_anywhere(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "m.gguf"
    for length in [*range(0, 2000, 37), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            open_checkpoint(path)


def test_names_that_have_no_counterpart_stay() -> None:
    assert canonical_name("blk.12.attn_k_norm.weight") == "layers.12.self_attn.k_norm.weight"
    assert canonical_name("output.weight") == "lm_head.weight"
    for odd in (
        "blk.01.attn_q.weight",
        "blk.0.attn_q.scale",
        "blk.1.ffn_gate_exps.weight",
        "rope_freqs.weight",
    ):
        assert canonical_name(odd) == odd


def test_messages_are_safe_to_print(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(tensors=[tensor("\x1b[2J\n" + "x" * 5000, (0,))]))
    with pytest.raises(InputError) as caught:
        read_gguf(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 600


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(InputError, match="cannot read"):
        read_gguf(tmp_path)
    with pytest.raises(InputError, match="not a regular file"):
        read_gguf(Path("/dev/null"))
