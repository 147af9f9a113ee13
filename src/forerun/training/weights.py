"""A target's weights as torch tensors, from whatever file they are in."""

from __future__ import annotations

import numpy as np
import torch

from forerun.models.checkpoint import Checkpoint
from forerun.weights.tensor import Tensor


def head_rows(checkpoint: Checkpoint) -> torch.Tensor:
    """The output head, float32 [vocabulary, hidden]."""
    tensors = checkpoint.tensors
    return values(tensors["embed_tokens.weight" if checkpoint.config.tied else "lm_head.weight"])


def layer_weights(checkpoint: Checkpoint, layer: int) -> dict[str, torch.Tensor]:
    """float32 weights of one layer by names within it, queries and keys in half-split rotation's order."""
    config, start = checkpoint.config, f"layers.{layer}."
    found = {
        name.removeprefix(start): values(tensor)
        for name, tensor in checkpoint.tensors.items()
        if name.startswith(start)
    }
    if config.rope_interleaved:
        for name in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
            rows = found[name].view(-1, config.head_dim // 2, 2, config.hidden_size)
            found[name] = rows.transpose(1, 2).reshape(-1, config.hidden_size)
    return found


def places_of(vocabulary: torch.Tensor, size: int) -> torch.Tensor:
    """int64 [size]: where each of the target's tokens is in a draft vocabulary, int64 [n]; -1: nowhere."""
    places = torch.full((size,), -1)
    places[vocabulary] = torch.arange(len(vocabulary))
    return places


def values(tensor: Tensor) -> torch.Tensor:
    """Dequantised, float32."""
    data = np.array(tensor.data)  # a copy: the file is mapped read-only
    if tensor.kind == "BF16":
        made = torch.from_numpy(data.view(np.int16)).view(torch.bfloat16).float()
    elif tensor.kind in ("F32", "F16"):
        made = torch.from_numpy(data.view({"F32": np.float32, "F16": np.float16}[tensor.kind])).float()
    else:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        made = torch.from_numpy(dequantize(data, GGMLQuantizationType[tensor.kind]))
    return made.reshape(tensor.shape)
