"""A model's configuration from GGUF metadata, with the defaults that llama.cpp has.

Some facts are read off the tensors, as llama.cpp does: the vocabulary is as large as the embedding, the
head is tied when there is no `output.weight`, biases are there when their tensors are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from forerun.errors import InputError
from forerun.models import rope
from forerun.models.config import (
    LARGEST_HEAD,
    LARGEST_VOCABULARY,
    LARGEST_WIDTH,
    LONGEST_CONTEXT,
    MOST_HEADS,
    MOST_LAYERS,
    ModelConfig,
    check_frequencies,
    check_heads,
    token_ids,
)
from forerun.models.fields import Fields
from forerun.models.rope import Frequencies
from forerun.weights.tensor import Tensor
from forerun.words import counted

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # llama's covers mistral too
HEADS_ARCHITECTURE = "eagle3"
"""Of a drafting head, see `heads.gguf`."""

ROPE_FACTORS = "rope_freqs.weight"
END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

# Settings that change what is computed and that the decoder does not know, with the values that mean "off".
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.sliding_window_pattern": (),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
    "nextn_predict_layers": (0,),
    "rope.scaling.attn_factor": (0.0, 1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.alpha": (0.0,),
}


def config_from_gguf(
    metadata: Mapping[str, object], tensors: Mapping[str, Tensor], path: Path
) -> ModelConfig:
    """The configuration of a GGUF file.

    metadata: its key-value pairs
    tensors:  by canonical names, and ROPE_FACTORS where there is one
    """
    source = str(path)
    general = Fields(metadata, source)
    family = general.text("general.architecture")
    if family not in ARCHITECTURES:
        raise InputError(
            f"{source}: the architecture {family!r} is not supported; {', '.join(ARCHITECTURES)} are"
        )
    if general.integer("split.count", 0, 1 << 16, default=0) > 1:
        raise InputError(
            f"{source} is one part of a split model; join the parts with llama-gguf-split --merge"
        )
    fields = Fields(metadata, source, family + ".")
    for key, off in UNSUPPORTED.items():
        value = fields.get(key)
        if value is not None and value not in off:
            raise fields.fault(key, f"is {value!r}, which is not supported")
    hidden = fields.integer("embedding_length", 1, LARGEST_WIDTH)
    heads = fields.integer("attention.head_count", 1, MOST_HEADS)
    kv_heads = fields.integer("attention.head_count_kv", 1, MOST_HEADS, default=heads)
    head_dim = _head_dim(fields, hidden, heads)
    check_heads(heads, kv_heads, head_dim, source)
    context = fields.integer("context_length", 1, LONGEST_CONTEXT)
    frequencies, rope_scale = rope_from_gguf(fields, tensors, head_dim, context)
    vocab = _vocabulary(fields, tensors)
    ends = [value for key in END_KEYS if (value := general.get(key)) is not None]
    begin = general.get("tokenizer.ggml.bos_token_id")
    begins = token_ids([] if begin is None else [begin], vocab, source)
    return ModelConfig(
        architecture=family,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length", 1, LARGEST_WIDTH),
        layers=fields.integer("block_count", 1, MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=context,
        norm_eps=fields.number("attention.layer_norm_rms_epsilon", 0, 1),
        inv_freq=frequencies,
        rope_scale=rope_scale,
        tied="lm_head.weight" not in tensors,
        qkv_bias="layers.0.self_attn.q_proj.bias" in tensors,
        qk_norm=family == "qwen3",
        window=_window(fields, context),
        rope_interleaved=family == "llama",
        bos_token_id=begins[0] if begins else None,
        eos_token_ids=token_ids(ends, vocab, source),
        name=general.text("general.name", "") or path.stem,
    )


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if not fields.has("attention.key_length") and hidden % heads:
        raise fields.fault("embedding_length", f"is {hidden}, which {heads} attention heads do not divide")
    head_dim = fields.integer("attention.key_length", 2, LARGEST_HEAD, default=hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        other = fields.integer(key, 1, LARGEST_WIDTH, default=head_dim)
        if other != head_dim:
            values = counted(head_dim, "value")
            raise fields.fault(key, f"is {other} for heads of {values}, which is not supported")
    return head_dim


def _vocabulary(fields: Fields, tensors: Mapping[str, Tensor]) -> int:
    embedding = tensors.get("embed_tokens.weight")
    if embedding is None:
        raise InputError(
            f"{fields.source} has no tensor 'token_embd.weight'; fetch or convert the model again"
        )
    rows = embedding.shape[0]
    if len(embedding.shape) != 2 or rows > LARGEST_VOCABULARY:
        raise InputError(f"{fields.source}: tensor 'token_embd.weight' has the shape {list(embedding.shape)}")
    declared = fields.integer("vocab_size", 1, LARGEST_VOCABULARY, default=rows)
    if declared != rows:
        embedded = counted(rows, "row")
        raise fields.fault(
            "vocab_size", f"is {declared} and the embedding has {embedded}; convert the model again"
        )
    return rows


def rope_from_gguf(
    fields: Fields, tensors: Mapping[str, Tensor], head_dim: int, context: int
) -> tuple[Frequencies, float]:
    """Frequencies, and the factor on cos and sin."""
    frequencies, scale = _rope(fields, head_dim, context)
    return check_frequencies(_with_factors(frequencies, tensors, fields.source), fields.source), scale


def _rope(fields: Fields, head_dim: int, context: int) -> tuple[Frequencies, float]:
    theta = fields.number("rope.freq_base", 1.01, 1e12, default=10000.0)
    kind = fields.text("rope.scaling.type", "linear")
    # 0 stands for "no scaling", and `rope.scale_linear` is the factor's older key.
    factor = (
        fields.number(
            "rope.scaling.factor", 0, 1e6, default=fields.number("rope.scale_linear", 0, 1e6, default=0)
        )
        or 1.0
    )
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return rope.plain(theta, head_dim), 1.0
    if kind == "linear":
        return rope.linear(rope.plain(theta, head_dim), factor), 1.0
    if kind != "yarn":
        raise fields.fault("rope.scaling.type", f"is {kind!r}; supported are none, linear, yarn")
    original = fields.integer("rope.scaling.original_context_length", 1, LONGEST_CONTEXT, default=context)
    fast = fields.number("rope.scaling.yarn_beta_fast", 1e-6, 1e6, default=32)
    slow = fields.number("rope.scaling.yarn_beta_slow", 1e-6, 1e6, default=1)
    return rope.yarn(theta, head_dim, factor, original, fast, slow, True), rope.yarn_magnitude(factor)


def _with_factors(frequencies: Frequencies, tensors: Mapping[str, Tensor], source: str) -> Frequencies:
    """Divide by the factors a frequency that converters store for llama3's scaling."""
    stored = tensors.get(ROPE_FACTORS)
    if stored is None:
        return frequencies
    if stored.kind != "F32" or stored.shape != frequencies.shape:
        raise InputError(
            f"{source}: tensor {ROPE_FACTORS!r} is not F32 [{len(frequencies)}], one factor a frequency"
        )
    factors = np.frombuffer(stored.data, "<f4")
    if not np.isfinite(factors).all() or (factors <= 0).any():
        raise InputError(f"{source}: tensor {ROPE_FACTORS!r} holds a factor that is not a positive number")
    scaled: Frequencies = (frequencies / factors).astype(np.float32)
    return scaled


def _window(fields: Fields, context: int) -> int:
    size = fields.integer("attention.sliding_window", 0, LONGEST_CONTEXT, default=0)
    return size if size < context else 0
