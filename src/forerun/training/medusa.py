"""Medusa (Cai et al., arXiv 2401.10774): heads on the target's final state, each for a token further on.

Row i has the state at token i, from which the target's own head says token i + 1; head h says token
i + 2 + h. A head is a few residual blocks x + SiLU(W x + b), then an output layer; here that is the target's
own, cut to the tokens that the heads can say, shared and not trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.models.checkpoint import Checkpoint
from forerun.models.heads.save import MedusaSettings, save_medusa
from forerun.training.batches import Batch, following, later
from forerun.training.eagle_head import Layout
from forerun.training.export import EIGHT_BITS, as_arrays
from forerun.training.losses import mean_head_rows, soft_cross_entropy
from forerun.training.weights import head_rows, places_of

HEAD_WEIGHT = 0.8
"""A head's share of the loss over that of the one before it (the paper's)."""


class Medusa(nn.Module):
    """The heads with the target's output layer.

    Args:
        checkpoint: the target.
        vocabulary, named: as of `EagleHead`.
        heads: how many.
        blocks: of each head.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        vocabulary: Tensor,
        heads: int = 4,
        blocks: int = 1,
        named: Tensor | None = None,
    ) -> None:
        super().__init__()
        config = checkpoint.config
        self.vocab_size, self.hidden = config.vocab_size, config.hidden_size
        self.heads = nn.ModuleList(
            nn.ModuleList(nn.Linear(self.hidden, self.hidden) for _ in range(blocks)) for _ in range(heads)
        )
        for parameter in self.parameters():
            nn.init.zeros_(parameter)  # a head begins as the target's own
        self.register_buffer("vocabulary", vocabulary)
        self.register_buffer("named", vocabulary if named is None else named, persistent=False)
        self.register_buffer("output", head_rows(checkpoint)[vocabulary].bfloat16(), persistent=False)
        self.register_buffer("places", places_of(vocabulary, config.vocab_size), persistent=False)

    def states(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each head what it gives its output layer where its guess is judged, [n, hidden], and which of
        the batch's m wanted rows these are, bool [m]: all but those too near the start to be foretold."""
        final = batch.features[:, :, -1].flatten(0, 1)
        rows = batch.wanted.flatten().nonzero()[:, 0]
        places = batch.positions[rows]
        for ahead, blocks in enumerate(self.heads):
            foretold = places >= ahead
            state = final[rows[foretold] - ahead].float()
            for block in blocks:
                state = state + F.silu(block(state))
            yield state, foretold

    @property
    def width(self) -> int:
        """Of a mean head row."""
        return self.hidden

    @property
    def guess_bytes(self) -> int:
        """As `EagleHead.guess_bytes`, of one head with its output layer."""
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
        """As `EagleHead.guesses`; beyond the heads no guess is right."""
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
            chains = chains & later(
                right, head
            )  # the chain that begins at row i is judged there at row i + head
            found.append(chains)
        found += [torch.zeros_like(chains)] * (depth - len(found))
        return torch.stack(found, -1)[batch.wanted], among

    def grown(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """The weights of an earlier training as these heads begin from them: blocks and heads that it lacks
        are zeros, which change nothing of what goes in; heads that are not here are left out."""
        found = {**self.state_dict(), **weights}
        surplus = re.compile(r"heads\.(\d+)\.")
        return {
            name: weight
            for name, weight in found.items()
            if (head := surplus.match(str(name))) is None or int(head[1]) < len(self.heads)
        }

    def save(self, folder: Path, target: str | None, layout: Layout) -> None:
        """Write the heads. "small" is vLLM's layout, which has a map of tokens, and the shared output layer
        once; "original", the authors', has it for each head, of all tokens: they must be `named`.
        `target`: the model they are for, as others find it."""
        blocks, small = len(self.heads[0]), layout == "small"
        tensors, output = {}, self.output[self.places[self.named]]
        for h, head in enumerate(self.heads):
            for b, block in enumerate(head):
                tensors[f"{h}.{b}.linear.weight"] = block.weight
                tensors[f"{h}.{b}.linear.bias"] = block.bias
            if h == 0 or not small:
                tensors[f"{h}.{blocks}.weight"] = output
        settings = MedusaSettings(target, self.hidden, self.vocab_size, len(self.heads), blocks)
        tokens = self.named.int().cpu().numpy() if small else None
        save_medusa(folder, settings, as_arrays(tensors.items()), tokens, "vllm" if small else "original")
