"""Weights rounded to 4 bits while they are trained: the forward sees what the file will say.

The rounding is ggml's, groups of 32 inputs with a scale (Q4_0) or a scale and a minimum (Q4_1). Its gradient
is taken for that of the weights themselves: the straight-through estimator (Bengio et al., arXiv 1308.3432).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

GROUP = 32
Kind = Literal["Q4_0", "Q4_1"]


def fits(matrix: Tensor) -> bool:
    """Whether its rows are whole groups; other matrices are not rounded."""
    return int(matrix.shape[-1]) % GROUP == 0


@torch.no_grad()
def round_to(matrix: Tensor, kind: Kind) -> Tensor:
    """float32 [outputs, inputs] as `gguf.quants` stores it and reads it again."""
    groups = matrix.unflatten(-1, (-1, GROUP))
    if kind == "Q4_1":
        low, high = torch.aminmax(groups, dim=-1, keepdim=True)
        scale = (high - low) / 15
        steps = (groups - low).mul_(_inverse(scale)).add_(0.5).trunc_().clamp_(0, 15)
        rounded = steps.mul_(scale.half().float()).add_(low.half().float())
    else:
        largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
        scale = largest / -8
        steps = (groups * _inverse(scale)).add_(8.5).trunc_().clamp_(0, 15)
        rounded = steps.sub_(8).mul_(scale.half().float())
    return rounded.flatten(-2)


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, scale, 1 / scale)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        made = round_to(matrix, "Q4_1")
        return made.bfloat16() if torch.is_autocast_enabled(matrix.device.type) else made

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        return upstream[0].float()


def rounded(matrix: Tensor) -> Tensor:
    """The matrix as Q4_1 has it, in bfloat16 where products are; gradients pass as if it were itself."""
    out: Tensor = _Rounded.apply(matrix)  # type: ignore[no-untyped-call]
    return out
