"""Cross-entropy to the target's whole distribution, through a head that is not trained.

With logits z = W h and the target's distribution p, the loss is logsumexp(z) - p . z, and

    p . z = h . (W' p)        gradient for h = W' softmax(z) - W' p

so all that is needed of p is its mean head row W' p, made once and used by every step of unrolling. Nothing
of the vocabulary's size is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 512
"""Rows at once: bounds memory to CHUNK times the vocabulary."""


def mean_head_rows(states: Tensor, head: Tensor, own: Tensor | None = None) -> Tensor:
    """The head's rows averaged by the target's distribution over the head's tokens: [n, hidden], from its
    final states [n, hidden] and the head [vocabulary, hidden]. `own`: rows of the student's head instead,
    where it has another [vocabulary, width]."""
    own = head if own is None else own
    chunks = [(part.to(head.dtype) @ head.T).softmax(-1) @ own for part in states.split(CHUNK)]
    return torch.cat(chunks) if chunks else states.new_zeros(0, own.shape[1])


class _FrozenHead(torch.autograd.Function):
    """The gradient is made in the forward pass, chunk by chunk, so that no logits are kept."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, means: Tensor) -> Tensor:
        total = torch.zeros((), device=states.device)
        gradient = torch.empty_like(states)
        for start in range(0, len(states), CHUNK):
            rows = slice(start, start + CHUNK)
            logits = states[rows].to(head.dtype) @ head.T
            mean = means[rows].float()
            highest = logits.amax(-1).float()
            probabilities = logits.softmax(-1)
            # the most probable token's probability tells the sum: logsumexp(z) = max z - log max p
            total += (highest - probabilities.amax(-1).float().log()).sum() - (states[rows] * mean).sum()
            gradient[rows] = (probabilities @ head).to(gradient.dtype) - mean
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0], None, None


def soft_cross_entropy(states: Tensor, head: Tensor, means: Tensor) -> Tensor:
    """Cross-entropy of softmax(head states) to the distributions behind `means` (of `mean_head_rows`), summed
    over rows. Gradients reach `states` [n, hidden] alone. Computed in the head's precision."""
    loss: Tensor = _FrozenHead.apply(states, head, means)  # type: ignore[no-untyped-call]
    return loss
