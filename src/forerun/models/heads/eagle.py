"""EAGLE-1/2 and EAGLE-3 heads: decoder layers of the Llama family with an entry of their own.

Canonical tensors; H is the head's hidden size, F the features it reads of the target at a token:

    fc.weight (fc.bias)               [H, 2H] EAGLE-1; [H, F] EAGLE-3, absent where the state is the features
    embed_norm, state_norm            [H] norms of what is joined: the embedding, and the state
    fc_norm                           [F] norm of the features
    layers.N....                      as a Llama model's; EAGLE-3's first q, k, v have 2H inputs
    norm, lm_head, embed_tokens       absent where the head has none, or the target's are used (of its lm_head
                                      the rows that `d2t` names, if there is one)
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from forerun.errors import InputError
from forerun.models.config import (
    LARGEST_HEAD,
    LARGEST_VOCABULARY,
    LONGEST_CONTEXT,
    MOST_HEADS,
    MOST_LAYERS,
    check_frequencies,
    check_heads,
)
from forerun.models.fields import Fields
from forerun.models.heads.head import Head, Layer, target_tokens
from forerun.models.heads.reading import Folder
from forerun.models.hf_config import read_rope
from forerun.weights.tensor import Tensor
from forerun.words import counted

OUTER = {
    "fusion_fc.": "fc.",  # speculators' first names
    "transformer.": "layers.0.",
    "midlayer.": "layers.0.",
    "embedding_layernorm.": "embed_norm.",  # HASS, and speculators' EAGLE-1
    "hidden_states_layernorm.": "state_norm.",
    "pre_lm_head_layernorm.": "norm.",
    "input_norm.": "fc_norm.",
    "layers.0.hidden_norm.": "state_norm.",
}
NORMS = {
    "norm_before_fc": "fc_norm.weight",
    "fc_norm": "fc_norm.weight",
    "add_para_norm": "state_norm.weight",
}
"""What configurations say, and the tensor that there must be then."""

DROPPED = re.compile(r"t2d|verifier_.*|(.*\.)?rotary_emb\.inv_freq")
_LAYER = re.compile(r"layers\.(0|[1-9][0-9]{0,3})\.")


def looks_like_eagle(folder: Folder) -> bool:
    names = {canonical(name) for name in folder.entries}
    return "layers.0.self_attn.q_proj.weight" in names and bool(names & {"fc.weight", "state_norm.weight"})


def canonical(name: str) -> str:
    """`midlayer.hidden_norm.weight` -> `state_norm.weight`."""
    name = name.removeprefix("model.")
    for before, after in OUTER.items():
        if name.startswith(before):
            name = after + name.removeprefix(before)
    return name


def read_eagle(folder: Folder) -> Head:
    """A head of either generation; which it is, the tensors say."""
    tensors, norms = _tensors(folder)
    fields = Fields(_sizes(folder.config), folder.source)
    q = _shape(folder, tensors, "layers.0.self_attn.q_proj.weight")
    hidden = _shape(folder, tensors, "layers.0.self_attn.o_proj.weight")[0]
    third = q[1] == 2 * hidden
    if third and "layers.0.input_layernorm.weight" in tensors:
        tensors["embed_norm.weight"] = tensors.pop("layers.0.input_layernorm.weight")
    layer = _layer(fields, folder, tensors, q[0], hidden, norms)
    features = tensors["fc.weight"].shape[-1] if third and "fc.weight" in tensors else hidden
    head, embedding = tensors.get("lm_head.weight"), tensors.get("embed_tokens.weight")
    vocab = fields.integer("vocab_size", 1, LARGEST_VOCABULARY) if fields.has("vocab_size") else None
    if embedding is not None:
        vocab = embedding.shape[0]
    outputs = folder.length("d2t") if head is None else head.shape[0]
    folder.check(tensors, _shapes(layer, tensors, hidden, features, third))
    for flag, norm in NORMS.items():
        if fields.flag(flag, False) and norm not in tensors:
            raise InputError(f"{fields.source} says {flag}, and there is no such norm; fetch the head again")
    speculators = isinstance(folder.config.get("speculators_model_type"), str)
    return Head(
        path=folder.path,
        layout=folder.layout or ("speculators" if speculators else "eagle3" if third else "eagle"),
        family="eagle3" if third else "eagle",
        hidden_size=hidden,
        features=features,
        taps=_taps(folder, features if third and "fc.weight" in tensors else 0),
        vocab_size=vocab,
        outputs=outputs,
        tokens=None if outputs is None else target_tokens(folder, vocab, outputs),
        tensors=tensors,
        layer=layer,
    )


def _sizes(config: Mapping[str, object]) -> Mapping[str, object]:
    """The keys of a Llama configuration, wherever they lie: vLLM and speculators wrap it."""
    for key in ("model", "transformer_layer_config"):
        inner = config.get(key)
        if isinstance(inner, dict):
            return {**config, **inner}
    return config


def _tensors(folder: Folder) -> tuple[dict[str, Tensor], int]:
    """By canonical names, and in how many parts the features are normed."""
    tensors: dict[str, Tensor] = {}
    for name in list(folder.entries):
        if DROPPED.fullmatch(name):
            folder.taken.add(name)
        elif name != "d2t":
            new = canonical(name)
            if new in tensors:
                raise InputError(f"{folder.path} holds {new!r} twice, under two names")
            tensor = folder.tensor(name, new)
            assert tensor is not None
            tensors[new] = tensor
    parts = [
        tensors.pop(f"fc_norm.{part}.weight") for part in range(16) if f"fc_norm.{part}.weight" in tensors
    ]
    if parts:
        if len({(part.kind, part.shape) for part in parts}) != 1:
            raise InputError(f"{folder.path}: the parts of 'fc_norm' differ in shape or type")
        data = np.concatenate([part.data for part in parts])
        size = sum(part.shape[0] for part in parts)
        tensors["fc_norm.weight"] = Tensor("fc_norm.weight", parts[0].kind, (size,), data)
    return tensors, max(len(parts), 1)


def _layer(
    fields: Fields, folder: Folder, tensors: Mapping[str, Tensor], queries: int, hidden: int, fc_norms: int
) -> Layer:
    """Sizes, from the tensors where these say them: configurations are often another model's."""
    layers = 1 + max(int(match[1]) for match in map(_LAYER.match, tensors) if match)
    if layers > MOST_LAYERS:
        raise InputError(f"{folder.path} has a layer {layers - 1}")
    heads = fields.integer("num_attention_heads", 1, MOST_HEADS)
    head_dim = fields.integer(
        "head_dim", 2, LARGEST_HEAD, default=max(2, min(queries // heads, LARGEST_HEAD))
    )
    if heads * head_dim != queries:
        have = counted(queries, "query", "queries")
        raise InputError(f"{fields.source}: {have} where {counted(heads, 'head')} of {head_dim} values are")
    keys = _shape(folder, tensors, "layers.0.self_attn.k_proj.weight")[0]
    if keys % head_dim:
        have = counted(keys, "key")
        raise InputError(f"{fields.source}: {have} cannot be shared out to heads of {head_dim} values")
    check_heads(heads, keys // head_dim, head_dim, fields.source)
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.fault("hidden_act", f"is {activation!r}; only 'silu' is supported")
    context = fields.integer("max_position_embeddings", 1, LONGEST_CONTEXT, default=2048)
    frequencies, rope_scale = folder.rope or read_rope(fields, head_dim, context)
    return Layer(
        layers=layers,
        intermediate_size=_shape(folder, tensors, "layers.0.mlp.gate_proj.weight")[0],
        heads=heads,
        kv_heads=keys // head_dim,
        head_dim=head_dim,
        norm_eps=fields.number("rms_norm_eps", 0, 1, default=1e-6),
        inv_freq=check_frequencies(frequencies, fields.source),
        rope_scale=rope_scale,
        residual_is_normed=fields.flag("norm_before_residual", False),
        hands_on_normed=fields.flag("norm_output", False),
        fc_norms=fc_norms,
    )


def _shape(folder: Folder, tensors: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    if name not in tensors or len(tensors[name].shape) != 2:
        raise InputError(f"{folder.path} lacks the tensor {name!r}; it is no EAGLE head, or not whole")
    rows, columns = tensors[name].shape
    return rows, columns


def _shapes(
    layer: Layer, tensors: Mapping[str, Tensor], hidden: int, features: int, third: bool
) -> Mapping[str, tuple[int, ...]]:
    """What must be there, and the shapes of what may be."""
    queries, keys, inner = (
        layer.heads * layer.head_dim,
        layer.kv_heads * layer.head_dim,
        layer.intermediate_size,
    )
    shapes: dict[str, tuple[int, ...]] = {}
    may: dict[str, tuple[int, ...]] = {
        "embed_norm.weight": (hidden,),
        "state_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "fc.bias": (hidden,),
        "fc_norm.weight": (features,),
        "layers.0.input_layernorm.weight": (hidden,),
    }
    if third:
        shapes |= {"embed_norm.weight": (hidden,), "state_norm.weight": (hidden,), "norm.weight": (hidden,)}
        may["fc.weight"] = (hidden, features)
    else:
        shapes["fc.weight"] = (hidden, 2 * hidden)
    for index in range(layer.layers):
        at, inputs = f"layers.{index}.", 2 * hidden if third and index == 0 else hidden
        for name, rows, columns in (
            ("self_attn.q_proj", queries, inputs), ("self_attn.k_proj", keys, inputs), ("self_attn.v_proj",
            keys, inputs), ("self_attn.o_proj", hidden, queries), ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden), ("mlp.down_proj", hidden, inner),
        ):  # fmt: skip
            shapes[f"{at}{name}.weight"] = (rows, columns)
            may[f"{at}{name}.bias"] = (rows,)
        may[f"{at}self_attn.q_norm.weight"] = may[f"{at}self_attn.k_norm.weight"] = (layer.head_dim,)
        shapes[f"{at}post_attention_layernorm.weight"] = (hidden,)
        if index:
            shapes[f"{at}input_layernorm.weight"] = (hidden,)
    for name in ("lm_head.weight", "embed_tokens.weight"):
        if name in tensors:
            shapes[name] = (tensors[name].shape[0], hidden)
    known = shapes.keys() | may.keys()
    for name in tensors:
        if name not in known:
            raise InputError(f"an EAGLE head has no tensor {name!r}; this is another kind of head")
    return shapes | {name: shape for name, shape in may.items() if name in tensors}


def _taps(folder: Folder, features: int) -> tuple[int, ...] | None:
    """The hidden states that `fc` reads, if the configuration says: id k is Hugging Face's
    hidden_states[k]."""
    config = folder.config
    inner = config.get("eagle_config")
    found = config.get("eagle_aux_hidden_state_layer_ids")
    if isinstance(inner, dict):
        found = found or inner.get("eagle_aux_hidden_state_layer_ids")
    if not found or not features:
        return None
    if (
        not isinstance(found, list)
        or not all(type(k) is int and 0 <= k <= MOST_LAYERS for k in found)
        or len(found) > 16
    ):
        raise InputError(f"{folder.source}: eagle_aux_hidden_state_layer_ids is {found!r}, no list of layers")
    return tuple(found)
