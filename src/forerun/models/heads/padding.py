"""Vocabularies that were padded to different sizes.

Models round the size of their vocabulary up to one that computes well, and a head's may be rounded otherwise
than its target's. The ids beyond the smaller of the two stand for no token: a head that has more of them must
not guess them, and one that has fewer must not read beyond its embedding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forerun.models.config import ModelConfig
from forerun.models.heads.head import Head
from forerun.weights.tensor import Tensor


def to_vocabulary(head: Head, target: ModelConfig) -> Head:
    """A head that fits the target (`Head.check_fits`), with padding as the target's: rows of its output
    layers beyond the target's vocabulary are left out, and its embedding has a row of zeros for each token
    that only the target has."""
    size = target.vocab_size
    tensors = dict(head.tensors)
    for name, tensor in head.tensors.items():
        guesses = name == "lm_head.weight" or name.endswith((".out.weight", ".out.bias"))
        too_many = guesses and head.tokens is None and tensor.shape[0] > size
        if too_many or (name == "embed_tokens.weight" and tensor.shape[0] < size):
            tensors[name] = _with_rows(tensor, size)
    cut = head.tokens is None and head.outputs is not None and head.outputs > size
    return replace(head, tensors=tensors, outputs=size if cut else head.outputs)


def _with_rows(tensor: Tensor, rows: int) -> Tensor:
    """The first so many rows; rows of zeros after the last one (zero bytes are zeros in every kind)."""
    width = tensor.data.size // tensor.shape[0]
    data = tensor.data[: rows * width]
    if data.size < rows * width:
        data = np.concatenate([data, np.zeros(rows * width - data.size, np.uint8)])
    return replace(tensor, shape=(rows, *tensor.shape[1:]), data=data)
