"""What a model is: the sizes and flags of the one decoder that every supported family is a case of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.errors import InputError
from forerun.models.rope import Frequencies
from forerun.words import counted

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

# Limits far above any published model, and far below what would exhaust a machine or overflow an int32.
MOST_LAYERS = 1024
MOST_HEADS = 4096
LARGEST_HEAD = 4096
LARGEST_WIDTH = 1 << 20
LARGEST_VOCABULARY = 1 << 24
LONGEST_CONTEXT = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class ModelConfig:
    """A decoder's sizes and flags, checked.

    architecture:     one of FAMILIES
    vocab_size:       rows of the embedding; some may stand for no token
    hidden_size:      values a token between layers; intermediate_size: inside the MLP
    heads, kv_heads:  query heads, and the key-value heads that they share in equal groups
    head_dim:         values a head
    context:          the longest sequence, in tokens
    norm_eps:         added to the mean square in RMSNorm
    inv_freq:         float32 [head_dim / 2], radians a position, scaling applied
    rope_scale:       multiplies cos and sin (YaRN's attention factor, otherwise 1)
    tied:             the head is `embed_tokens`; there is no `lm_head`
    qkv_bias:         the projections of queries, keys and values have biases
    qk_norm:          queries and keys pass an RMSNorm a head
    window:           attention reaches back this many tokens, the own one included; 0: without limit
    rope_interleaved: rows of q and k (weights and biases) lie in llama's GGUF order, the two values of a
                      rotated pair side by side, instead of half a head apart
    eos_token_ids:    the tokens that end a text, ascending
    name:             for display
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    norm_eps: float
    inv_freq: Frequencies
    rope_scale: float
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    window: int
    rope_interleaved: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    name: str

    def kv_values_per_token(self) -> int:
        """The numbers that the cache keeps for a token: keys and values of every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def check_heads(heads: int, kv_heads: int, head_dim: int, source: str) -> None:
    """Refuse head counts that cannot be grouped and head sizes that cannot be rotated in pairs."""
    if heads % kv_heads:
        raise InputError(f"{source}: {heads} attention heads cannot share {kv_heads} key-value heads evenly")
    if head_dim % 2:
        raise InputError(f"{source}: a head of {counted(head_dim, 'value')} cannot be rotated in pairs")


def check_frequencies(frequencies: Frequencies, source: str) -> Frequencies:
    """Refuse frequencies that are not usable numbers; scalings with absurd parameters give such."""
    if not np.isfinite(frequencies).all() or (frequencies < 0).any():
        raise InputError(
            f"{source}: its rotary embedding parameters give frequencies that are not usable numbers"
        )
    frequencies.setflags(write=False)
    return frequencies


def token_ids(values: list[object], vocab_size: int, source: str) -> tuple[int, ...]:
    """Token ids, ascending, each once. Ids beyond the vocabulary are dropped: they can never be produced."""
    for value in values:
        if type(value) is not int or value < 0:
            raise InputError(f"{source}: {value!r} is given as the id of a token")
    return tuple(sorted({value for value in values if isinstance(value, int) and value < vocab_size}))


def layers_to_run(wanted: str, layers: int) -> int:
    """What `skip:WANTED` runs of a model with so many layers: a third of them where `wanted` is empty.

    Raises:
        InputError: it has no more than that.
    """
    if layers < 2:
        raise InputError("drafter skip: this model cannot run on its first layers alone; choose another")
    if wanted and int(wanted) >= layers:
        raise InputError(f"drafter skip:{wanted}: give a number of layers from 1 to {layers - 1}")
    return int(wanted) if wanted else max(1, layers // 3)
