"""Heads that read the target's final state, each for a token further on, and nothing of one another.

Row i has the state at token i, from which the target's own head says token i + 1; head h says token
i + 2 + h. What a head makes of the state goes through the target's own output layer, cut to the tokens that
the heads can say, shared and not trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.models.checkpoint import Checkpoint
from forerun.training.batches import Batch, following, later
from forerun.training.export import EIGHT_BITS
from forerun.training.losses import mean_head_rows, soft_cross_entropy
from forerun.training.weights import head_rows, places_of

HEAD_WEIGHT = 0.8
"""A head's share of the loss over that of the one before it (Medusa's paper's)."""


class HeadsAhead(nn.Module):
    """Such heads with the target's output layer.

    Args:
        checkpoint: the target.
        vocabulary, named: as of `EagleHead`.
        heads: modules.
    """

    def __init__(
        self, checkpoint: Checkpoint, vocabulary: Tensor, heads: nn.ModuleList, named: Tensor | None = None
    ) -> None:
        super().__init__()
        config = checkpoint.config
        self.vocab_size, self.hidden = config.vocab_size, config.hidden_size
        self.heads = heads
        self.register_buffer("vocabulary", vocabulary)
        self.register_buffer("named", vocabulary if named is None else named, persistent=False)
        self.register_buffer("output", head_rows(checkpoint)[vocabulary].bfloat16(), persistent=False)
        self.register_buffer("places", places_of(vocabulary, config.vocab_size), persistent=False)

    def said(self, ahead: int, batch: Batch, rows: Tensor) -> Tensor:
        """What the head of this number gives the output layer, float32 [n, hidden], at rows int64 [n] of the
        batch, whose conversations lie one after the other."""
        raise NotImplementedError

    def states(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each head what it gives its output layer where its guess is judged, [n, hidden], and which of
        the batch's m wanted rows these are, bool [m]: all but those too near the start to be foretold."""
        rows = batch.wanted.flatten().nonzero()[:, 0]
        places = batch.positions[rows]
        for ahead in range(len(self.heads)):
            foretold = places >= ahead
            yield self.said(ahead, batch, rows[foretold] - ahead), foretold

    @property
    def width(self) -> int:
        """Of a mean head row."""
        return self.hidden

    @property
    def guess_bytes(self) -> int:
        """As `EagleHead.guess_bytes`, of one head (the mean of them) with its output layer."""
        head = sum(p.numel() for p in self.parameters()) // len(self.heads)
        return int(EIGHT_BITS * (head + len(self.named) * self.hidden))

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """As `EagleHead.targets`."""
        return mean_head_rows(following(batch)[batch.wanted], self.output)

    def loss(self, batch: Batch, means: Tensor) -> tuple[Tensor, float]:
        """The loss to minimise, and the first head's cross-entropy a token."""
        total, first = torch.zeros((), device=means.device), 0.0
        for head, (state, foretold) in enumerate(self.states(batch)):
            entropy = soft_cross_entropy(state, self.output, means[foretold]) / max(len(state), 1)
            total = total + HEAD_WEIGHT**head * entropy
            if not head:
                first = float(entropy.detach())
        return total / sum(HEAD_WEIGHT**head for head in range(len(self.heads))), first

    @torch.no_grad()
    def guesses(self, batch: Batch, depth: int, best: int = 4) -> tuple[Tensor, Tensor]:
        """As `EagleHead.guesses`, no deeper than there are heads. A head that reads tokens reads those of
        the text: as long as a chain is right, they are the chain's."""
        actual = self.places[F.pad(batch.tokens[:, 2:], (0, 1))][batch.wanted]
        chains = torch.ones_like(batch.wanted)
        found, among = [], torch.zeros_like(actual, dtype=torch.bool)
        for head, (state, foretold) in enumerate(islice(self.states(batch), depth)):
            top = (state.bfloat16() @ self.output.T).topk(best, -1).indices
            if not head:
                among = (top == actual[:, None]).any(-1)
            there, right = torch.zeros_like(among), torch.zeros_like(batch.wanted)
            there[foretold] = top[:, 0] == actual[foretold]
            right[batch.wanted] = there
            # the chain that begins at row i is judged there at row i + head
            chains = chains & later(right, head)
            found.append(chains)
        return torch.stack(found, -1)[batch.wanted], among

    def grown(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """The weights of an earlier training as these heads begin from them: blocks and heads that it lacks
        are as they are now; heads that are not here are left out."""
        found = {**self.state_dict(), **weights}
        surplus = re.compile(r"heads\.(\d+)\.")
        return {
            name: weight
            for name, weight in found.items()
            if (head := surplus.match(str(name))) is None or int(head[1]) < len(self.heads)
        }
