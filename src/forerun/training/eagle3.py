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
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.models.checkpoint import Checkpoint
from forerun.models.config import ModelConfig
from forerun.training.batches import Batch, following
from forerun.training.blocks import MLP, Attention, RMSNorm, Rotary
from forerun.training.export import eagle3_config, save_config, save_weights
from forerun.training.losses import mean_head_rows, soft_cross_entropy
from forerun.training.unrolled import attend
from forerun.training.weights import head_rows, layer_weights, values

STEP_WEIGHT = 0.8
"""A step's share of the loss over that of the step before it (the reference implementation's)."""


class Layer(nn.Module):
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
        """What attention reads: [..., 2 hidden]."""
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(state)], -1)

    def finish(self, state: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer after attention."""
        state = state + self.self_attn.merge(attended)
        out: Tensor = state + self.mlp(self.post_attention_layernorm(state))
        return out


class Eagle3(nn.Module):
    """The head with what it borrows from its target: embedding and output head, neither trained.

    Args:
        checkpoint: the target.
        vocabulary: int64 [draft vocabulary], ascending: the tokens it can say.
        steps: of training-time test.
    """

    def __init__(self, checkpoint: Checkpoint, vocabulary: Tensor, steps: int = 4) -> None:
        super().__init__()
        config = checkpoint.config
        self.config, self.steps = config, steps
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self._rotary = Rotary(config)
        self.register_buffer("vocabulary", vocabulary)
        embedding = values(checkpoint.tensors["embed_tokens.weight"])
        self.register_buffer("embedding", embedding.bfloat16(), persistent=False)
        self.register_buffer("head", head_rows(checkpoint)[vocabulary].bfloat16(), persistent=False)
        places = torch.full((config.vocab_size,), -1)
        places[vocabulary] = torch.arange(len(vocabulary))
        self.register_buffer("places", places, persistent=False)
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
        """The layer's output of each step, before the norm: [conversations, rows, hidden].

        Row i of step k is fed by row i - k of the target's states; the first k rows mean nothing.
        """
        embedded = self.embedding[batch.tokens[:, 1:]]
        tables = self._rotary.tables(embedded.shape[1], embedded.device)
        attention = self.midlayer.self_attn
        state = self.fc(batch.features[:, :, :3].flatten(2))
        keys: list[Tensor] = []
        vals: list[Tensor] = []
        for step in range(steps):
            if step:
                state = F.pad(state, (0, 0, 1, 0))[:, :-1]
            q, k, v = attention.project(self.midlayer.inputs(embedded, state), tables)
            keys.append(k)
            vals.append(v)
            state = self.midlayer.finish(state, attend(q, keys, vals))
            yield state

    def loss(self, batch: Batch) -> tuple[Tensor, float]:
        """The loss to minimise, and the first step's cross-entropy a token."""
        rows = batch.wanted.flatten().nonzero()[:, 0]
        means = mean_head_rows(following(batch).flatten(0, 1)[rows], self.head)
        total, first = torch.zeros((), device=rows.device), 0.0
        for step, state in enumerate(self.passes(batch, self.steps)):
            states = self.norm(state.flatten(0, 1)[rows])
            entropy = soft_cross_entropy(states, self.head, means) / max(len(rows), 1)
            total = total + STEP_WEIGHT**step * entropy
            if not step:
                first = float(entropy.detach())
        return total / sum(STEP_WEIGHT**step for step in range(self.steps)), first

    def save(self, folder: Path) -> None:
        """Write the head in the original layout. `d2t` are offsets; embedding and output head are the
        target's, and left out."""
        made: dict[str, Tensor] = dict(self.named_parameters())
        ids = self.vocabulary
        made["d2t"] = ids - torch.arange(len(ids), device=ids.device)
        made["t2d"] = self.places >= 0
        save_weights(folder, "model.safetensors", made)
        save_config(folder, eagle3_config(self.config, len(ids)))

    @torch.no_grad()
    def guesses(self, batch: Batch, depth: int, best: int = 4) -> tuple[Tensor, Tensor]:
        """Which guesses are right: chains bool [n, depth] (guess d of the chain that starts at a judged row,
        all before it being right), and bool [n]: the token is among the first guess's `best` most likely."""
        actual = self.places[F.pad(batch.tokens[:, 2:], (0, 1))]
        chains = torch.ones_like(batch.wanted)
        found, among = [], torch.zeros_like(chains)
        for step, state in enumerate(self.passes(batch, depth)):
            top = (self.norm(state).bfloat16() @ self.head.T).topk(best, -1).indices
            right = top[..., 0] == actual
            if not step:
                among = (top == actual[..., None]).any(-1)
            # the chain that begins at row i is at row i + step now
            chains = chains & F.pad(right & batch.wanted, (0, depth))[:, step : step + right.shape[1]]
            found.append(chains)
        return torch.stack(found, -1)[batch.wanted], among[batch.wanted]
