"""Tiny EAGLE-3 heads as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from support.heads import Sizes, TinyHead

NAMES = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "input_norm": "enc.output_norm",
}


def write_head_file(
    path: Path,
    sizes: Sizes,
    head: TinyHead,
    *,
    quant: str = "F32",
    taps_key: str = "target_layers",
    factors: np.ndarray | None = None,
    architecture: str = "eagle3",
    tokens: np.ndarray | None = None,
) -> Path:
    """`head`, one of `sizes.eagle3`. `quant`: of matrices; `factors`: of the frequencies; `tokens`: in place
    of those of its `d2t`."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(sizes.hidden)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(sizes.vocab)])
    config = head.config
    for flag in ("norm_before_residual", "norm_before_fc", "norm_output"):
        if flag in config:
            writer.add_bool(f"eagle3.{flag}", bool(config[flag]))
    if "eagle_aux_hidden_state_layer_ids" in config:
        writer.add_array(f"eagle3.{taps_key}", config["eagle_aux_hidden_state_layer_ids"])
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    for name, values in head.arrays.items():
        if name == "t2d":
            continue
        if name == "d2t":
            absolute = values + np.arange(values.size) if tokens is None else tokens
            writer.add_tensor("d2t", absolute.astype(np.int64))
            continue
        values = (
            _interleaved(values, sizes.head_dim)
            if name.endswith(("q_proj.weight", "k_proj.weight"))
            else values
        )
        _add(writer, _name(name), values, quant if values.ndim == 2 else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _name(name: str) -> str:
    inner = name.removeprefix("midlayer.").removesuffix(".weight")
    if name.startswith("midlayer."):
        return f"blk.0.{NAMES[inner]}.weight"
    return f"{OUTER.get(inner, inner)}.weight"


def _interleaved(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """As llama.cpp's converter permutes q and k."""
    halves = rows.reshape(-1, 2, head_dim // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, quant: str) -> None:
    if quant == "F32":
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType[quant]
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
