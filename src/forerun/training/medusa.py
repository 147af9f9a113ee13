"""Medusa (Cai et al., arXiv 2401.10774): a head is a few residual blocks x + SiLU(W x + b) on the target's
final state, then an output layer."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from forerun.models.checkpoint import Checkpoint
from forerun.models.heads.save import MedusaSettings, save_medusa
from forerun.training.batches import Batch
from forerun.training.eagle_head import Layout
from forerun.training.export import as_arrays
from forerun.training.heads_ahead import HeadsAhead


class Medusa(HeadsAhead):
    """The heads in training.

    Args:
        checkpoint, vocabulary, named: as of `HeadsAhead`.
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
        hidden = checkpoint.config.hidden_size
        made = nn.ModuleList(
            nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(blocks)) for _ in range(heads)
        )
        for parameter in made.parameters():
            nn.init.zeros_(parameter)  # a head begins as the target's own
        super().__init__(checkpoint, vocabulary, made, named)

    def said(self, ahead: int, batch: Batch, rows: Tensor) -> Tensor:
        state = batch.features[:, :, -1].flatten(0, 1)[rows].float()
        for block in self.heads[ahead]:
            state = state + F.silu(block(state))
        return state

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
