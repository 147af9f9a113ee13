"""A draft model: a small Llama of the target's vocabulary, distilled from the target's distributions.

Almost all of a small model of a large vocabulary is its embedding. Here that is not trained: it is the
target's output layer, turned to the directions in which its rows differ most (a singular value
decomposition, cut to the draft's width), and it is embedding and output layer in one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.files import write_whole
from forerun.models.checkpoint import Checkpoint
from forerun.models.config import ModelConfig
from forerun.text.tokenizer import Tokenizer
from forerun.training.batches import Batch, following, later
from forerun.training.blocks import MLP, Attention, DecoderLayer, RMSNorm, Rotary, side_by_side
from forerun.training.export import llama_config, save_config, save_weights
from forerun.training.losses import mean_head_rows, soft_cross_entropy
from forerun.training.weights import head_rows

HEAD_DIM, THETA = 32, 10000.0


@dataclass(frozen=True)
class Shape:
    """A draft model's sizes; `hidden` is a multiple of 32, the size of its heads."""

    hidden: int = 96
    layers: int = 4

    def config(self, target: ModelConfig) -> ModelConfig:
        """The draft's configuration."""
        heads = self.hidden // HEAD_DIM
        return replace(
            target,
            architecture="llama",
            hidden_size=self.hidden,
            intermediate_size=3 * self.hidden,
            layers=self.layers,
            heads=heads,
            kv_heads=heads,
            head_dim=HEAD_DIM,
            inv_freq=(THETA ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)).astype(np.float32),
            rope_scale=1.0,
            tied=True,
        )


class Layer(DecoderLayer):
    """A Llama decoder layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.norm_eps
        self.self_attn = Attention(config, hidden)
        self.mlp = MLP(hidden, config.intermediate_size)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.self_attn.project(self.input_layernorm(x), tables)
        attended = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return self.finish(x, side_by_side(attended))


class Draft(nn.Module):
    """The draft model in training.

    Args:
        checkpoint: the target.
        tokenizer: the target's, written beside the weights.
        vocabulary: int64 [n], ascending: the tokens between which the loss and the judging tell; the model
            itself can say them all.
        shape: its sizes.
    """

    def __init__(
        self, checkpoint: Checkpoint, tokenizer: Tokenizer, vocabulary: Tensor, shape: Shape
    ) -> None:
        super().__init__()
        self.config = shape.config(checkpoint.config)
        self._tokenizer = tokenizer
        self.layers = nn.ModuleList(Layer(self.config) for _ in range(shape.layers))
        self.norm = RMSNorm(self.config.hidden_size, self.config.norm_eps)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = (
                    (2 * shape.layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                )
                nn.init.normal_(parameter, std=scale * parameter.shape[1] ** -0.5)
        self._rotary = Rotary(self.config)
        rows = head_rows(checkpoint)
        self.register_buffer("vocabulary", vocabulary)
        self.register_buffer("embedding", cut(rows, shape.hidden).bfloat16())
        self.register_buffer("target_head", rows[vocabulary].bfloat16(), persistent=False)
        places = torch.full((self.config.vocab_size,), -1)
        places[vocabulary] = torch.arange(len(vocabulary))
        self.register_buffer("places", places, persistent=False)

    def states(self, batch: Batch) -> Tensor:
        """Normed states from which row i says token i + 2: [conversations, rows, hidden]."""
        x = self.embedding[batch.tokens[:, :-1]].float()
        tables = self._rotary.tables(x.shape[1], x.device)
        for layer in self.layers:
            x = layer(x, tables)
        return later(self.norm(x), 1)

    @property
    def width(self) -> int:
        """Of a mean head row."""
        return self.config.hidden_size

    @property
    def guess_bytes(self) -> int:
        """As `EagleHead.guess_bytes`, in bfloat16."""
        return int(2 * (sum(p.numel() for p in self.parameters()) + self.embedding.numel()))

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """As `EagleHead.targets`, of this model's own head."""
        head = self.embedding[self.vocabulary]
        return mean_head_rows(following(batch)[batch.wanted], self.target_head, head)

    def loss(self, batch: Batch, means: Tensor) -> tuple[Tensor, float]:
        """The cross-entropy a token."""
        head = self.embedding[self.vocabulary]
        entropy = soft_cross_entropy(self.states(batch)[batch.wanted], head, means) / max(len(means), 1)
        return entropy, float(entropy.detach())

    @torch.no_grad()
    def guesses(self, batch: Batch, depth: int, best: int = 4) -> tuple[Tensor, Tensor]:
        """As `Eagle3.guesses`."""
        actual = self.places[F.pad(batch.tokens[:, 2:], (0, 1))]
        top = (self.states(batch).bfloat16() @ self.embedding[self.vocabulary].T).topk(best, -1).indices
        right = (top[..., 0] == actual) & batch.wanted
        chains, found = right, []
        for step in range(depth):
            chains = chains & later(right, step)
            found.append(chains)
        among = (top == actual[..., None]).any(-1)
        return torch.stack(found, -1)[batch.wanted], among[batch.wanted]

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder."""
        tensors = {f"model.{name}": value for name, value in self.named_parameters()}
        tensors["model.embed_tokens.weight"] = self.embedding
        save_weights(folder, "model.safetensors", tensors)
        sizes = {"num_hidden_layers": len(self.layers), "tie_word_embeddings": True}
        ends = list(self.config.eos_token_ids)
        save_config(
            folder,
            {
                "architectures": ["LlamaForCausalLM"],
                **llama_config(self.config),
                **sizes,
                "eos_token_id": ends,
            },
        )
        save_tokenizer(self._tokenizer, folder)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write it as transformers does. One out of a GGUF file says there by its rules how to decode."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    if backend.decoder is None:
        rules, kinds = tokenizer.rules, tokenizers.decoders
        steps: list[object] = [kinds.Replace(*pair) for pair in rules.replacements]
        steps += [kinds.ByteFallback()] if rules.byte_fallback else []
        steps += [kinds.Fuse()] + ([kinds.Strip(" ", rules.strip, 0)] if rules.strip else [])
        backend.decoder = kinds.ByteLevel() if rules.byte_level else kinds.Sequence(steps)
    write_whole(folder / "tokenizer.json", backend.to_str())
    names = {**tokenizer.special_tokens, "chat_template": tokenizer.chat_template}
    write_whole(folder / "tokenizer_config.json", json.dumps(names, indent=2) + "\n")


def cut(rows: Tensor, width: int) -> Tensor:
    """[n, width]: the rows [n, hidden] along the `width` directions in which they are largest."""
    _, directions = torch.linalg.eigh(rows.T @ rows)  # ascending
    return rows @ directions[:, -width:]
