"""Writing heads that other engines load too: EAGLE-1 as its authors lay it out, EAGLE-3 as its authors and as
speculators do, Medusa as its authors and as vLLM do, Hydra as its authors do; and, for forerun alone, Hydra
without output layers. Only numpy is needed.

Tensors come under their original names, as float32 arrays: `fc.weight`, `midlayer.self_attn.q_proj.weight`,
... (further layers are `layers.1.`, `layers.2.`, ...; EAGLE-1's only one is `layers.0.`), `norm.weight`,
`lm_head.weight`, and `embed_tokens.weight` if the head has one of its own; for Medusa
`{h}.{l}.linear.weight`, `{h}.{l}.linear.bias` and `{h}.{blocks}.weight`; for Hydra
`hydra_mlp.{h}.{l}.linear.weight`, `hydra_mlp.{h}.0.res_connection.weight` and `hydra_lm_head.{h}.weight`,
each with a `.bias` beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from forerun.weights.hf_folder import HYDRA_FILES, MEDUSA_FILES, write_folder

Floats = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class EagleSettings:
    """What the configuration of an EAGLE head says.

    target:       the model it was made for, as others find it: a hub id or a folder; None where they cannot
    taps:         hidden states that EAGLE-3 reads, as Hugging Face counts them
    vocab_size:   of the target
    rope:         further keys of the configuration about rotary embeddings, such as `rope_scaling`
    target_class: in transformers
    """

    target: str | None
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab_size: int
    taps: tuple[int, ...] = ()
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope: Mapping[str, object] = field(default_factory=dict)
    context: int = 8192
    norm_before_residual: bool = False
    speculative_tokens: int = 5
    target_class: str = "LlamaForCausalLM"


@dataclass(frozen=True)
class MedusaSettings:
    """What the configuration of Medusa heads says.

    target:     as for EAGLE
    vocab_size: of the target
    """

    target: str | None
    hidden_size: int
    vocab_size: int
    heads: int
    blocks: int = 1


@dataclass(frozen=True)
class HydraSettings:
    """What the configuration of Hydra heads says.

    target:     as for EAGLE
    vocab_size: of the target
    blocks:     of a head, the first among them
    """

    target: str | None
    hidden_size: int
    vocab_size: int
    heads: int
    blocks: int = 1


def save_eagle(
    folder: Path, settings: EagleSettings, tensors: Mapping[str, Floats], tokens: IntArray | None = None
) -> None:
    """Write an EAGLE-1 head: `config.json` and `model.safetensors`, weights in bfloat16.

    Args:
        folder: made if it is not there.
        tokens: as for `save_eagle3`. EAGLE-1's authors know no such map, and other engines may not either.
    """
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_layer(settings),
        "bias": "fc.bias" in tensors,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    write_folder(folder, config, {**tensors, **_token_map(settings.vocab_size, tokens)})


def save_eagle3(
    folder: Path,
    settings: EagleSettings,
    tensors: Mapping[str, Floats],
    tokens: IntArray | None,
    layout: Literal["original", "speculators"] = "original",
) -> None:
    """Write `config.json` and `model.safetensors`, weights in bfloat16.

    Args:
        folder: made if it is not there.
        tokens: int32 [outputs], ascending, the target's token of each output; None where they are the same.
    """
    named: dict[str, npt.NDArray[np.generic]] = {**tensors, **_token_map(settings.vocab_size, tokens)}
    own = {
        "draft_vocab_size": settings.vocab_size if tokens is None else int(tokens.size),
        "target_hidden_size": settings.target_hidden_size,
        "norm_before_residual": settings.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": list(settings.taps),  # vLLM's place for it, in either layout
    }
    config: dict[str, object]
    if layout == "original":
        config = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **_layer(settings),
            **own,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": list(settings.taps),
                "use_aux_hidden_state": True,
            },
        }
    else:
        named = {name.replace("midlayer.", "layers.0."): values for name, values in named.items()}
        config = {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.3.0",
            "transformer_layer_config": {"model_type": "llama", **_layer(settings)},
            **own,
            "norm_before_fc": False,
            "embed_requires_grad": False,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "speculators_config": _proposals(settings),
        }
    write_folder(folder, config, named)


def save_medusa(
    folder: Path,
    settings: MedusaSettings,
    tensors: Mapping[str, Floats],
    tokens: IntArray | None = None,
    layout: Literal["original", "vllm"] = "original",
) -> None:
    """Write `config.json` and the weights in bfloat16. Heads that guess some `tokens` only need vLLM's
    layout; so do heads that all use the first one's output layer and have none themselves."""
    shared = sum(name.count(".") == 2 for name in tensors) < settings.heads
    if layout == "original":
        if tokens is not None or shared:
            raise ValueError("Medusa's own layout has no map of tokens, no shared output layer; use vllm's")
        config: dict[str, object] = {
            "medusa_num_heads": settings.heads,
            "medusa_num_layers": settings.blocks,
            "base_model_name_or_path": settings.target,
            "hidden_size": settings.hidden_size,
            "vocab_size": settings.vocab_size,
        }
        write_folder(folder, config, tensors, MEDUSA_FILES[0])
        return
    named: dict[str, npt.NDArray[np.generic]] = {}
    for name, values in tensors.items():
        head, layer, *rest = name.split(".")
        block = rest[0] == "linear"
        named[f"blocks.{head}.layers.{layer}.{rest[1]}" if block else f"lm_heads.{head}.weight"] = values
    if tokens is not None:
        named["token_map"] = tokens.astype(np.int64)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": settings.hidden_size,
        "vocab_size": settings.vocab_size,
        "truncated_vocab_size": settings.vocab_size if tokens is None else int(tokens.size),
        "num_heads": settings.heads,
        "num_hidden_layers": settings.blocks,
        "medusa_fc_bias": any(name.endswith(".bias") for name in tensors),
        "original_lm_head": shared,
        "base_model_name_or_path": settings.target,
        "torch_dtype": "bfloat16",
    }
    write_folder(folder, config, named)


def save_hydra(
    folder: Path,
    settings: HydraSettings,
    tensors: Mapping[str, Floats],
    tokens: IntArray | None = None,
    layout: Literal["small", "original"] = "small",
) -> None:
    """Write `config.json` and the weights in bfloat16.

    Args:
        folder: made if it is not there.
        tokens: int32 [outputs], ascending, the target's tokens that are guessed; None: all of them, or
            without output layers the frequent ones.
        layout: "original" is the authors', and has output layers over all tokens; "small" has none, and
            guesses `tokens` by the target's own output layer.

    Raises:
        ValueError: tensors or tokens that the layout has no place for.
    """
    outs = sorted(name for name in tensors if name.startswith("hydra_lm_head.") and name.endswith(".weight"))
    config: dict[str, object] = {
        "hydra_num_heads": settings.heads,
        "hydra_num_layers": settings.blocks,
        "hydra_head_arch": "mlp",
        "grounded_heads": True,
        "hidden_state_offset": 0,
        "base_model_name_or_path": settings.target,
        "hidden_size": settings.hidden_size,
        "vocab_size": settings.vocab_size,
    }
    if layout == "original":
        if tokens is not None or len(outs) < settings.heads:
            raise ValueError(
                "Hydra's own layout has an output layer over all tokens for each head; use the small one"
            )
        # without a bias in the file the authors' program would keep the random one that it begins with
        biases = {
            name.removesuffix("weight") + "bias": np.zeros(len(tensors[name]), np.float32) for name in outs
        }
        write_folder(folder, config, {**biases, **tensors}, HYDRA_FILES[0])
        return
    if outs:
        raise ValueError("Hydra's small layout has no output layers; use the original one")
    config = {
        "architectures": ["HydraModel"],
        "model_type": "hydra",
        **config,
        "draft_vocab_size": settings.vocab_size if tokens is None else int(tokens.size),
        "torch_dtype": "bfloat16",
    }
    named: dict[str, npt.NDArray[np.generic]] = {**tensors}
    if tokens is not None:
        named["d2t"] = (tokens - np.arange(tokens.size)).astype(np.int32)
    write_folder(folder, config, named)


def _layer(settings: EagleSettings) -> dict[str, object]:
    """The keys of a Llama configuration."""
    return {
        "hidden_size": settings.hidden_size,
        "intermediate_size": settings.intermediate_size,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads,
        "head_dim": settings.head_dim,
        "vocab_size": settings.vocab_size,
        "rms_norm_eps": settings.norm_eps,
        "rope_theta": settings.rope_theta,
        **settings.rope,
        "max_position_embeddings": settings.context,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


def _token_map(vocab_size: int, tokens: IntArray | None) -> dict[str, npt.NDArray[np.generic]]:
    """`d2t`, whose entries are offsets, and `t2d`."""
    if tokens is None:
        return {}
    return {
        "d2t": tokens.astype(np.int64) - np.arange(tokens.size),
        "t2d": np.isin(np.arange(vocab_size), tokens),
    }


def _proposals(settings: EagleSettings) -> dict[str, object]:
    """How speculators says what a head is used for."""
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": settings.speculative_tokens,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "verifier": {"name_or_path": settings.target, "architectures": [settings.target_class]},
    }
