"""From GGUF's tensor names to the canonical ones."""

from __future__ import annotations

import re

OUTER = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)", re.ASCII)


def canonical_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `layers.3.self_attn.q_proj.weight`; other names stay as they are."""
    match = _BLOCK.fullmatch(name)
    if match and match[2] in INNER:
        return f"layers.{match[1]}.{INNER[match[2]]}.{match[3]}"
    return OUTER.get(name, name)


def gguf_name(name: str) -> str:
    """The way back, of canonical names that `canonical_name` gives."""
    outer = {canonical: own for own, canonical in OUTER.items()}
    if name in outer:
        return outer[name]
    _, number, rest = name.split(".", 2)
    inner, _, kind = rest.rpartition(".")
    own = next(own for own, canonical in INNER.items() if canonical == inner)
    return f"blk.{number}.{own}.{kind}"
