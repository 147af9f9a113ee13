"""Tiny models as real files: random but finite weights, a byte-level BPE tokenizer, a chat template.

The same `Tiny` gives the same model as a GGUF file and as a Hugging Face folder.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import tokenizers

from forerun.models.checkpoint import expected_tensors
from forerun.models.config import ModelConfig
from support.random_models import as_kind, random_config

Floats = npt.NDArray[np.float32]

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = [
    ("Ġ", "t"), ("h", "e"), ("i", "n"), ("r", "e"), ("o", "n"), ("a", "t"), ("e", "r"), ("Ġ", "a"),
    ("Ġt", "he"), ("e", "n"), ("o", "r"), ("i", "s"), ("Ġ", "s"), ("a", "n"), ("l", "l"), ("Ġ", "o"),
    ("o", "u"), ("e", "d"), ("in", "g"), ("Ġ", "w"), ("Ġ", "c"), ("a", "l"), ("a", "r"), ("Ġo", "f"),
    ("Ġ", "in"), ("d", "e"), ("Ġa", "n"), ("Ġan", "d"), ("re", "t"), ("u", "r"), ("ret", "ur"),
    ("retur", "n"),
]  # fmt: skip
GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
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
HF_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@dataclass(frozen=True)
class Tiny:
    """What a tiny model is. `arch` is llama, mistral, qwen2 or qwen3; `sharpness` scales the logits; `vocab`
    of 0 is that of the tokenizer."""

    arch: str = "llama"
    tied: bool = True
    context: int = 1024
    layers: int = 2
    hidden: int = 256
    inner: int = 512
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    sharpness: float = 3.0
    seed: int = 0
    vocab: int = 0

    def config(self) -> ModelConfig:
        return random_config(
            hidden=self.hidden,
            inner=self.inner,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab=self.vocab or len(vocabulary()),
            layers=self.layers,
            tied=self.tied,
            qkv_bias=self.arch == "qwen2",
            qk_norm=self.arch == "qwen3",
        )

    def weights(self) -> dict[str, Floats]:
        """By canonical names, in the order of a Hugging Face folder."""
        draw = np.random.default_rng(self.seed)
        found = {}
        for name, shape in expected_tensors(self.config()):
            if len(shape) == 1:
                values = 0.1 * draw.normal(size=shape) + (0 if name.endswith(".bias") else 1)
            else:
                values = draw.normal(size=shape) * 1.5 / np.sqrt(shape[-1])
            found[name] = values.astype(np.float32)
        found["norm.weight"] *= self.sharpness
        return found


def vocabulary() -> list[str]:
    """All tokens by id: bytes, merged pieces, then the special ones."""
    return [*byte_letters(), *("".join(pair) for pair in MERGES), *SPECIAL]


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def write_tiny_gguf(
    path: Path,
    tiny: Tiny | None = None,
    *,
    quant: str = "F32",
    tokenizer: bool = True,
    chat: bool = True,
    lists: Mapping[str, list[int] | list[str]] | None = None,
) -> Path:
    """A GGUF file whose matrices are of the kind `quant`. K-quants get random blocks, not the weights.
    `lists` are further metadata."""
    tiny = tiny or Tiny()
    arch = "llama" if tiny.arch == "mistral" else tiny.arch
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_context_length(tiny.context)
    writer.add_embedding_length(tiny.hidden)
    writer.add_block_count(tiny.layers)
    writer.add_feed_forward_length(tiny.inner)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    writer.add_key_length(tiny.head_dim)
    writer.add_value_length(tiny.head_dim)
    writer.add_rope_dimension_count(tiny.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if tokenizer:
        _add_tokenizer(writer, chat)
    for key, values in (lists or {}).items():
        writer.add_array(key, values)
    draw = np.random.default_rng(tiny.seed)
    for name, values in tiny.weights().items():
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _interleaved(values, tiny.head_dim)
        kind = quant if values.ndim == 2 else "F32"
        rows = values.shape[0] if values.ndim == 2 else 1
        raw = as_kind(values, kind, draw).reshape((rows, -1) if values.ndim == 2 else (-1,))
        if kind == "F32":
            writer.add_tensor(gguf_name(name), values)
        else:
            writer.add_tensor(gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(canonical: str) -> str:
    """The name of a tensor in a GGUF file: layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight."""
    stem, _, end = canonical.rpartition(".")
    if not stem.startswith("layers."):
        return f"{GGUF_NAMES[stem]}.{end}"
    _, layer, rest = stem.split(".", 2)
    return f"blk.{layer}.{GGUF_NAMES[rest]}.{end}"


def _interleaved(rows: Floats, head_dim: int) -> Floats:
    """Rows of q or k in GGUF's order for llama: the two halves of each head side by side."""
    heads = rows.reshape(-1, 2, head_dim // 2, rows.shape[1])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(rows.shape))


def _add_tokenizer(writer: gguf.GGUFWriter, chat: bool) -> None:
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(tokens.index(END))
    writer.add_add_bos_token(False)
    if chat:
        writer.add_chat_template(CHAT_TEMPLATE)


def write_tiny_hf(
    folder: Path, tiny: Tiny | None = None, *, dtype: str = "F32", shards: int = 1, tokenizer: bool = True
) -> Path:
    """A Hugging Face folder; `dtype` is F32, F16 or BF16."""
    tiny = tiny or Tiny()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_hf_config(tiny)))
    named = {name if name == "lm_head.weight" else f"model.{name}": v for name, v in tiny.weights().items()}
    names = list(named)
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    if shards == 1:
        files = ["model.safetensors"]
    else:
        weight_map = {name: files[i % shards] for i, name in enumerate(names)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for i, file in enumerate(files):
        _write_safetensors(folder / file, {name: named[name] for name in names[i::shards]}, dtype)
    if tokenizer:
        _write_hf_tokenizer(folder)
    return folder


def _write_safetensors(path: Path, named: dict[str, Floats], dtype: str) -> None:
    """By hand: the library has no BF16 without torch."""
    draw = np.random.default_rng(0)
    entries: dict[str, object] = {}
    data = b""
    for name, values in named.items():
        raw = as_kind(values, dtype, draw).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        entries[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def _hf_config(tiny: Tiny) -> dict[str, object]:
    tokens = vocabulary()
    return {
        "architectures": [HF_CLASSES[tiny.arch]],
        "model_type": tiny.arch,
        "vocab_size": len(tokens),
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.inner,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": tiny.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tiny.tied,
        "bos_token_id": tokens.index("<|endoftext|>"),
        "eos_token_id": tokens.index(END),
        "torch_dtype": "float32",
    }


def _write_hf_tokenizer(folder: Path) -> None:
    tokens = vocabulary()
    ids = {token: i for i, token in enumerate(tokens) if token not in SPECIAL}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=MERGES))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in SPECIAL])
    assert backend.get_vocab_size() == len(tokens)
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
