"""Small real models for tests: folders of safetensors, and GGUF files written by the gguf package."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import gguf
import numpy as np

HIDDEN, INNER, VOCAB, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 256, 512, 48, 2, 4, 2, 64
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
GGUF_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Shapes = dict[str, tuple[int, ...]]


def shapes(family: str, tied: bool = False) -> Shapes:
    """Canonical names and shapes of a small model of a family."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    found: Shapes = {"embed_tokens.weight": (VOCAB, HIDDEN), "norm.weight": (HIDDEN,)}
    if not tied:
        found["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        found[at + "input_layernorm.weight"] = found[at + "post_attention_layernorm.weight"] = (HIDDEN,)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            found[f"{at}self_attn.{name}_proj.weight"] = (rows, HIDDEN)
            if family == "qwen2":
                found[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        found[at + "self_attn.o_proj.weight"] = (HIDDEN, queries)
        if family == "qwen3":
            found[at + "self_attn.q_norm.weight"] = found[at + "self_attn.k_norm.weight"] = (HEAD_DIM,)
        found[at + "mlp.gate_proj.weight"] = found[at + "mlp.up_proj.weight"] = (INNER, HIDDEN)
        found[at + "mlp.down_proj.weight"] = (HIDDEN, INNER)
    return found


def hf_config(family: str, tied: bool = False) -> dict[str, object]:
    """config.json's object for `shapes(family, tied)`."""
    return {
        "architectures": [CLASSES[family]],
        "model_type": family,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def write_safetensors(path: Path, named: Iterable[tuple[str, tuple[int, ...]]], kind: str = "F32") -> None:
    """Random tensors in a safetensors file. By hand, as the library's numpy face has no BF16."""
    entries: dict[str, object] = {}
    end = 0
    for name, shape in named:
        begin, end = end, end + int(np.prod(shape)) * (4 if kind == "F32" else 2)
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + finite_bytes(end).tobytes())


def finite_bytes(count: int) -> np.ndarray:
    """Random bytes that are finite floats, of whatever width: none sets the highest bit of an exponent."""
    return np.random.default_rng(1).integers(0, 64, count, np.uint8)


def hf_name(canonical: str) -> str:
    """The name of a tensor in a Hugging Face folder."""
    return canonical if canonical == "lm_head.weight" else "model." + canonical


def write_folder(
    folder: Path,
    family: str = "llama",
    tied: bool = False,
    kind: str = "F32",
    shards: int = 1,
    config: Mapping[str, object] | None = None,
) -> Path:
    """A Hugging Face folder; `config` replaces keys of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**hf_config(family, tied), **(config or {})}))
    named = [(hf_name(name), shape) for name, shape in shapes(family, tied).items()]
    if shards == 1:
        write_safetensors(folder / "model.safetensors", named, kind)
        return folder
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = named[shard::shards]
        write_safetensors(folder / file, part, kind)
        weight_map |= {name: file for name, _ in part}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def gguf_name(canonical: str) -> str:
    """The name of a tensor in a GGUF file."""
    if not canonical.startswith("layers."):
        return GGUF_NAMES[canonical]
    _, layer, rest = canonical.split(".", 2)
    stem, _, end = rest.rpartition(".")
    return f"blk.{layer}.{GGUF_NAMES[stem]}.{end}"


def random_blocks(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """A random tensor of a kind, as rows of bytes."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    rows = int(np.prod(shape[:-1])) if len(shape) > 1 else 1
    raw = finite_bytes(rows * (shape[-1] // block) * size).reshape(rows, -1)
    return raw if len(shape) > 1 else raw[0]


def gguf_writer(path: Path, family: str = "llama", skip: tuple[str, ...] = ()) -> gguf.GGUFWriter:
    """A writer with the metadata of a small model, without the keys in `skip`. It has no tensors yet."""
    writer = gguf.GGUFWriter(path, family)
    pairs: dict[str, int | float] = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.dimension_count": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    for key, value in pairs.items():
        if key in skip:
            continue
        if isinstance(value, float):
            writer.add_float32(f"{family}.{key}", value)
        else:
            writer.add_uint32(f"{family}.{key}", value)
    writer.add_string("general.name", "small")
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", [f"token{i}" for i in range(VOCAB)])
    writer.add_array("tokenizer.ggml.token_type", [1] * VOCAB)
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    return writer


def add_tensors(writer: gguf.GGUFWriter, named: Mapping[str, tuple[int, ...]], kind: str = "F32") -> None:
    """Random tensors: matrices of `kind`, vectors F32."""
    for name, shape in named.items():
        stored = kind if len(shape) > 1 else "F32"
        raw = random_blocks(stored, shape)
        if stored in ("F32", "F16"):
            writer.add_tensor(gguf_name(name), raw.view(np.float32 if stored == "F32" else np.float16))
        else:
            writer.add_tensor(gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType[stored])


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(path: Path, family: str = "llama", tied: bool = False, kind: str = "F32") -> Path:
    """A GGUF file of a small model whose matrices are of `kind`."""
    writer = gguf_writer(path, family)
    add_tensors(writer, shapes(family, tied), kind)
    finish(writer)
    return path
