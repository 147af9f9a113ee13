"""Attention of a drafter that is unrolled on its own outputs (EAGLE-3's training-time test).

At step t (from 0), row i sees the target-fed rows up to i - t, and on its own path one row of each step
s = 1 .. t, at place i - t + s. Those places are just the ones of the causal square that the target-fed rows
leave free, so the scores are a causal square whose last t diagonals belong to the steps' own keys. Forward
and backward are written out because autograd would copy the square once a diagonal; on a CPU that is also
faster than torch's own attention for a single step. One conversation at a time: squares stay in the cache,
and only the rows of its window ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forerun.training.windows import Span, Windows


def attend(q: Tensor, keys: list[Tensor], values: list[Tensor], windows: Windows) -> Tensor:
    """Attention of the last of several steps; keys[0] and values[0] are of the target-fed rows.

    Args:
        q: [rows of the windows, heads, head_dim].
        keys: [all rows, key heads, head_dim], then of each further step [rows of the windows, ...].
        values: as keys.

    Returns:
        [rows of the windows, heads * head_dim]. The first t rows of a window have no path of their own at
        step t; what they give means nothing.
    """
    kind = values[0].dtype
    all_of_them = [x.to(kind) for x in (q, *keys, *values)]
    out: Tensor = _Unrolled.apply(windows, *all_of_them)  # type: ignore[no-untyped-call]
    return out.flatten(1)


class _Unrolled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, windows: Windows, q: Tensor, *both: Tensor) -> Tensor:
        steps = len(both) // 2
        keys, values = both[:steps], both[steps:]
        key_heads, scale = keys[0].shape[1], q.shape[-1] ** -0.5
        out, kept = torch.empty_like(q), []
        for span in windows.spans:
            asked = by_key_head(q[span.own], key_heads) * scale
            scores = asked.flatten(1, 2) @ keys[0][span.seen].permute(1, 2, 0)
            scores = scores.unflatten(1, asked.shape[1:3])
            rows = asked.shape[2]
            later = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
            scores[..., span.start :].masked_fill_(later, float("-inf"))
            for back, key in _own(keys, span):
                diagonal(scores, span, back).copy_((asked[:, :, back:] * key).sum(-1))
            weights = scores.softmax(-1)
            kept.append(weights)
            for back, _ in _own(keys, span):
                kept.append(diagonal(weights, span, back).clone())
                diagonal(weights, span, back).zero_()
            found = weights.flatten(1, 2) @ values[0][span.seen].transpose(0, 1)
            found = found.unflatten(1, asked.shape[1:3])
            for weight, (back, value) in zip(kept[len(kept) - steps + 1 :], _own(values, span), strict=True):
                found[:, :, back:] += weight[..., None] * value
            out[span.own] = by_row(found)
        ctx.windows, ctx.steps = windows, steps
        ctx.save_for_backward(q, out, *both, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (d_out,) = upstream
        steps = ctx.steps
        q, out, *others = ctx.saved_tensors
        keys, values, kept = others[:steps], others[steps : 2 * steps], others[2 * steps :]
        key_heads, scale = keys[0].shape[1], q.shape[-1] ** -0.5
        d_q = torch.empty_like(q)
        d_keys, d_values = [torch.zeros_like(x) for x in keys], [torch.zeros_like(x) for x in values]
        for number, span in enumerate(ctx.windows.spans):
            weights, *own = kept[number * steps : (number + 1) * steps]
            asked = by_key_head(q[span.own], key_heads) * scale
            d = by_key_head(d_out[span.own], key_heads)
            # of softmax: weights (d - sum of weights d), and that sum is d_out . out
            mean = (d * by_key_head(out[span.own], key_heads)).sum(-1)
            d_scores = (d.flatten(1, 2) @ values[0][span.seen].permute(1, 2, 0)).view_as(weights)
            d_scores.sub_(mean[..., None]).mul_(weights)
            d_asked = (d_scores.flatten(1, 2) @ keys[0][span.seen].transpose(0, 1)).view_as(asked)
            d_keys[0][span.seen] = (d_scores.flatten(1, 2).mT @ asked.flatten(1, 2)).transpose(0, 1)
            d_values[0][span.seen] = (weights.flatten(1, 2).mT @ d.flatten(1, 2)).transpose(0, 1)
            for step, (weight, (back, key), (_, value)) in enumerate(
                zip(own, _own(keys, span), _own(values, span), strict=True), 1
            ):
                after = d[:, :, back:]
                d_score = (weight * ((after * value).sum(-1) - mean[:, :, back:]))[..., None]
                d_asked[:, :, back:] += d_score * key
                path = slice(span.at, span.at + after.shape[2])
                d_keys[step][path] = (d_score * asked[:, :, back:]).sum(1).transpose(0, 1)
                d_values[step][path] = (weight[..., None] * after).sum(1).transpose(0, 1)
            d_q[span.own] = by_row(d_asked) * scale
        return None, d_q, *d_keys, *d_values


def by_key_head(x: Tensor, key_heads: int) -> Tensor:
    """[rows, heads, head_dim] to [key heads, queries of each, rows, head_dim]."""
    return x.unflatten(1, (key_heads, -1)).permute(1, 2, 0, 3).contiguous()


def by_row(x: Tensor) -> Tensor:
    """[key heads, queries of each, rows, head_dim] to [rows, heads, head_dim]."""
    return x.permute(2, 0, 1, 3).flatten(1, 2)


def _own(tensors: Sequence[Tensor], span: Span) -> list[tuple[int, Tensor]]:
    """For each step's own keys or values: how many rows back they lie on the path of a row, and those
    that do so, [key heads, 1, rows, head_dim]."""
    last, rows = len(tensors) - 1, span.stop - span.start
    backs = [(last - step, tensors[step][span.own]) for step in range(1, last + 1)]
    return [(back, x[: max(rows - back, 0)].transpose(0, 1)[:, None]) for back, x in backs]


def diagonal(scores: Tensor, span: Span, back: int) -> Tensor:
    """Of a window's scores [.., rows, rows seen] those of each row and the place `back` rows before it: a
    view, [..., rows - back]."""
    return scores[..., back:, span.start :].diagonal(0, -2, -1)
