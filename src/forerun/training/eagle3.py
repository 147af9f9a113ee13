"""EAGLE-3 (Li et al., arXiv 2503.01840): a decoder layer that reads three of the target's hidden states.

Row i takes token i + 1 and the target's states at i, and says what token i + 2 is. Further rows take the
layer's own output (before the norm) in place of states that the target has not computed yet; "training-time
test" trains on that: step k repeats the pass with every row fed by step k - 1's output one row earlier.
A row of step k then sees what it will see when serving: rows fed by the target up to k rows back, and one row
each of steps 1 to k on its own path.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from forerun.models.checkpoint import Checkpoint
from forerun.models.config import ModelConfig
from forerun.models.heads.save import save_eagle3
from forerun.training.batches import Batch
from forerun.training.blocks import MLP, Attention, DecoderLayer, RMSNorm, Rotary, of_rows
from forerun.training.eagle_head import EagleHead, Layout
from forerun.training.losses import soft_cross_entropy
from forerun.training.unrolled import attend
from forerun.training.weights import layer_weights, values
from forerun.training.windows import one_row_on, windows_of

STEP_WEIGHT = 0.8
"""A step's share of the loss over that of the step before it (the reference implementation's)."""


class Layer(DecoderLayer):
    """EAGLE-3's decoder layer; its attention reads the token's embedding beside the state."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.norm_eps
        self.self_attn = Attention(config, 2 * hidden)
        self.mlp = MLP(hidden, config.intermediate_size)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)

    def inputs(self, embedded: Tensor, state: Tensor) -> Tensor:
        """What attention reads, of embeddings after their norm: [rows, 2 hidden]."""
        return torch.cat([embedded, self.hidden_norm(state)], -1)


class Eagle3(EagleHead):
    """The head in training.

    Args:
        checkpoint: the target.
        vocabulary, named: as of `EagleHead`.
        steps: of training-time test.
    """

    def __init__(
        self, checkpoint: Checkpoint, vocabulary: Tensor, steps: int = 4, named: Tensor | None = None
    ) -> None:
        super().__init__(checkpoint, vocabulary, named)
        config = self.config
        self.steps = steps
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self._rotary = Rotary(config)
        self._begin_from(checkpoint)

    def _begin_from(self, checkpoint: Checkpoint) -> None:
        """Start as the target's last layer over the last of the three states, made weak: as it is, it says
        what the target has just said, where what comes next is wanted."""
        hidden = self.config.hidden_size
        last = layer_weights(checkpoint, self.config.layers - 1)
        with torch.no_grad():
            self.fc.weight.normal_(std=0.1 * (3 * hidden) ** -0.5)
            self.fc.weight[:, 2 * hidden :] += 0.3 * torch.eye(hidden)
            self.norm.weight.copy_(values(checkpoint.tensors["norm.weight"]))
            attention, mlp = self.midlayer.self_attn, self.midlayer.mlp
            for part in ("q_proj", "k_proj", "v_proj"):
                weight = getattr(attention, part).weight
                weight.normal_(std=(2 * hidden) ** -0.5)
                weight[:, hidden:] = last[f"self_attn.{part}.weight"]
            attention.o_proj.weight.copy_(last["self_attn.o_proj.weight"])
            for part in ("gate_proj", "up_proj", "down_proj"):
                getattr(mlp, part).weight.copy_(last[f"mlp.{part}.weight"])
            self.midlayer.hidden_norm.weight.copy_(last["input_layernorm.weight"])
            self.midlayer.post_attention_layernorm.weight.copy_(last["post_attention_layernorm.weight"])

    def passes(self, batch: Batch, steps: int) -> Iterator[Tensor]:
        windows = windows_of(batch.wanted, steps - 1)
        layer, attention = self.midlayer, self.midlayer.self_attn
        tables = self._rotary.tables(batch.positions)
        state = self.fc(batch.features[:, :, :3].flatten(0, 1).flatten(1))
        embedded = layer.input_layernorm(self.embedding[batch.tokens[:, 1:].flatten()])
        inputs = layer.inputs(embedded, state)
        keys, vals = ([x] for x in attention.keys_and_values(inputs, tables))
        inputs, embedded, state = (x[windows.rows] for x in (inputs, embedded, state))
        tables = of_rows(tables, windows.rows)
        for step in range(steps):
            if step:
                state = one_row_on(state, windows)
                inputs = layer.inputs(embedded, state)
                for kept, new in zip((keys, vals), attention.keys_and_values(inputs, tables), strict=True):
                    kept.append(new)
            q = attention.queries(inputs, tables)
            state = layer.finish(state, attend(q, keys, vals, windows))
            yield state[windows.judged]

    def loss(self, batch: Batch, means: Tensor) -> tuple[Tensor, float]:
        """The loss to minimise, and the first step's cross-entropy a token."""
        total, first = torch.zeros((), device=means.device), 0.0
        for step, state in enumerate(self.passes(batch, self.steps)):
            entropy = soft_cross_entropy(self.said(state), self.head, means) / max(len(means), 1)
            total = total + STEP_WEIGHT**step * entropy
            if not step:
                first = float(entropy.detach())
        return total / sum(STEP_WEIGHT**step for step in range(self.steps)), first

    def said(self, state: Tensor) -> Tensor:
        out: Tensor = self.norm(state)
        return out

    def save(self, folder: Path, target: str | None, layout: Layout = "small") -> None:
        """Write the head. `target`: the model it is for, as others find it."""
        arrays = self.arrays()
        if layout != "small":
            arrays["lm_head.weight"] = self.head[self.places[self.named]].float().cpu().numpy()
        if layout == "speculators":  # as it writes heads itself
            arrays["embed_tokens.weight"] = self.embedding.float().cpu().numpy()
        save_eagle3(
            folder,
            self.settings(target),
            arrays,
            self.tokens(),
            "speculators" if layout == "speculators" else "original",
        )
