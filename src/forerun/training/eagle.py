"""EAGLE-1 (Li et al., arXiv 2401.15077): a decoder layer that foretells the target's next final hidden state.

Row i joins token i + 1 with the target's final state at i (after the norm), and gives the state at i + 1,
which the target's own output head turns into what token i + 2 is. Further rows take the layer's own output in
place of states that the target has not computed yet; noise on the states teaches it to bear that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.models.checkpoint import Checkpoint
from forerun.models.config import ModelConfig
from forerun.models.heads.save import save_eagle
from forerun.training.batches import Batch, following
from forerun.training.blocks import MLP, Attention, DecoderLayer, RMSNorm, Rotary, of_rows
from forerun.training.eagle_head import EagleHead, Layout
from forerun.training.losses import soft_cross_entropy
from forerun.training.unrolled import attend
from forerun.training.weights import layer_weights
from forerun.training.windows import one_row_on, windows_of

NOISE = 0.1
"""Uniform noise on the states, at most this in either direction (the paper's)."""

ENTROPY_WEIGHT = 0.1
"""Of the cross-entropy, beside the distance between states (the paper's)."""


class Layer(DecoderLayer):
    """A Llama decoder layer without a norm before its attention: EAGLE-1's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config, config.hidden_size)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)


class Eagle(EagleHead):
    """The head in training.

    Args:
        checkpoint: the target.
        vocabulary, named: as of `EagleHead`.
    """

    def __init__(self, checkpoint: Checkpoint, vocabulary: Tensor, named: Tensor | None = None) -> None:
        super().__init__(checkpoint, vocabulary, named)
        hidden = self.config.hidden_size
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([Layer(self.config)])
        self._rotary = Rotary(self.config)
        self._begin_from(checkpoint)

    def _begin_from(self, checkpoint: Checkpoint) -> None:
        """Start with the perceptron and the attention of the target's last layer; the weights of the norm
        that is missing here go into the projections."""
        layer, last = self.layers[0], layer_weights(checkpoint, self.config.layers - 1)
        with torch.no_grad():
            self.fc.weight.normal_(std=(2 * self.config.hidden_size) ** -0.5)
            for part in ("q_proj", "k_proj", "v_proj"):
                weight = last[f"self_attn.{part}.weight"] * last["input_layernorm.weight"]
                getattr(layer.self_attn, part).weight.copy_(weight)
            layer.self_attn.o_proj.weight.copy_(last["self_attn.o_proj.weight"])
            for part in ("gate_proj", "up_proj", "down_proj"):
                getattr(layer.mlp, part).weight.copy_(last[f"mlp.{part}.weight"])
            layer.post_attention_layernorm.weight.copy_(last["post_attention_layernorm.weight"])

    def passes(self, batch: Batch, steps: int, noise: float = 0.0) -> Iterator[Tensor]:
        windows = windows_of(batch.wanted, steps - 1)
        layer, attention = self.layers[0], self.layers[0].self_attn
        tables = self._rotary.tables(batch.positions)
        embedded = self.embedding[batch.tokens[:, 1:].flatten()]
        state = batch.features[:, :, -1].flatten(0, 1)
        if noise:
            state = state + (2 * torch.rand_like(state) - 1) * noise
        joined = self.fc(torch.cat([embedded, state], -1))
        keys, values = ([x] for x in attention.keys_and_values(joined, tables))
        joined, embedded = joined[windows.rows], embedded[windows.rows]
        tables = of_rows(tables, windows.rows)
        for step in range(steps):
            if step:
                joined = self.fc(torch.cat([embedded, one_row_on(state, windows)], -1))
                for kept, new in zip((keys, values), attention.keys_and_values(joined, tables), strict=True):
                    kept.append(new)
            q = attention.queries(joined, tables)
            state = layer.finish(joined, attend(q, keys, values, windows))
            yield state[windows.judged]

    def said(self, state: Tensor) -> Tensor:
        return state

    def loss(self, batch: Batch, means: Tensor) -> tuple[Tensor, float]:
        """The loss to minimise, and the cross-entropy a token."""
        state = next(self.passes(batch, 1, NOISE)).float()
        entropy = soft_cross_entropy(state, self.head, means) / max(len(means), 1)
        ahead = following(batch)[batch.wanted].float()
        distance = F.smooth_l1_loss(state, ahead, reduction="sum") / max(state.numel(), 1)
        return distance + ENTROPY_WEIGHT * entropy, float(entropy.detach())

    def save(self, folder: Path, target: str | None, layout: Layout = "small") -> None:
        """Write the head. `target`: the model it is for, as others find it. "original" has the target's
        embedding, too, and all tokens can be guessed."""
        arrays, tokens = self.arrays(), self.tokens()
        if layout == "original":
            arrays["embed_tokens.weight"] = self.embedding.float().cpu().numpy()
        save_eagle(folder, self.settings(target), arrays, None if layout == "original" else tokens)
