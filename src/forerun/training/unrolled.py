"""Attention of a drafter that is unrolled on its own outputs (EAGLE-3's training-time test).

At step t (from 0), row i sees the target-fed rows up to i - t, and on its own path one row of each step
s = 1 .. t, at place i - t + s. Those places are just the ones of the causal square that the target-fed rows
leave free, so the scores are a causal square whose last t diagonals belong to the steps' own keys. Forward
and backward are written out because autograd would copy the square once a diagonal.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention of the last of several steps; keys[0] and values[0] are of the target-fed rows.

    All are [batch, heads, rows, head_dim]. The first t rows of step t have no path of their own; what they
    give means nothing.
    """
    if len(keys) == 1:
        return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
    out: Tensor = _Unrolled.apply(q * q.shape[-1] ** -0.5, *keys, *values)  # type: ignore[no-untyped-call]
    return out


class _Unrolled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, *both: Tensor) -> Tensor:
        steps, rows = len(both) // 2, q.shape[2]
        keys, values = both[:steps], both[steps:]
        weights = q @ keys[0].transpose(-1, -2)
        weights.masked_fill_(torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1), float("-inf"))
        for back, key in _own(keys):
            diagonal(weights, back).copy_((q[:, :, back:] * key[:, :, : rows - back]).sum(-1))
        weights = weights.softmax(-1)
        out = weights @ values[0]
        for back, value in _own(values):
            other = (value - values[0])[:, :, : rows - back]
            out[:, :, back:] += diagonal(weights, back)[..., None] * other
        ctx.save_for_backward(q, weights, out, *both)
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        (d_out,) = upstream
        q, weights, out, *both = ctx.saved_tensors
        steps, rows = len(both) // 2, q.shape[2]
        keys, values = both[:steps], both[steps:]
        d_scores = d_out @ values[0].transpose(-1, -2)
        d_values = [weights.transpose(-1, -2) @ d_out]
        for back, value in _own(values):
            later = d_out[:, :, back:]
            diagonal(d_scores, back).copy_((later * value[:, :, : rows - back]).sum(-1))
            d_value = F.pad(diagonal(weights, back)[..., None] * later, (0, 0, 0, back))
            d_values[0] -= d_value
            d_values.append(d_value)
        # of softmax: weights (d - sum of weights d), and that sum is d_out . out
        d_scores.sub_((d_out * out).sum(-1, keepdim=True)).mul_(weights)
        d_q = d_scores @ keys[0]
        d_keys = [d_scores.transpose(-1, -2) @ q]
        for back, key in _own(keys):
            d_score = diagonal(d_scores, back)[..., None]
            d_q[:, :, back:] += d_score * (key - keys[0])[:, :, : rows - back]
            d_key = F.pad(d_score * q[:, :, back:], (0, 0, 0, back))
            d_keys[0] -= d_key
            d_keys.append(d_key)
        return d_q, *d_keys, *d_values


def _own(tensors: tuple[Tensor, ...] | list[Tensor]) -> list[tuple[int, Tensor]]:
    """For each step's own keys or values, how many rows back they lie on the path."""
    last = len(tensors) - 1
    return [(last - step, tensors[step]) for step in range(1, last + 1)]


def diagonal(square: Tensor, back: int) -> Tensor:
    """The entries (i, i - back) of [batch, heads, rows, rows]: a view, [batch, heads, rows - back]."""
    return square.diagonal(-back, -2, -1)
