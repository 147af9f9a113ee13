"""Tiny drafting heads on disk, random, in every layout that is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors.numpy

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class TinyHead:
    """What a layout says and holds. `arrays` come under the names of the file."""

    config: Mapping[str, object]
    arrays: Arrays
    file: str = "model.safetensors"

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        safetensors.numpy.save_file(
            {k: np.ascontiguousarray(v) for k, v in self.arrays.items()}, folder / self.file
        )
        return folder


@dataclass
class Sizes:
    """Of a head for a target of `target` hidden values and `vocab` tokens, of which it guesses `outputs`."""

    target: int = 64
    hidden: int = 64
    inner: int = 80
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 24
    outputs: int = 15
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def matrix(self, rows: int, columns: int, sharpness: float = 1.5) -> np.ndarray:
        return (self.draw.normal(size=(rows, columns)) * sharpness / np.sqrt(columns)).astype(np.float32)

    def vector(self, size: int, around: float = 1.0) -> np.ndarray:
        return (around + 0.3 * self.draw.normal(size=size)).astype(np.float32)

    def layer(self, at: str, inputs: int, bias: bool = False, norm: bool = True) -> Arrays:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        made = {
            f"{at}self_attn.q_proj.weight": self.matrix(queries, inputs),
            f"{at}self_attn.k_proj.weight": self.matrix(keys, inputs),
            f"{at}self_attn.v_proj.weight": self.matrix(keys, inputs),
            f"{at}self_attn.o_proj.weight": self.matrix(self.hidden, queries),
            f"{at}mlp.gate_proj.weight": self.matrix(self.inner, self.hidden),
            f"{at}mlp.up_proj.weight": self.matrix(self.inner, self.hidden),
            f"{at}mlp.down_proj.weight": self.matrix(self.hidden, self.inner),
            f"{at}post_attention_layernorm.weight": self.vector(self.hidden),
        }
        if bias:
            for name, rows in (("q", queries), ("k", keys), ("v", keys)):
                made[f"{at}self_attn.{name}_proj.bias"] = self.vector(rows, 0.0)
        if norm:
            made[f"{at}input_layernorm.weight"] = self.vector(self.hidden)
        return made

    def config(self) -> dict[str, object]:
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": 40,  # configurations lie
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
        }

    def eagle(self, *, fc_bias: bool = False, qkv_bias: bool = False, embedding: bool = False) -> TinyHead:
        arrays = {
            "fc.weight": self.matrix(self.hidden, 2 * self.hidden),
            **self.layer("layers.0.", self.hidden, qkv_bias, norm=False),
        }
        if fc_bias:
            arrays["fc.bias"] = self.vector(self.hidden, 0.0)
        if embedding:
            arrays["embed_tokens.weight"] = self.matrix(self.vocab, self.hidden)
        return TinyHead({**self.config(), "bias": fc_bias}, arrays)

    def hass(self) -> TinyHead:
        head = self.eagle(fc_bias=True)
        norms = {
            "embedding_layernorm.weight": self.vector(self.hidden),
            "hidden_states_layernorm.weight": self.vector(self.hidden),
        }
        return TinyHead({**head.config, "add_para_norm": True}, {**head.arrays, **norms})

    def first_speculators(self) -> TinyHead:
        """speculators' first names for EAGLE-1, with a norm before the target's head."""
        head = self.eagle(fc_bias=True)
        renamed = {
            name.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): values
            for name, values in head.arrays.items()
        }
        renamed["embedding_layernorm.weight"] = self.vector(self.hidden)
        renamed["pre_lm_head_layernorm.weight"] = self.vector(self.hidden)
        config = {"speculators_model_type": "eagle", "transformer_layer_config": head.config}
        return TinyHead(config, renamed)

    def wrapped(self) -> TinyHead:
        """vLLM's wrapper of a configuration."""
        head = self.eagle(fc_bias=True, embedding=True)
        return TinyHead({"model_type": "eagle", "model": dict(head.config)}, head.arrays)

    def eagle3(
        self,
        *,
        embedding: bool = False,
        reduced: bool = True,
        residual: bool = False,
        norms: str = "",
        layers: int = 1,
        speculators: bool = False,
        norm_output: bool = False,
        taps: tuple[int, ...] | None = None,
        head: bool = True,
    ) -> TinyHead:
        width = 3 * self.target
        at = "layers.0." if speculators or layers > 1 else "midlayer."
        arrays = {
            "fc.weight": self.matrix(self.hidden, width),
            **self.layer(at, 2 * self.hidden),
            f"{at}hidden_norm.weight": self.vector(self.hidden),
            "norm.weight": self.vector(self.hidden),
            "lm_head.weight": self.matrix(self.outputs if reduced else self.vocab, self.hidden, 4.0),
        }
        if not head:  # the target's, of which d2t names the rows
            del arrays["lm_head.weight"]
        for layer in range(1, layers):
            arrays |= self.layer(f"layers.{layer}.", self.hidden)
        if embedding:
            arrays["embed_tokens.weight"] = self.matrix(self.vocab, self.hidden)
        if reduced:
            tokens = np.sort(self.draw.permutation(self.vocab)[: self.outputs])
            arrays["d2t"] = tokens - np.arange(self.outputs)
            arrays["t2d"] = np.isin(np.arange(self.vocab), tokens)
        if norms == "fc_norm":
            arrays |= {f"fc_norm.{i}.weight": self.vector(self.target) for i in range(3)}
        elif norms == "input_norm":
            arrays["input_norm.weight"] = self.vector(width)
        ours: dict[str, object] = {
            "norm_before_residual": residual,
            "norm_output": norm_output,
            "target_hidden_size": self.target,
        }
        if taps is not None:
            ours["eagle_aux_hidden_state_layer_ids"] = list(taps)
        if speculators:
            config = {
                "speculators_model_type": "eagle3",
                "transformer_layer_config": self.config(),
                **ours,
            }
            return TinyHead(config, arrays)
        if taps is not None:
            ours = {**ours, "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(taps)}}
        return TinyHead({**self.config(), **ours, "architectures": ["LlamaForCausalLMEagle3"]}, arrays)

    def medusa(self, *, heads: int = 3, blocks: int = 1, prefix: str = "") -> TinyHead:
        arrays: Arrays = {}
        for head in range(heads):
            for block in range(blocks):
                arrays[f"{prefix}{head}.{block}.linear.weight"] = self.matrix(self.target, self.target)
                arrays[f"{prefix}{head}.{block}.linear.bias"] = self.vector(self.target, 0.0)
            arrays[f"{prefix}{head}.{blocks}.weight"] = self.matrix(self.vocab, self.target, 4.0)
        config = {
            "medusa_num_heads": 2,
            "medusa_num_layers": blocks,
            "base_model_name_or_path": "tiny",
        }  # says fewer
        if prefix:
            arrays["model.norm.weight"] = self.vector(self.target)  # of the model that was trained with it
            return TinyHead(config, arrays)
        return TinyHead(config, arrays, "medusa_lm_head.safetensors")

    def vllm_medusa(self, *, heads: int = 3, shared: bool = False) -> TinyHead:
        arrays: Arrays = {"token_map": self.draw.permutation(self.vocab)[: self.outputs].astype(np.int64)}
        for head in range(heads):
            arrays[f"blocks.{head}.layers.0.weight"] = self.matrix(self.target, self.target)
            if head == 0 or not shared:
                arrays[f"lm_heads.{head}.weight"] = self.matrix(self.outputs, self.target, 4.0)
        config = {
            "model_type": "medusa",
            "hidden_size": self.target,
            "vocab_size": self.vocab,
            "truncated_vocab_size": self.outputs,
            "num_heads": heads,
            "num_hidden_layers": 1,
            "original_lm_head": shared,
        }
        return TinyHead(config, arrays)

    def hydra(
        self,
        *,
        heads: int = 3,
        blocks: int = 1,
        small: bool = False,
        dropout: bool = False,
        bias: bool = True,
        embedding: bool = False,
    ) -> TinyHead:
        """dropout: blocks numbered as newer reference code does. embedding: the target's, which the authors'
        files hold."""
        arrays: Arrays = {}
        for head in range(heads):
            for block in range(blocks):
                at = f"hydra_mlp.{head}.{2 * block + 1 if dropout else block}."
                width = (head + 2) * self.target if block == 0 else self.target
                for part in ("linear", "res_connection")[: 2 if block == 0 else 1]:
                    arrays[f"{at}{part}.weight"] = self.matrix(self.target, width)
                    arrays[f"{at}{part}.bias"] = self.vector(self.target, 0.0)
            if not small:
                out = f"hydra_lm_head.{head}.{'1.' if dropout else ''}"
                arrays[f"{out}weight"] = self.matrix(self.vocab, self.target, 4.0)
                if bias:
                    arrays[f"{out}bias"] = self.vector(self.vocab, 0.0)
        config: dict[str, object] = {
            "hydra_num_heads": 2,  # says fewer
            "hydra_num_layers": blocks,
            "hydra_head_arch": "mlp",
            "grounded_heads": True,
            "hidden_state_offset": 0,
            "base_model_name_or_path": "tiny",
        }
        if embedding:
            arrays["input_embed_fn.weight"] = self.matrix(self.vocab, self.target)
        if not small:
            return TinyHead(config, arrays, "hydra_lm_head.safetensors")
        tokens = np.sort(self.draw.permutation(self.vocab)[: self.outputs])
        arrays["d2t"] = tokens - np.arange(self.outputs)
        sizes = {"hidden_size": self.target, "vocab_size": self.vocab, "draft_vocab_size": self.outputs}
        return TinyHead({**config, **sizes, "model_type": "hydra"}, arrays)


EAGLES = {
    "eagle": lambda: Sizes().eagle(),
    "eagle, biases": lambda: Sizes().eagle(fc_bias=True, qkv_bias=True, embedding=True),
    "eagle, hass": lambda: Sizes().hass(),
    "eagle, first speculators": lambda: Sizes().first_speculators(),
    "eagle, vllm wrapper": lambda: Sizes().wrapped(),
    "eagle3": lambda: Sizes().eagle3(),
    "eagle3, all tokens": lambda: Sizes().eagle3(embedding=True, reduced=False, taps=(0, 1, 2)),
    "eagle3, normed residual": lambda: Sizes().eagle3(embedding=True, residual=True),
    "eagle3, fc_norm": lambda: Sizes().eagle3(norms="fc_norm"),
    "eagle3, input_norm": lambda: Sizes().eagle3(norms="input_norm", norm_output=True),
    "eagle3, the target's head": lambda: Sizes().eagle3(head=False),
    "eagle3, narrow": lambda: Sizes(hidden=48).eagle3(embedding=True),
    "speculators": lambda: Sizes().eagle3(speculators=True, residual=True),
    "speculators, two layers": lambda: Sizes().eagle3(speculators=True, layers=2),
}
MEDUSAS = {
    "medusa": lambda: Sizes().medusa(),
    "medusa, two blocks": lambda: Sizes().medusa(blocks=2),
    "medusa, with its model": lambda: Sizes().medusa(prefix="medusa_head."),
    "vllm medusa": lambda: Sizes().vllm_medusa(),
    "vllm medusa, one output layer": lambda: Sizes().vllm_medusa(shared=True),
}
HYDRAS = {
    "hydra": lambda: Sizes().hydra(embedding=True),
    "hydra, three blocks": lambda: Sizes().hydra(blocks=3, dropout=True, bias=False),
    "hydra, the target's head": lambda: Sizes().hydra(blocks=2, small=True),
}
