"""Configurations from GGUF metadata, with llama.cpp's defaults."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from small_models import add_tensors, finish, gguf_writer, random_blocks, shapes, write_folder, write_gguf

from forerun.errors import InputError
from forerun.models.checkpoint import Checkpoint, open_checkpoint


def opened(
    path: Path,
    family: str = "llama",
    skip: tuple[str, ...] = (),
    extra: dict[str, Any] | None = None,
    factors: np.ndarray | None = None,
    more: dict[str, tuple[int, ...]] | None = None,
) -> Checkpoint:
    """A small model with keys left out, keys added, rope factors, or more tensors."""
    writer = gguf_writer(path, family, skip)
    for key, value in (extra or {}).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    add_tensors(writer, {**shapes(family), **(more or {})})
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    finish(writer)
    return open_checkpoint(path)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_family_opens_as_its_folder_does(tmp_path: Path, family: str, tied: bool) -> None:
    ours = open_checkpoint(write_gguf(tmp_path / "m.gguf", family, tied))
    folder = open_checkpoint(write_folder(tmp_path / "m", family, tied))
    assert {n: t.shape for n, t in ours.tensors.items()} == {n: t.shape for n, t in folder.tensors.items()}
    for key in (
        "architecture",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "layers",
        "heads",
        "kv_heads",
    ):
        assert getattr(ours.config, key) == getattr(folder.config, key)
    for key in (
        "head_dim",
        "context",
        "tied",
        "qkv_bias",
        "qk_norm",
        "window",
        "bos_token_id",
        "eos_token_ids",
    ):
        assert getattr(ours.config, key) == getattr(folder.config, key)
    np.testing.assert_array_equal(ours.config.inv_freq, folder.config.inv_freq)
    assert ours.config.norm_eps == pytest.approx(folder.config.norm_eps)
    assert ours.config.rope_interleaved == (family == "llama")
    assert ours.config.name == "small"


def test_defaults(tmp_path: Path) -> None:
    skip = (
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
    )
    path = tmp_path / "m.gguf"
    with pytest.raises(InputError, match="k_proj"):  # as many key-value heads as heads
        opened(path, skip=skip)
    found = opened(path, skip=(*skip[1:], "rope.freq_base")).config
    assert found.head_dim == 64
    assert found.inv_freq[1] == pytest.approx(10000 ** (-1 / 32))


def test_end_tokens(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 5}
    assert opened(tmp_path / "m.gguf", extra=extra).config.eos_token_ids == (2, 5, 7)
    assert opened(tmp_path / "m.gguf", extra={"tokenizer.ggml.eot_token_id": 10**9}).config.eos_token_ids == (
        2,
    )


def test_values_given_a_layer(tmp_path: Path) -> None:
    skip = ("attention.head_count_kv",)
    key = "llama.attention.head_count_kv"
    assert opened(tmp_path / "m.gguf", skip=skip, extra={key: [2, 2]}).config.kv_heads == 2
    with pytest.raises(InputError, match="differs between layers"):
        opened(tmp_path / "m.gguf", skip=skip, extra={key: [2, 4]})


def test_llama3_factors(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    found = opened(tmp_path / "m.gguf", factors=factors)
    plain = opened(tmp_path / "n.gguf").config.inv_freq
    np.testing.assert_array_equal(found.config.inv_freq, plain / factors)
    assert "rope_freqs.weight" not in found.tensors
    for bad in (factors[:5], factors * 0, factors * np.float32(np.nan), factors.astype(np.float16)):
        with pytest.raises(InputError, match=r"rope_freqs.weight"):
            opened(tmp_path / "m.gguf", factors=bad)


def test_scalings(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    plain = opened(path).config.inv_freq
    kind, factor = "llama.rope.scaling.type", "llama.rope.scaling.factor"
    scaled: list[dict[str, Any]] = [
        {kind: "linear", factor: 4.0},
        {factor: 4.0},
        {"llama.rope.scale_linear": 4.0},
    ]
    for extra in scaled:
        np.testing.assert_array_equal(opened(path, extra=extra).config.inv_freq, plain / np.float32(4))
    unscaled: list[dict[str, Any]] = [{kind: "none", factor: 4.0}, {factor: 0.0}, {kind: "linear"}]
    for extra in unscaled:
        np.testing.assert_array_equal(opened(path, extra=extra).config.inv_freq, plain)
    yarn = {kind: "yarn", factor: 4.0, "llama.rope.scaling.original_context_length": 32}
    found = opened(path, extra=yarn).config
    assert found.rope_scale == pytest.approx(0.1 * math.log(4) + 1)
    assert found.inv_freq[-1] == pytest.approx(plain[-1] / 4)


def test_window(tmp_path: Path) -> None:
    assert opened(tmp_path / "m.gguf", extra={"llama.attention.sliding_window": 16}).config.window == 16
    assert opened(tmp_path / "m.gguf", extra={"llama.attention.sliding_window": 4096}).config.window == 0


def test_llama_with_biases(tmp_path: Path) -> None:
    more: dict[str, tuple[int, ...]] = {
        f"layers.{i}.self_attn.{n}_proj.bias": (rows,)
        for i in (0, 1)
        for n, rows in (("q", 256), ("k", 128), ("v", 128))
    }
    assert opened(tmp_path / "m.gguf", more=more).config.qkv_bias
    with pytest.raises(InputError, match=r"'layers.1.self_attn.v_proj.bias'"):
        opened(tmp_path / "m.gguf", more=dict(list(more.items())[:-1]))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"llama.expert_count": 8}, "expert_count is 8, which is not supported"),
        ({"llama.attention.scale": 0.5}, "attention.scale is 0.5, which is not supported"),
        ({"llama.logit_scale": 0.5}, "logit_scale is 0.5"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type is 'longrope'; supported are"),
        ({"llama.rope.scaling.factor": math.nan}, "rope.scaling.factor is nan"),
        ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier is .* not supported"),
        ({"llama.vocab_size": 49}, "vocab_size is 49 and the embedding has 48 rows"),
        ({"split.count": 2}, "one part of a split model; join the parts"),
        ({"llama.attention.sliding_window_pattern": [True, False]}, "sliding_window_pattern"),
    ],
)
def test_refused(tmp_path: Path, extra: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        opened(tmp_path / "m.gguf", extra=extra)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("block_count", 0, "block_count is 0"),
        ("block_count", 1 << 31, "block_count is 2147483648"),
        ("block_count", 3, "has no tensor 'layers.2"),
        ("block_count", 2.0, "block_count is 2.0, not a whole number"),
        ("context_length", 0, "context_length is 0"),
        ("embedding_length", 512, "has the shape"),
        ("feed_forward_length", 100, "has the shape"),
        ("attention.head_count", 3, "cannot share"),
        ("attention.head_count", "4", "head_count is '4'"),
        ("attention.value_length", 32, "value_length is 32 for heads of 64"),
        ("rope.dimension_count", 32, "dimension_count is 32 for heads of 64"),
        ("attention.layer_norm_rms_epsilon", -1.0, "epsilon is -1.0"),
        ("rope.freq_base", math.inf, "freq_base is inf"),
    ],
)
def test_numbers_are_distrusted(tmp_path: Path, key: str, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        opened(tmp_path / "m.gguf", skip=(key,), extra={f"llama.{key}": value})


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_keys_that_must_be_there(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match=f"has no llama.{key}"):
        opened(tmp_path / "m.gguf", skip=(key,))


def test_unsupported_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3")
    finish(writer)
    with pytest.raises(InputError, match="'gemma3' is not supported"):
        open_checkpoint(tmp_path / "m.gguf")


def test_vectors_in_blocks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf_writer(path)
    add_tensors(writer, {n: s for n, s in shapes("llama").items() if n != "norm.weight"})
    raw = random_blocks("Q8_0", (256,))
    writer.add_tensor("output_norm.weight", raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    finish(writer)
    with pytest.raises(InputError, match=r"'norm.weight' is Q8_0; norms and biases must be"):
        open_checkpoint(path)


def test_missing_and_left_over_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for name in ("embed_tokens.weight", "norm.weight", "layers.1.mlp.down_proj.weight"):
        writer = gguf_writer(path)
        add_tensors(writer, {n: s for n, s in shapes("llama").items() if n != name})
        finish(writer)
        with pytest.raises(InputError, match="has no tensor"):
            open_checkpoint(path)
    with pytest.raises(InputError, match=r"'layers.0.self_attn.o_proj.bias' has no place in a llama model"):
        opened(path, more={"layers.0.self_attn.o_proj.bias": (256,)})
