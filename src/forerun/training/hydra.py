"""Hydra (Ankner et al., arXiv 2402.05109): Medusa's heads, which also read the tokens of their path.

Head k reads c = [h_i; e(x_{i+1}); ...; e(x_{i+1+k})], where h_i is the target's final state at token i and e
its embedding, which is not trained, and foretells x_{i+2+k} by what the target's output layer makes of

    y = R c + r + SiLU(W c + w)    first
    y = y + SiLU(W_b y + w_b)      in each further block
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.models.checkpoint import Checkpoint
from forerun.models.heads.save import HydraSettings, save_hydra
from forerun.training.batches import Batch
from forerun.training.eagle_head import Layout
from forerun.training.export import as_arrays
from forerun.training.heads_ahead import HeadsAhead
from forerun.training.least_squares import fitted
from forerun.training.weights import values

BEGINNING_ROWS = 60_000
"""Judged rows of text that `Hydra.begin` learns from, at most about."""


class Head(nn.Module):
    """One head.

    Args:
        hidden: width of a state.
        tokens: that it reads.
        blocks: the first one included.
    """

    def __init__(self, hidden: int, tokens: int, blocks: int) -> None:
        super().__init__()
        inputs = (1 + tokens) * hidden
        self.residual, self.linear = nn.Linear(inputs, hidden), nn.Linear(inputs, hidden)
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(blocks - 1))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        with torch.no_grad():
            self.residual.weight[:, :hidden] = torch.eye(hidden)  # as the target's own

    def forward(self, read: Tensor) -> Tensor:
        state: Tensor = self.residual(read).float() + F.silu(self.linear(read).float())
        for block in self.blocks:
            state = state + F.silu(block(state))
        return state


class Hydra(HeadsAhead):
    """The heads in training.

    Embeddings are much smaller than states, so a step of what reads them would do much less. They are read
    `scale` times as large, a power of two, by which the weights are multiplied where they are written: to the
    bit the same.

    Args:
        checkpoint, vocabulary, named: as of `HeadsAhead`.
        heads: how many.
        blocks: of each head.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        vocabulary: Tensor,
        heads: int = 3,
        blocks: int = 1,
        named: Tensor | None = None,
    ) -> None:
        hidden = checkpoint.config.hidden_size
        made = nn.ModuleList(Head(hidden, 1 + ahead, blocks) for ahead in range(heads))
        super().__init__(checkpoint, vocabulary, made, named)
        embedding = values(checkpoint.tensors["embed_tokens.weight"])
        size = float(embedding.square().mean().sqrt())
        self.scale = 2.0 ** round(math.log2(1 / size)) if 0 < size < math.inf else 1.0
        self.register_buffer("embedding", (self.scale * embedding).bfloat16(), persistent=False)

    def said(self, ahead: int, batch: Batch, rows: Tensor) -> Tensor:
        said: Tensor = self.heads[ahead](self._read(ahead, batch, rows))
        return said

    def _read(self, ahead: int, batch: Batch, rows: Tensor) -> Tensor:
        """What the head of this number reads, float32 [n, (ahead + 2) hidden]; `rows` as for `said`."""
        final, following = batch.features[:, :, -1].flatten(0, 1), batch.tokens[:, 1:].flatten()
        path = [self.embedding[following[rows + step]] for step in range(ahead + 1)]
        return torch.cat([final[rows], *path], -1).float()

    def begin(self, batches: Iterable[Batch]) -> None:
        """Let R and r foretell the target's states best in squares, where training would come by and by.

        Raises:
            InputError: states are too large to compute with.
        """
        hidden = self.hidden
        found = fitted(self._examples(batches), [(2 + ahead) * hidden for ahead in range(len(self.heads))])
        if found is None:
            return
        for head, (weight, bias) in zip(self.heads, found, strict=True):
            head.residual.weight.data.copy_(weight)
            head.residual.bias.data.copy_(bias)

    def _examples(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """What the last head reads, which begins with what the others do, and the state for each."""
        last = len(self.heads) - 1
        for batch in batches:
            final = batch.features[:, :, -1].flatten(0, 1)
            rows = (batch.wanted.flatten() & (batch.positions >= last)).nonzero()[:, 0] - last
            yield self._read(last, batch, rows), [final[rows + 1 + ahead] for ahead in range(last + 1)]

    def save(self, folder: Path, target: str | None, layout: Layout) -> None:
        """Write the heads. "small" has no output layer, which is the target's, and says which tokens they
        guess; "original", the authors', has it for each head, of all tokens: they must be `named`. `target`:
        the model they are for, as others find it."""
        small, tensors = layout == "small", {}
        for k, head in enumerate(self.heads):
            scales = torch.full((head.linear.in_features,), self.scale, device=self.output.device)
            scales[: self.hidden] = 1.0
            for name, layer in (("res_connection", head.residual), ("linear", head.linear)):
                tensors[f"hydra_mlp.{k}.0.{name}.weight"] = layer.weight * scales
                tensors[f"hydra_mlp.{k}.0.{name}.bias"] = layer.bias
            for b, block in enumerate(head.blocks, 1):
                tensors[f"hydra_mlp.{k}.{b}.linear.weight"] = block.weight
                tensors[f"hydra_mlp.{k}.{b}.linear.bias"] = block.bias
            if not small:
                tensors[f"hydra_lm_head.{k}.weight"] = self.output[self.places[self.named]]
        blocks = 1 + len(self.heads[0].blocks)
        settings = HydraSettings(target, self.hidden, self.vocab_size, len(self.heads), blocks)
        tokens = self.named.int().cpu().numpy() if small else None
        save_hydra(folder, settings, as_arrays(tensors.items()), tokens, "small" if small else "original")
