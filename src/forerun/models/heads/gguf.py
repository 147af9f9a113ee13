"""EAGLE-3 heads in GGUF files, as llama.cpp's converter writes them (architecture `eagle3`).

Such a file is that of a Llama model of one layer, with the tensors that a head has besides: `fc`, a second
norm of the layer (of the state), `enc.output_norm` (of the features), and `d2t`, which here holds the
target's tokens themselves, not offsets. The rows of q and k lie as in Llama's files, the two values that
rotate together side by side. It is turned into what a folder of the authors' layout holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from forerun.errors import InputError
from forerun.models.config import LARGEST_HEAD, LONGEST_CONTEXT, MOST_HEADS
from forerun.models.fields import Fields
from forerun.models.gguf_config import HEADS_ARCHITECTURE, ROPE_FACTORS, rope_from_gguf
from forerun.models.heads.reading import Folder
from forerun.models.shipped import short_name
from forerun.weights.gguf_file import GGUFFile, read_gguf
from forerun.weights.names import canonical_name
from forerun.weights.safetensors_file import Entry
from forerun.weights.tensor import Tensor

NAMES = {
    "blk.0.attn_norm_2.weight": "layers.0.hidden_norm.weight",
    "enc.output_norm.weight": "input_norm.weight",
}
ROTATED = ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight")
TAPS = ("target_layers", "extract_layers")
"""Keys of the hidden states that it reads, and what early files call it; they count as Hugging Face does."""

FLAGS = ("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm")


def read_head_file(path: Path) -> Folder:
    """Open a head's file. InputError for what cannot be read, and for a model."""
    file = read_gguf(path)
    if file.metadata.get("general.architecture") != HEADS_ARCHITECTURE:
        raise InputError(f"{path} is a model, not a drafting head; write draft:{short_name(path)}")
    fields = Fields(file.metadata, str(path), f"{HEADS_ARCHITECTURE}.")
    tensors = {NAMES.get(name, canonical_name(name)): tensor for name, tensor in file.tensors.items()}
    if len(tensors) < len(file.tensors):
        raise InputError(f"{path} holds a tensor twice, under two names")
    q = tensors.get(ROTATED[0])
    if q is None or len(q.shape) != 2:
        raise InputError(f"{path} lacks the tensor 'blk.0.attn_q.weight'; it is no EAGLE head, or not whole")
    heads = fields.integer("attention.head_count", 1, MOST_HEADS)
    head_dim = fields.integer(
        "attention.key_length", 2, LARGEST_HEAD, default=max(2, min(q.shape[0] // heads, LARGEST_HEAD))
    )
    context = fields.integer("context_length", 1, LONGEST_CONTEXT, default=2048)
    rope = rope_from_gguf(fields, tensors, head_dim, context)
    config = {
        "num_attention_heads": heads,
        "head_dim": head_dim,
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon", 0, 1),
        "max_position_embeddings": context,
        "vocab_size": _vocabulary(file, fields),
        "eagle_aux_hidden_state_layer_ids": _taps(file.metadata, fields),
        **{key: fields.flag(key, False) for key in FLAGS},
    }
    entries = {}
    for name, tensor in tensors.items():
        if name == "d2t":
            entries[name] = _offsets(tensor, path)
        elif name != ROPE_FACTORS:
            data = _half_split(tensor, head_dim, path) if name in ROTATED else tensor.data
            entries[name] = Entry(tensor.kind, tensor.shape, data)
    return Folder(path, config, entries, "llama.cpp", rope)


def _vocabulary(file: GGUFFile, fields: Fields) -> int | None:
    """Of the target, whose tokenizer the file has; None if it does not say."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and tokens:
        return len(tokens)
    value = fields.get("vocab_size")
    return value if type(value) is int else None


def _taps(metadata: Mapping[str, object], fields: Fields) -> list[int] | None:
    """The hidden states it reads, if the file says."""
    for key in TAPS:
        found = metadata.get(fields.prefix + key)
        if found is None:
            continue
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu":
            raise fields.fault(key, "is no list of layers")
        return [int(layer) for layer in found]
    return None


def _offsets(tensor: Tensor, path: Path) -> Entry:
    """The authors' `d2t`: what to add to the draft's number of a token."""
    if tensor.kind != "I64" or len(tensor.shape) != 1:
        raise InputError(f"{path}: tensor 'd2t' is no vector of I64")
    tokens = np.frombuffer(tensor.data.tobytes(), "<i8")
    if (tokens < 0).any():
        raise InputError(f"{path}: 'd2t' leads outside a vocabulary")
    return Entry("I64", tensor.shape, (tokens - np.arange(tokens.size)).view(np.uint8))


def _half_split(tensor: Tensor, head_dim: int, path: Path) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The rows of a matrix in the order of half-split rotation."""
    rows = tensor.shape[0]
    if len(tensor.shape) != 2 or rows % head_dim or head_dim % 2:
        raise InputError(
            f"{path}: heads of {head_dim} values do not divide the {rows} rows of {tensor.name!r}"
        )
    order = np.arange(rows).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
    return np.ascontiguousarray(tensor.data.reshape(rows, -1)[order]).reshape(-1)
