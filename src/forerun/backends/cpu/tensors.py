"""What loaders of models and of heads ask of tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forerun.errors import InputError
from forerun.weights.bfloat16 import from_bfloat16
from forerun.weights.tensor import Tensor

_LAYER = re.compile(r"layers\.(\d+)\.(?:self_attn|mlp)?\.?(\w+)\.(weight|bias)")


def place(name: str) -> tuple[int, str]:
    """Layer (-1: none) and short name of a tensor: 'layers.3.mlp.up_proj.weight' -> (3, 'up_proj')."""
    match = _LAYER.fullmatch(name)
    return (int(match[1]), match[2]) if match else (-1, name.split(".")[0])


def floats(tensor: Tensor, source: Path) -> npt.NDArray[np.float32]:
    """A norm or a bias as float32. InputError, which names `source`, if one of its numbers is not finite."""
    floats: npt.NDArray[np.float32]
    if tensor.kind == "F32":
        floats = tensor.data.view(np.float32).copy()
    elif tensor.kind == "F16":
        floats = tensor.data.view(np.float16).astype(np.float32)
    elif tensor.kind == "BF16":
        floats = from_bfloat16(tensor.data.view(np.uint16))
    else:
        kinds = "vectors must be F32, F16 or BF16"
        raise InputError(f"{source}: tensor {tensor.name!r} is a {tensor.kind} vector; {kinds}")
    if not np.isfinite(floats).all():
        raise _not_finite(tensor, source)
    return floats


@contextmanager
def finite(tensor: Tensor, source: Path) -> Iterator[None]:
    """Around the core's packing of a matrix, which looks at all its numbers: as `floats`."""
    try:
        yield
    except OverflowError:
        raise _not_finite(tensor, source) from None


def _not_finite(tensor: Tensor, source: Path) -> InputError:
    return InputError(
        f"{source}: tensor {tensor.name!r} holds numbers that are not finite (NaN or infinity); "
        "the file is damaged, fetch or make it again"
    )


def execution(dtype: str, short: str) -> str:
    """How a matrix of this name is executed: with q4 the embedding and the head are kept in 8 bits."""
    return "q8" if dtype == "q4" and short in ("embed_tokens", "lm_head") else dtype
