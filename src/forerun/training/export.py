"""A trained drafter as files: weights in a layout that others read too, and a card that says how it came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from forerun.models.checkpoint import Checkpoint
from forerun.models.config import ModelConfig
from forerun.training.trainer import Figures, Progress, Settings
from forerun.version import __version__

Floats = npt.NDArray[np.float32]

EIGHT_BITS, FOUR_BITS = 1.0625, 0.625
"""Bytes of a weight in 8 and in 4 bits, with its share of scale and minimum."""


def as_arrays(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Floats]:
    """Weights by name, as float32."""
    return {name: value.detach().float().cpu().numpy() for name, value in tensors}


def llama_config(config: ModelConfig) -> dict[str, object]:
    """What a Llama-shaped drafter's config.json says of sizes it has from its target."""
    theta = rope_theta(config)
    return {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": plainly(config.norm_eps),
        "rope_theta": theta,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        "torch_dtype": "bfloat16",
    }


def rope_theta(config: ModelConfig) -> float:
    """The base of unscaled rotary frequencies: inv_freq[j] = theta ** (-2 j / head_dim), to the five digits
    that a float32 frequency tells of it."""
    if len(config.inv_freq) < 2:
        return 10000.0
    return float(f"{float(config.inv_freq[1]) ** (-config.head_dim / 2):.5g}")


def plainly(value: float) -> float:
    """A number that was float32, as it would be written: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


@dataclass(frozen=True)
class Recipe:
    """What a model card tells.

    Attributes:
        kind: of drafter.
        model: the target's name.
        command: that made it.
        data_tokens: written by the target for training.
        vocabulary: tokens between which the loss and the figures tell.
        named: of them in the drafter's file.
    """

    kind: str
    model: str
    command: str
    data_tokens: int
    vocabulary: int
    named: int


def model_card(
    recipe: Recipe,
    checkpoint: Checkpoint,
    settings: Settings,
    at: Progress,
    figures: Figures,
    parameters: int,
) -> str:
    """MODEL_CARD.md."""
    licence = checkpoint.metadata.get("general.license") or checkpoint.metadata.get("license")
    said = f"`{licence}`, as its file says" if isinstance(licence, str) else "its file names none"
    less = f", of which its file names {recipe.named:,}" if recipe.named < recipe.vocabulary else ""
    gain = ""
    if figures.speed_up is not None:
        gain = f"""
- Expected of single chains on the CPU of the machine that trained it, from what forwards over several tokens
  cost there and how deep guesses are right: {figures.speed_up:.2f} times the speed of plain decoding."""
    return f"""# {recipe.kind} for {recipe.model}

A drafter for speculative decoding with `{recipe.model}` as target: it guesses what the target will write, and
changes nothing in what it writes. Trained by forerun {__version__}:

    {recipe.command}

- Data: {recipe.data_tokens:,} tokens of conversations that the target wrote itself (seeds of its requests and
  answers are in the recipe); no data set was used.
- Training: {at.tokens:,} rows of text (padding and repeats included) in {at.seconds / 60:.0f} minutes of
  computing, AdamW at {settings.rate:g}, batches of about {settings.rows} rows, seed {settings.seed};
  {parameters / 1e6:.2f} million parameters trained; loss: cross-entropy to the target's whole distribution
  over {recipe.vocabulary:,} tokens{less}.
{_judged(recipe, figures)}{gain}
- Licence of the target: {said}. The drafter is derived from its weights and outputs.
"""


def _judged(recipe: Recipe, figures: Figures) -> str:
    """What held-out text says, for the card."""
    if not figures.by_depth:
        return "- No conversation at temperature 0 was held out to judge it by: there are too few."
    depths = " ".join(f"{share:.1%}" for share in figures.by_depth)
    return f"""- Held-out conversations at temperature 0, guessing {len(figures.by_depth)} deep among the
  {recipe.vocabulary:,} tokens of the loss: all guesses right up to depth 1, 2, ...: {depths}; mean
  accepted length of single chains {figures.mean_accepted_length:.2f}; the token is among the four best first
  guesses at {figures.among_four:.1%} of positions. Where the target sampled (0.7 and 1.0), the first guess is
  right at {figures.sampled:.1%}."""
