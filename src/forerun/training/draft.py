"""A draft model: a small model with the target's tokens, distilled from the target's distributions.

It begins as some of the target's own layers with its embedding, or, with a width of its own, from nothing.
Most of a small model of a large vocabulary is its embedding. Therefore that is not trained, and a draft model
for this engine has the rows of frequent tokens only (`models.draft_vocabulary`), and all matrices in 4 bits:
the room goes to layers. For other engines it is written whole.
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
from torch.func import functional_call

from forerun.errors import InputError
from forerun.files import write_whole
from forerun.models.checkpoint import Checkpoint
from forerun.models.config import ModelConfig
from forerun.models.draft_vocabulary import DraftVocabulary
from forerun.models.hf_config import CLASS_OF
from forerun.models.rope import plain
from forerun.text.tokenizer import Tokenizer
from forerun.training import rounding
from forerun.training.batches import Batch, following, later
from forerun.training.blocks import MLP, Attention, DecoderLayer, RMSNorm, Rotary, Tables
from forerun.training.export import FOUR_BITS, as_arrays, llama_config, rope_theta
from forerun.training.export_gguf import EMBEDDING, save_draft
from forerun.training.losses import mean_head_rows, soft_cross_entropy
from forerun.training.unrolled import attend
from forerun.training.weights import head_rows, layer_weights, places_of, values
from forerun.training.windows import Windows, windows_of
from forerun.weights.hf_folder import write_folder
from forerun.words import counted

HEAD_DIM, THETA = 32, 10000.0


@dataclass(frozen=True)
class Shape:
    """What a draft model is.

    Attributes:
        hidden: its width, a multiple of 32 (the size of its heads), to begin from nothing; None is the
            target's, and begins from layers of the target's.
        layers: how many.
        whole: it has the target's whole vocabulary, in bfloat16.
    """

    hidden: int | None = None
    layers: int = 4
    whole: bool = False

    def config(self, target: ModelConfig, vocabulary: int) -> ModelConfig:
        """The draft's configuration, with so many tokens.

        Raises:
            InputError: the target has no more layers than the draft model shall have.
        """
        common = replace(
            target,
            vocab_size=vocabulary,
            layers=self.layers,
            rope_scale=1.0,
            window=0,
            rope_interleaved=False,
        )
        if self.hidden is not None:
            heads = self.hidden // HEAD_DIM
            return replace(
                common,
                architecture="llama",
                hidden_size=self.hidden,
                intermediate_size=3 * self.hidden,
                heads=heads,
                kv_heads=heads,
                head_dim=HEAD_DIM,
                inv_freq=plain(THETA, HEAD_DIM),
                tied=True,
                qkv_bias=False,
                qk_norm=False,
            )
        if self.layers >= target.layers:
            raise InputError(
                f"a draft model of {counted(self.layers, 'layer')} is no smaller than the model, which has "
                f"{target.layers}; give fewer layers, or a width of its own"
            )
        family = "qwen3" if target.qk_norm else "qwen2" if target.qkv_bias else "llama"
        # whatever the target's rotary embeddings are scaled by, the draft's are plain
        return replace(common, architecture=family, inv_freq=plain(rope_theta(target), target.head_dim))


class Layer(DecoderLayer):
    """A Llama decoder layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.norm_eps
        self.self_attn = Attention(config, hidden)
        self.mlp = MLP(hidden, config.intermediate_size)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)

    def forward(self, x: Tensor, tables: Tables, windows: Windows) -> Tensor:
        """x [rows, hidden]; `windows` of all rows."""
        inputs = self.input_layernorm(x)
        keys, values = self.self_attn.keys_and_values(inputs, tables)
        return self.finish(x, attend(self.self_attn.queries(inputs, tables), [keys], [values], windows))


class Draft(nn.Module):
    """The draft model in training.

    Args:
        checkpoint: the target.
        tokenizer: the target's.
        vocabulary: int64 [n], ascending: the tokens that it can say; if it is whole, those between which the
            loss and the judging tell.
        shape: what it is.
    """

    def __init__(
        self, checkpoint: Checkpoint, tokenizer: Tokenizer, vocabulary: Tensor, shape: Shape
    ) -> None:
        super().__init__()
        target, self.whole = checkpoint.config, shape.whole
        self.config = shape.config(target, target.vocab_size if shape.whole else len(vocabulary))
        self._tokenizer = tokenizer
        self.layers = nn.ModuleList(Layer(self.config) for _ in range(shape.layers))
        self.norm = RMSNorm(self.config.hidden_size, self.config.norm_eps)
        self._rotary = Rotary(self.config)
        rows = head_rows(checkpoint)
        if shape.hidden is None:
            self._begin_from(checkpoint)
            embedding = rows if target.tied else values(checkpoint.tensors["embed_tokens.weight"])
        else:
            self._begin_anew()
            embedding = cut(rows, shape.hidden)
        self.register_buffer("vocabulary", vocabulary)
        # directions of a cut may be others on another machine
        self.register_buffer("embedding", self._stored(embedding), persistent=shape.hidden is not None)
        if not self.config.tied:
            self.register_buffer("separate", self._stored(rows), persistent=False)
        self.register_buffer("target_head", rows[vocabulary].bfloat16(), persistent=False)
        places = places_of(vocabulary, target.vocab_size)
        self.register_buffer("places", places, persistent=False)
        whole = torch.arange(target.vocab_size)
        self.register_buffer("reads", whole if shape.whole else nearest(embedding, places), persistent=False)

    def _begin_from(self, checkpoint: Checkpoint) -> None:
        """Weights of the target's."""
        self.norm.weight.data.copy_(values(checkpoint.tensors["norm.weight"]))
        chosen = chosen_layers(checkpoint.config.layers, len(self.layers))
        for layer, number in zip(self.layers, chosen, strict=True):
            layer.load_state_dict(layer_weights(checkpoint, number))

    def _begin_anew(self) -> None:
        """Random weights, small where they add to what passes through."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                adds = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * len(self.layers)) ** -0.5 if adds else 1
                nn.init.normal_(parameter, std=scale * parameter.shape[1] ** -0.5)

    def _stored(self, rows: Tensor) -> Tensor:
        """Of an embedding [target's vocabulary, width] what is kept, as it is kept."""
        if not self.whole:
            rows = rows[self.vocabulary]
            rows = rounding.round_to(rows, EMBEDDING) if rounding.fits(rows) else rows
        return rows.bfloat16()

    @property
    def named(self) -> Tensor:
        """The tokens that it tells between, as of `EagleHead`."""
        tokens: Tensor = self.vocabulary
        return tokens

    @property
    def outputs(self) -> Tensor:
        """The whole output layer, [config.vocab_size, hidden]."""
        rows: Tensor = self.embedding if self.config.tied else self.separate
        return rows

    @property
    def head(self) -> Tensor:
        """The output layer's rows of `vocabulary`."""
        return self.outputs[self.vocabulary] if self.whole else self.outputs

    def states(self, batch: Batch) -> Tensor:
        """Normed states from which row i says token i + 2: [conversations, rows, hidden]."""
        x = self.embedding[self.reads[batch.tokens[:, :-1].flatten()]].float()
        tables = self._rotary.tables(batch.positions)
        windows = windows_of(torch.ones_like(batch.wanted), 0)
        for layer in self.layers:
            x = functional_call(layer, self._weights(layer), (x, tables, windows))
        return later(self.norm(x).unflatten(0, batch.wanted.shape), 1)

    def _weights(self, layer: nn.Module) -> dict[str, Tensor]:
        """A layer's weights as the file will have them."""
        return {
            name: rounding.rounded(weight)
            if weight.dim() == 2 and rounding.fits(weight) and not self.whole
            else weight
            for name, weight in layer.named_parameters()
        }

    @property
    def width(self) -> int:
        """Of a mean head row."""
        return self.config.hidden_size

    @property
    def guess_bytes(self) -> int:
        """As `EagleHead.guess_bytes`."""
        weights = sum(p.numel() for p in self.parameters()) + self.outputs.numel()
        return int(weights * (2 if self.whole else FOUR_BITS))

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """As `EagleHead.targets`, of this model's own head."""
        return mean_head_rows(following(batch)[batch.wanted], self.target_head, self.head)

    def loss(self, batch: Batch, means: Tensor) -> tuple[Tensor, float]:
        """The cross-entropy a token."""
        entropy = soft_cross_entropy(self.states(batch)[batch.wanted], self.head, means) / max(len(means), 1)
        return entropy, float(entropy.detach())

    @torch.no_grad()
    def guesses(self, batch: Batch, depth: int, best: int = 4) -> tuple[Tensor, Tensor]:
        """As `EagleHead.guesses`."""
        actual = self.places[F.pad(batch.tokens[:, 2:], (0, 1))]
        top = (self.states(batch).bfloat16() @ self.head.T).topk(best, -1).indices
        right = (top[..., 0] == actual) & batch.wanted
        chains, found = right, []
        for step in range(depth):
            chains = chains & later(right, step)
            found.append(chains)
        among = (top == actual[..., None]).any(-1)
        return torch.stack(found, -1)[batch.wanted], among[batch.wanted]

    def save(self, folder: Path) -> None:
        """Write a GGUF file for this engine, or, if it is whole, a Hugging Face folder."""
        tensors = dict(self.named_parameters())
        tensors["embed_tokens.weight"] = self.embedding
        if not self.config.tied:
            tensors["lm_head.weight"] = self.separate
        if self.whole:
            self._save_whole(folder, tensors)
            return
        tokens = self.vocabulary.cpu().numpy().astype(np.int32)
        pieces = [self._tokenizer.piece(int(token)) or "" for token in tokens]
        part = DraftVocabulary(tokens, self.reads.cpu().numpy().astype(np.int32), pieces)
        save_draft(folder, self.config, tensors, part)

    def _save_whole(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        head = tensors.pop("lm_head.weight", None)
        named = {f"model.{name}": value for name, value in tensors.items()}
        if head is not None:
            named["lm_head.weight"] = head
        family = self.config.architecture
        values = {
            **llama_config(self.config),
            "architectures": [CLASS_OF[family]],
            "model_type": family,
            "num_hidden_layers": len(self.layers),
            "tie_word_embeddings": self.config.tied,
            "eos_token_id": list(self.config.eos_token_ids),
        }
        write_folder(folder, values, as_arrays(named.items()))
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


def chosen_layers(target: int, wanted: int) -> list[int]:
    """Which of the target's layers a draft model begins from: evenly spread, the first and the last among
    them, as in Distil-Whisper (Gandhi et al., arXiv 2311.00430)."""
    return [round(i * (target - 1) / max(wanted - 1, 1)) for i in range(wanted)]


def nearest(embedding: Tensor, places: Tensor) -> Tensor:
    """int64 [target's vocabulary]: the row that each token reads, its own or that of the most similar token
    with a row, by the cosine of what their embeddings [target's vocabulary, width] differ from the mean by.

    Args:
        places: int64 [target's vocabulary]: each token's own row, or -1.
    """
    directions = F.normalize(embedding - embedding.mean(0), dim=-1).bfloat16()
    own = torch.nonzero(places >= 0).squeeze(1)
    reads = places.clone()
    for others in torch.nonzero(places < 0).squeeze(1).split(4096):
        reads[others] = places[own[(directions[others] @ directions[own].T).argmax(-1)]]
    return reads
