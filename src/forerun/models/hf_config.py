"""A model's configuration from a Hugging Face folder: config.json and generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forerun.errors import InputError
from forerun.models import rope
from forerun.models.config import (
    FAMILIES,
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
from forerun.weights.files import read_json

CLASSES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Of transformers, and what they are here."""

CLASS_OF = {family: name for name, family in CLASSES.items()}
DEFAULT_CONTEXT = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}  # transformers' own

# Settings that change what is computed and that the decoder does not know, with the values that mean "off".
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "mlp_bias": (False,),
    "attention_bias": (False,),
    "rope_interleaved": (False,),
    "quantization_config": (),
    "compression_config": (),
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "partial_rotary_factor": (1, 1.0),
    "attention_multiplier": (),
    "embedding_multiplier": (1, 1.0),
    "residual_multiplier": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "logit_scale": (1, 1.0),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "clip_qkv": (),
    "no_rope_layers": ([],),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "draft_vocab_size": (),
}


def read_hf_config(folder: Path) -> tuple[ModelConfig, Mapping[str, object]]:
    """The configuration of a folder, and config.json's whole object. InputError for anything unusable."""
    path = folder / "config.json"
    values = read_json(path)
    generation = folder / "generation_config.json"
    extra = read_json(generation) if generation.exists() else {}
    return config_from_hf(values, str(path), extra, _display_name(folder)), values


def config_from_hf(
    values: Mapping[str, object], source: str, generation: Mapping[str, object], name: str
) -> ModelConfig:
    """The configuration out of config.json's object.

    source:     the file, for messages
    generation: generation_config.json's object, {} without one; its end tokens are added to config.json's
    name:       for display
    """
    fields = Fields(values, source)
    family = _family(fields)
    _refuse_unsupported(fields)
    hidden = fields.integer("hidden_size", 1, LARGEST_WIDTH)
    vocab = fields.integer("vocab_size", 1, LARGEST_VOCABULARY)
    layers = fields.integer("num_hidden_layers", 1, MOST_LAYERS)
    heads = fields.integer("num_attention_heads", 1, MOST_HEADS)
    kv_heads = fields.integer("num_key_value_heads", 1, MOST_HEADS, default=heads)
    head_dim = _head_dim(fields, family, hidden, heads)
    check_heads(heads, kv_heads, head_dim, source)
    context = fields.integer("max_position_embeddings", 1, LONGEST_CONTEXT, default=DEFAULT_CONTEXT[family])
    frequencies, rope_scale = read_rope(fields, head_dim, context)
    beside = str(Path(source).with_name("generation_config.json"))
    ends = token_ids(_as_list(values.get("eos_token_id")), vocab, source)
    ends += token_ids(_as_list(generation.get("eos_token_id")), vocab, beside)
    begins = token_ids(_as_list(values.get("bos_token_id"))[:1], vocab, source)
    return ModelConfig(
        architecture=family,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 1, LARGEST_WIDTH),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=context,
        norm_eps=fields.number("rms_norm_eps", 0, 1, default=1e-6),
        inv_freq=check_frequencies(frequencies, source),
        rope_scale=rope_scale,
        tied=fields.flag("tie_word_embeddings", False),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        window=_window(fields, family, layers, context),
        rope_interleaved=False,
        bos_token_id=begins[0] if begins else None,
        eos_token_ids=tuple(sorted(set(ends))),
        name=name,
    )


def _family(fields: Fields) -> str:
    classes = fields.values.get("architectures") or []
    if not isinstance(classes, list):
        raise fields.fault("architectures", "is not a list of names")
    known = [CLASSES[name] for name in classes if isinstance(name, str) and name in CLASSES]
    if classes and not known:
        raise InputError(
            f"{fields.source}: the architecture {str(classes[0])!r} is not supported;"
            f" {', '.join(CLASSES)} are"
        )
    family = fields.text("model_type", known[0] if known else None)
    if family not in FAMILIES or (known and family not in known):
        raise InputError(
            f"{fields.source}: the model type {family!r} is not supported; {', '.join(FAMILIES)} are"
        )
    return family


def _refuse_unsupported(fields: Fields) -> None:
    for key, off in UNSUPPORTED.items():
        value = fields.values.get(key)
        if value is not None and value not in off:
            raise fields.fault(key, f"is {value!r}, which is not supported")
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.fault("hidden_act", f"is {activation!r}; only 'silu' is supported")


def _head_dim(fields: Fields, family: str, hidden: int, heads: int) -> int:
    if not fields.has("head_dim"):
        if family == "qwen3":
            return 128  # transformers' default for the family, whatever the hidden size
        if hidden % heads:
            raise fields.fault("hidden_size", f"is {hidden}, which {heads} attention heads do not divide")
        if hidden // heads > LARGEST_HEAD:
            raise fields.fault(
                "num_attention_heads", f"is {heads}, which makes heads larger than {LARGEST_HEAD}"
            )
        return hidden // heads
    return fields.integer("head_dim", 2, LARGEST_HEAD)


def read_rope(fields: Fields, head_dim: int, context: int) -> tuple[Frequencies, float]:
    """Frequencies and the factor on cos and sin, from transformers' older keys (rope_theta, rope_scaling) or
    its newer one (rope_parameters)."""
    given = fields.values.get("rope_scaling") or fields.values.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise fields.fault("rope_scaling", "is not an object")
    inner = Fields(given, f"{fields.source}, rope parameters")
    theta = inner.number(
        "rope_theta", 1.01, 1e12, default=fields.number("rope_theta", 1.01, 1e12, default=10000.0)
    )
    kind = inner.text("rope_type", inner.text("type", "default"))
    if inner.number("partial_rotary_factor", 0, 1, default=1.0) != 1.0:
        raise inner.fault("partial_rotary_factor", "other than 1 is not supported")
    if kind == "default":
        return rope.plain(theta, head_dim), 1.0
    if kind not in ("linear", "llama3", "yarn"):
        raise inner.fault("rope_type", f"is {kind!r}; supported are default, linear, llama3, yarn")
    if kind == "linear":
        return rope.linear(rope.plain(theta, head_dim), inner.number("factor", 1e-3, 1e6)), 1.0
    key = "original_max_position_embeddings"
    # transformers lets the key outside the rope parameters win, and falls back to the whole context.
    holder = fields if fields.has(key) else inner
    original = holder.integer(key, 1, LONGEST_CONTEXT, default=context)
    if kind == "yarn":
        return _yarn(inner, theta, head_dim, context, original)
    factor = inner.number("factor", 1e-3, 1e6)
    low, high = inner.number("low_freq_factor", 1e-6, 1e6), inner.number("high_freq_factor", 1e-6, 1e6)
    if high <= low:
        raise inner.fault("high_freq_factor", "is not above low_freq_factor")
    return rope.llama3(rope.plain(theta, head_dim), factor, low, high, original), 1.0


def _yarn(
    inner: Fields, theta: float, head_dim: int, context: int, original: int
) -> tuple[Frequencies, float]:
    factor = inner.number("factor", 1e-3, 1e6, default=context / original)
    fast = inner.number("beta_fast", 0, 1e6, default=32) or 32.0
    slow = inner.number("beta_slow", 0, 1e6, default=1) or 1.0
    frequencies = rope.yarn(theta, head_dim, factor, original, fast, slow, inner.flag("truncate", True))
    one, all_dim = (
        inner.number("mscale", 0, 1e3, default=0),
        inner.number("mscale_all_dim", 0, 1e3, default=0),
    )
    if inner.has("attention_factor"):
        return frequencies, inner.number("attention_factor", 0, 1e3)
    if one and all_dim:
        return frequencies, rope.yarn_magnitude(factor, one) / rope.yarn_magnitude(factor, all_dim)
    return frequencies, rope.yarn_magnitude(factor)


def _window(fields: Fields, family: str, layers: int, context: int) -> int:
    """The sliding window, 0 for none. Only a window that every layer has is supported."""
    size = fields.integer(
        "sliding_window", 0, LONGEST_CONTEXT, default=4096 if "sliding_window" not in fields.values else 0
    )
    if family == "llama" or (family != "mistral" and not fields.flag("use_sliding_window", False)):
        size = 0
    given = fields.values.get("layer_types")
    if family == "llama" or family == "mistral" or size == 0:
        slid = layers if size else 0
    elif given is None:
        slid = max(0, layers - fields.integer("max_window_layers", 0, LONGEST_CONTEXT, default=28))
    elif isinstance(given, list) and len(given) == layers:
        slid = given.count("sliding_attention")
    else:
        raise fields.fault("layer_types", f"is not a list with an entry for each layer, {layers} in all")
    if size >= context or slid == 0:
        return 0
    if slid < layers:
        raise fields.fault(
            "sliding_window", f"holds for {slid} of {layers} layers only, which is not supported"
        )
    return size


def _as_list(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _display_name(folder: Path) -> str:
    """The folder's name, or org/name for a snapshot in huggingface_hub's cache."""
    folder = folder.absolute()
    cached = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cached.startswith("models--"):
        return "/".join(cached.split("--")[1:])
    return folder.name
