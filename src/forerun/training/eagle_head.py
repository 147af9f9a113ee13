"""What EAGLE's generations share: a layer that is unrolled on its own outputs, between the target's embedding
and the target's output head, neither of which is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.models.checkpoint import Checkpoint
from forerun.models.config import ModelConfig
from forerun.models.heads.save import EagleSettings
from forerun.models.hf_config import CLASS_OF
from forerun.models.rope import plain
from forerun.training.batches import Batch, following, later
from forerun.training.data import feature_taps
from forerun.training.export import EIGHT_BITS, FOUR_BITS, Floats, as_arrays, plainly, rope_theta
from forerun.training.losses import mean_head_rows
from forerun.training.weights import head_rows, places_of, values

Layout = Literal["small", "original", "speculators"]
"""How a head is written. "small": the original layout without what is the target's own, its embedding and
output head, which this engine takes from the target; "original" and "speculators" have what others need."""


class EagleHead(nn.Module):
    """A head with what it borrows from its target.

    Args:
        checkpoint: the target.
        vocabulary: int64 [n], ascending: the tokens between which the loss and the judging tell.
        named: int64, ascending: those that the file names; all of them by default.
    """

    def __init__(self, checkpoint: Checkpoint, vocabulary: Tensor, named: Tensor | None = None) -> None:
        super().__init__()
        target = checkpoint.config
        # whatever the target's rotary embeddings are scaled by, the head's are as its configuration says
        frequencies = plain(rope_theta(target), target.head_dim)
        self.config: ModelConfig = replace(
            target, inv_freq=frequencies, rope_scale=1.0, qkv_bias=False, qk_norm=False
        )
        self.register_buffer("vocabulary", vocabulary)
        self.register_buffer("named", vocabulary if named is None else named, persistent=False)
        embedding = values(checkpoint.tensors["embed_tokens.weight"])
        self.register_buffer("embedding", embedding.bfloat16(), persistent=False)
        self.register_buffer("head", head_rows(checkpoint)[vocabulary].bfloat16(), persistent=False)
        self.register_buffer("places", places_of(vocabulary, target.vocab_size), persistent=False)

    def passes(self, batch: Batch, steps: int) -> Iterator[Tensor]:
        """The layer's output of each step at the rows that are wanted: [n, hidden].

        Row i of step k is fed by row i - k of the target's states; a conversation's first k rows mean
        nothing.
        """
        raise NotImplementedError

    def said(self, state: Tensor) -> Tensor:
        """What the output head reads of the layer's output, any shape."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Of a mean head row."""
        return self.config.hidden_size

    @property
    def guess_bytes(self) -> int:
        """Bytes of weights that a guess reads where it serves: the layer in 4 bits, the output layer in 8."""
        output = len(self.named) * self.width
        return int(FOUR_BITS * sum(p.numel() for p in self.parameters()) + EIGHT_BITS * output)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The mean head rows of the wanted rows, bfloat16 [n, hidden]."""
        return mean_head_rows(following(batch)[batch.wanted], self.head)

    @torch.no_grad()
    def guesses(self, batch: Batch, depth: int, best: int = 4) -> tuple[Tensor, Tensor]:
        """Which guesses are right: chains bool [n, depth] (guess d of the chain that starts at a judged row,
        all before it being right), and bool [n]: the token is among the first guess's `best` most likely."""
        actual = self.places[F.pad(batch.tokens[:, 2:], (0, 1))][batch.wanted]
        chains = torch.ones_like(batch.wanted)
        found, among = [], torch.zeros_like(actual, dtype=torch.bool)
        for step, state in enumerate(self.passes(batch, depth)):
            top = (self.said(state).bfloat16() @ self.head.T).topk(best, -1).indices
            right = torch.zeros_like(batch.wanted)
            right[batch.wanted] = top[:, 0] == actual
            if not step:
                among = (top == actual[:, None]).any(-1)
            # the chain that begins at row i is at row i + step now
            chains = chains & later(right, step)
            found.append(chains)
        return torch.stack(found, -1)[batch.wanted], among

    def settings(self, target: str | None) -> EagleSettings:
        """What its configuration says; `target` as there."""
        config = self.config
        return EagleSettings(
            target=target,
            hidden_size=config.hidden_size,
            target_hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            layers=1,
            vocab_size=config.vocab_size,
            taps=feature_taps(config.layers)[:3],
            norm_eps=plainly(config.norm_eps),
            rope_theta=rope_theta(config),
            context=config.context,
            target_class=CLASS_OF[config.architecture],
        )

    def arrays(self) -> dict[str, Floats]:
        """What is trained, by name."""
        return as_arrays(self.named_parameters())

    def tokens(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        """That its file names, int32, ascending."""
        found: np.ndarray[tuple[int, ...], np.dtype[np.int32]] = self.named.int().cpu().numpy()
        return found
