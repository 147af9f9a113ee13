"""Attention of a drafter that is unrolled on its own outputs (EAGLE-3's training-time test).

At step t (from 0), row i sees the target-fed rows up to i - t, and on its own path one row of each step
s = 1 .. t, at place i - t + s. Those places are just the ones of the causal square that the target-fed rows
leave free, so the scores are a causal square whose last t diagonals belong to the steps' own keys. Forward
and backward are written out because autograd would copy the square once a diagonal; on a CPU that is also
faster than torch's own attention for a single step. One conversation at a time: squares stay in the cache.
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
    if len(keys) == 1 and q.is_cuda:
        return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
    all_of_them = (q * q.shape[-1] ** -0.5, *keys, *values)
    conversations = [all_of_them] if q.is_cuda else zip(*(x.split(1) for x in all_of_them), strict=True)
    return torch.cat([_Unrolled.apply(*one) for one in conversations])  # type: ignore[no-untyped-call]


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
        own = []
        for back, _ in _own(keys):
            own.append(diagonal(weights, back).clone())
            diagonal(weights, back).zero_()
        out = weights @ values[0]
        for weight, (back, value) in zip(own, _own(values), strict=True):
            out[:, :, back:] += weight[..., None] * value[:, :, : rows - back]
        ctx.save_for_backward(q, weights, out, *own, *both)
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        (d_out,) = upstream
        q, weights, out, *others = ctx.saved_tensors
        steps, rows = (len(others) + 1) // 3, q.shape[2]
        own, keys, values = others[: steps - 1], others[steps - 1 : 2 * steps - 1], others[2 * steps - 1 :]
        # of softmax: weights (d - sum of weights d), and that sum is d_out . out
        mean = (d_out * out).sum(-1)
        d_scores = (d_out @ values[0].transpose(-1, -2)).sub_(mean[..., None]).mul_(weights)
        d_q = d_scores @ keys[0]
        d_keys = [d_scores.transpose(-1, -2) @ q]
        d_values = [weights.transpose(-1, -2) @ d_out]
        for weight, (back, key), (_, value) in zip(own, _own(keys), _own(values), strict=True):
            later, earlier = d_out[:, :, back:], slice(0, rows - back)
            d_score = weight * ((later * value[:, :, earlier]).sum(-1) - mean[:, :, back:])
            d_q[:, :, back:] += d_score[..., None] * key[:, :, earlier]
            d_keys.append(F.pad(d_score[..., None] * q[:, :, back:], (0, 0, 0, back)))
            d_values.append(F.pad(weight[..., None] * later, (0, 0, 0, back)))
        return d_q, *d_keys, *d_values


def _own(tensors: tuple[Tensor, ...] | list[Tensor]) -> list[tuple[int, Tensor]]:
    """For each step's own keys or values, how many rows back they lie on the path."""
    last = len(tensors) - 1
    return [(last - step, tensors[step]) for step in range(1, last + 1)]


def diagonal(square: Tensor, back: int) -> Tensor:
    """The entries (i, i - back) of [batch, heads, rows, rows]: a view, [batch, heads, rows - back]."""
    return square.diagonal(-back, -2, -1)
