"""Configurations from config.json: every family, every rope scaling, and every number distrusted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import hf_config, shapes, write_folder

from forerun.errors import InputError
from forerun.models.checkpoint import open_checkpoint
from forerun.models.config import FAMILIES, ModelConfig
from forerun.models.hf_config import config_from_hf


def config(
    family: str = "llama", generation: dict[str, object] | None = None, **changes: object
) -> ModelConfig:
    values = {key: value for key, value in {**hf_config(family), **changes}.items() if value != "absent"}
    return config_from_hf(values, "config.json", generation or {}, "small")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_opens(tmp_path: Path, family: str, tied: bool) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "small", family, tied))
    found = checkpoint.config
    assert {name: t.shape for name, t in checkpoint.tensors.items()} == shapes(family, tied)
    assert (found.architecture, found.tied, found.name) == (family, tied, "small")
    assert (found.qkv_bias, found.qk_norm) == (family == "qwen2", family == "qwen3")
    assert not found.rope_interleaved
    assert checkpoint.format == "hf"
    assert checkpoint.metadata["model_type"] == family
    assert (found.layers, found.heads, found.kv_heads, found.head_dim, found.context) == (2, 4, 2, 64, 128)


def test_frequencies_by_definition() -> None:
    expected = [10000.0 ** (-2 * k / 64) for k in range(32)]
    np.testing.assert_allclose(config().inv_freq, expected, rtol=2e-7)
    assert config().inv_freq.dtype == np.float32
    np.testing.assert_allclose(config(rope_theta="absent").inv_freq, expected, rtol=2e-7)
    newer = config(rope_theta="absent", rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    np.testing.assert_allclose(newer.inv_freq, [500000.0 ** (-2 * k / 64) for k in range(32)], rtol=2e-7)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_linear_scaling(key: str) -> None:
    np.testing.assert_array_equal(
        config(rope_scaling={key: "linear", "factor": 4.0}).inv_freq, config().inv_freq / np.float32(4)
    )


def test_llama3_scaling() -> None:
    """Each frequency by its rule: short waves stay, long ones are divided, those between are blended."""
    factor, low, high, original = 8.0, 1.0, 4.0, 8192
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    found = config(rope_theta=500000.0, rope_scaling=scaling, max_position_embeddings=131072).inv_freq
    seen = set()
    for plain, scaled in zip(config(rope_theta=500000.0).inv_freq.tolist(), found.tolist(), strict=True):
        wave = 2 * math.pi / plain
        smooth = min(1.0, max(0.0, (original / wave - low) / (high - low)))
        seen.add(0 if smooth == 0 else 2 if smooth == 1 else 1)
        assert scaled == pytest.approx(plain * ((1 - smooth) / factor + smooth), rel=1e-6)
    assert seen == {0, 1, 2}


def test_yarn_scaling() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    found, plain = config(rope_scaling=scaling), config()
    ratio = plain.inv_freq / found.inv_freq
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(4.0)
    assert (np.diff(ratio) >= -1e-6).all()
    assert found.rope_scale == pytest.approx(0.1 * math.log(4) + 1)
    assert config(rope_scaling={**scaling, "attention_factor": 1.25}).rope_scale == 1.25
    assert config(rope_scaling={**scaling, "mscale": 1.0, "mscale_all_dim": 1.0}).rope_scale == 1.0
    assert plain.rope_scale == 1.0


def test_head_size_and_shared_heads() -> None:
    assert config(head_dim="absent").head_dim == 64
    assert config(head_dim=None).head_dim == 64
    assert config("qwen3", head_dim="absent").head_dim == 128
    assert config(num_key_value_heads="absent").kv_heads == 4


def test_end_tokens_are_merged() -> None:
    assert config().eos_token_ids == (2,)
    assert config(generation={"eos_token_id": [2, 5]}).eos_token_ids == (2, 5)
    assert config(eos_token_id=[7, 3], generation={"eos_token_id": 5}).eos_token_ids == (3, 5, 7)
    assert config(eos_token_id=None).eos_token_ids == ()
    assert config(eos_token_id=[2, 100000]).eos_token_ids == (2,)
    with pytest.raises(InputError, match=r"generation_config\.json: 'x' is given as the id of a token"):
        config(generation={"eos_token_id": "x"})
    assert config(bos_token_id="absent").bos_token_id is None
    assert config().bos_token_id == 1


def test_generation_config_is_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert open_checkpoint(folder).config.eos_token_ids == (2, 9)


def test_windows() -> None:
    assert config("mistral", sliding_window=32).window == 32
    assert config("mistral", sliding_window=None).window == 0
    assert config("mistral", max_position_embeddings=8192).window == 4096
    assert config("mistral", sliding_window=128).window == 0  # as long as the context
    assert config("llama", sliding_window=32).window == 0
    assert config("qwen2", sliding_window=32).window == 0
    assert config("qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=0).window == 32
    assert config("qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=2).window == 0
    kinds = ["sliding_attention", "sliding_attention"]
    assert config("qwen3", sliding_window=32, use_sliding_window=True, layer_types=kinds).window == 32
    with pytest.raises(InputError, match="holds for 1 of 2 layers only"):
        config("qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=1)
    with pytest.raises(InputError, match="layer_types is not a list with an entry for each layer"):
        config("qwen3", sliding_window=32, use_sliding_window=True, layer_types=["full_attention"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "'GemmaForCausalLM' is not supported"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "'LlamaForSequenceClassification' is not supported",
        ),
        ({"architectures": [3]}, "'3' is not supported"),
        ({"architectures": "Llama"}, "architectures is not a list"),
        ({"architectures": None, "model_type": "phi"}, "model type 'phi' is not supported"),
        ({"model_type": "mixtral"}, "model type 'mixtral' is not supported"),
        ({"model_type": "qwen2"}, "model type 'qwen2' is not supported"),
        ({"architectures": None, "model_type": None}, "has no model_type"),
        ({"model_type": 7}, "model_type is 7, not text"),
        ({"hidden_size": "absent"}, "has no hidden_size"),
        ({"hidden_size": 0}, "hidden_size is 0, not a whole number"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0, not a whole number"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 10**30}, "hidden_size is 1000"),
        ({"vocab_size": 1 << 40}, "vocab_size is"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is"),
        ({"num_attention_heads": [4]}, "num_attention_heads is"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"num_key_value_heads": 8}, "4 attention heads cannot share 8"),
        ({"head_dim": 63}, "a head of 63 values cannot be rotated"),
        ({"head_dim": 1 << 20}, "head_dim is"),
        (
            {"head_dim": None, "num_attention_heads": 3},
            "hidden_size is 256, which 3 attention heads do not divide",
        ),
        ({"head_dim": None, "hidden_size": 1 << 20, "num_attention_heads": 1}, "makes heads larger than"),
        ({"max_position_embeddings": 1 << 31}, "max_position_embeddings is"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5', not a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, neither true nor false"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ({"mlp_bias": True}, "mlp_bias is True, which is not supported"),
        ({"attention_bias": True}, "attention_bias is True, which is not supported"),
        ({"attention_multiplier": 0.1}, "attention_multiplier is 0.1, which is not supported"),
        ({"residual_multiplier": 0.2}, "residual_multiplier"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is .*awq.* not supported"),
        ({"num_local_experts": 8}, "num_local_experts is 8"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_theta": math.inf}, "rope_theta is inf"),
        ({"rope_scaling": [1]}, "rope_scaling is not an object"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'; supported are"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type is 'longrope'"),
        ({"rope_scaling": {"rope_type": 3}}, "rope_type is 3, not text"),
        ({"rope_scaling": {"type": "linear"}}, "has no factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "has no low_freq_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor other than 1"),
        ({"eos_token_id": "2"}, "'2' is given as the id of a token"),
        ({"eos_token_id": [-1]}, "-1 is given as the id of a token"),
        ({"bos_token_id": 1.5}, "1.5 is given as the id of a token"),
    ],
)
def test_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        config(**changes)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 49}, r"'embed_tokens.weight' has the shape \[48, 256\] .* implies \[49, 256\]"),
        ({"intermediate_size": 256}, r"'layers.0.mlp.gate_proj.weight' has the shape"),
        ({"num_hidden_layers": 3}, "has no tensor 'layers.2.input_layernorm.weight'"),
        ({"num_hidden_layers": 1}, "'layers.1.input_layernorm.weight' has no place"),
        ({"num_key_value_heads": 4}, r"'layers.0.self_attn.k_proj.weight' has the shape"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
            "has no tensor 'layers.0.self_attn.q_proj.bias'",
        ),
        (
            {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
            "has no tensor 'layers.0.self_attn.q_norm",
        ),
    ],
)
def test_configuration_that_contradicts_the_tensors(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        open_checkpoint(write_folder(tmp_path / "m", config=changes))


def test_tied_models_may_store_their_head(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", config={"tie_word_embeddings": True})
    assert "lm_head.weight" not in open_checkpoint(folder).tensors


def test_untied_models_must_store_their_head(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", tied=True, config={"tie_word_embeddings": False})
    with pytest.raises(InputError, match=r"has no tensor 'lm_head.weight'"):
        open_checkpoint(folder)


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config.json; name a GGUF file or"):
        open_checkpoint(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"has no config.json; name the file, .*a\.gguf"):
        open_checkpoint(tmp_path)
    with pytest.raises(InputError, match="there is no file or folder"):
        open_checkpoint(tmp_path / "nothing")
    folder = write_folder(tmp_path / "m")
    with pytest.raises(InputError, match=r"one file of a Hugging Face model; name its folder"):
        open_checkpoint(folder / "model.safetensors")
    for garbage in (b"", b"{", b"[1]", b"\xff"):
        (folder / "config.json").write_bytes(garbage)
        with pytest.raises(InputError, match=r"not valid JSON|does not hold a JSON object"):
            open_checkpoint(folder)
