"""What a drafting head is, whatever family it is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from forerun.errors import InputError
from forerun.models.config import ModelConfig
from forerun.models.rope import Frequencies
from forerun.weights.tensor import Tensor
from forerun.words import counted

if TYPE_CHECKING:
    from forerun.models.heads.reading import Folder

IntArray = npt.NDArray[np.int32]

PADDING = 0.01
"""Vocabularies that differ in size by at most this part are taken to be one, padded differently."""

DRAFTER_NAMES = ("head", "eagle", "eagle3", "medusa", "hydra")
"""What a drafter's name begins with that is a head: any family's, or one's."""

TEXT_TOKENS = 1024
"""Tokens that a text adds at most to what a head can say (`Head.borrows_rows`)."""

EXECUTED_AS = {"eagle": "q4", "eagle3": "q4", "medusa": "q8", "hydra": "q8"}
"""How a family's matrices are executed. EAGLE's layer in 4 bits (its output layer in 8) guesses hardly worse
than in 8, and is read in little more than half the time; most of what Medusa and Hydra read is output
layers."""


@dataclass(frozen=True, eq=False)
class Head:
    """A head, complete: `tensors` holds exactly what its fields imply, each in its shape.

    path:        the folder, or the GGUF file
    layout:      who writes such ones: "eagle", "eagle3", "medusa", "hydra", "vllm", "speculators" or
                 "llama.cpp"
    family:      "eagle" (EAGLE-1 and 2, whose weights are the same), "eagle3", "medusa" or "hydra"
    hidden_size: values a state of the head has
    features:    values that it reads of the target at each token
    taps:        hidden states that these come from, as the file says; None where it does not
    vocab_size:  of the target that it was made for, as the file says; None where it does not
    outputs:     tokens that it can guess; None: the target's own head is used, and all
    tokens:      int32 [outputs], the target's token of each; None where they are the same
    tensors:     by canonical names, see the family's file
    outputs_are_targets: the output layer is a copy of the target's rows
    """

    path: Path
    layout: str
    family: str
    hidden_size: int
    features: int
    taps: tuple[int, ...] | None
    vocab_size: int | None
    outputs: int | None
    tokens: IntArray | None
    tensors: Mapping[str, Tensor]
    layer: Layer | None = None
    depth: int | None = None
    outputs_are_targets: bool = False

    @property
    def borrows_rows(self) -> bool:
        """Whether it guesses a part of the tokens by the target's own output layer. Then it can say any other
        as well, by that token's row: it says those of its text."""
        own = self.tensors.keys() & {"lm_head.weight", "heads.0.out.weight"}
        return self.tokens is not None and (self.outputs_are_targets or not own)

    def taps_for(self, target: ModelConfig) -> tuple[int, ...]:
        """The target's hidden states that the head reads, as Hugging Face counts them: 0 is the embedding.

        Some trainers count layers instead, whose outputs are one further on. Of the three that EAGLE-3 reads
        where nothing else is said, either way of counting is known.
        """
        layers = target.layers
        usual = (min(2, layers), layers // 2, max(layers - 3, 0))
        if self.taps is not None:
            return usual if self.taps == tuple(tap - 1 for tap in usual) else self.taps
        return usual if self.family == "eagle3" and "fc.weight" in self.tensors else (layers,)

    def check_fits(self, target: ModelConfig) -> None:
        """Refuse a head that was made for another model.

        Raises:
            InputError: says what does not fit.
        """
        wrong = self._misfit(target)
        if wrong is not None:
            raise InputError(f"the head {self.path} {wrong}; use one that was made for {target.name}")

    def _misfit(self, target: ModelConfig) -> str | None:
        """What is wrong about the target, if anything."""
        taps, hidden, vocab = self.taps_for(target), target.hidden_size, target.vocab_size
        if max(taps) > target.layers:
            return f"reads layer {max(taps)} of its target, which has {counted(target.layers, 'layer')}"
        if len(taps) > target.layers + 1:
            return f"reads {len(taps)} hidden states of its target, which has {target.layers + 1}"
        if self.features != len(taps) * hidden:
            read = f"{counted(self.features, 'value')} of {counted(len(taps), 'hidden state')}"
            return f"reads {read} of its target, whose hidden size is {hidden}"
        known, sure = self.vocab_size, "embed_tokens.weight" in self.tensors  # configurations say too many
        if known is not None and (sure or known < vocab) and not alike(known, vocab):
            return f"knows {counted(known, 'token')}, its target {vocab}"
        if self.tokens is not None and int(self.tokens.max()) >= vocab:
            return f"guesses token {self.tokens.max()}, and its target knows {counted(vocab, 'token')}"
        if self.tokens is None and self.outputs is not None and not alike(self.outputs, vocab):
            return f"guesses {counted(self.outputs, 'token')}, and its target knows {vocab}"
        if self.hidden_size != hidden and not self._stands_alone():
            return (
                f"of hidden size {self.hidden_size} needs an embedding or output of its own beside {hidden}"
            )
        return None

    def _stands_alone(self) -> bool:
        return {"embed_tokens.weight", "lm_head.weight"} <= self.tensors.keys()


def alike(one: int, other: int) -> bool:
    """Whether vocabularies of these sizes may be the same but for padding."""
    return abs(one - other) <= PADDING * max(one, other)


@dataclass(frozen=True, eq=False)
class Layer:
    """Sizes of a head's decoder layers, and what is special about the first.

    residual_is_normed: the first layer's residual begins with the normed state
    hands_on_normed:    what a step hands to the next is after the last norm
    fc_norms:           the features are normed in so many parts before `fc`
    """

    layers: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    inv_freq: Frequencies
    rope_scale: float
    residual_is_normed: bool = False
    hands_on_normed: bool = False
    fc_norms: int = 1


def target_tokens(folder: Folder, vocab_size: int | None, outputs: int) -> IntArray | None:
    """int32 [outputs] from `d2t`, whose entries are offsets: output i is the target's token i + d2t[i]. None
    without one."""
    offsets = folder.integers("d2t")
    if offsets is None:
        if vocab_size is not None and outputs < vocab_size:
            raise InputError(
                f"{folder.path} guesses {outputs} of {vocab_size} tokens and has no 'd2t' that says which;"
                " fetch it again"
            )
        return None
    tokens = offsets + np.arange(offsets.size)
    return checked_tokens(folder, "d2t", tokens, vocab_size, outputs)


def checked_tokens(
    folder: Folder, name: str, tokens: npt.NDArray[np.int64], vocab_size: int | None, outputs: int
) -> IntArray:
    """Tokens of a target, each once."""
    most = (1 << 31) - 1 if vocab_size is None else vocab_size
    if tokens.size != outputs:
        entries = counted(tokens.size, "entry", "entries")
        raise InputError(f"{folder.path}: {name!r} has {entries} for {counted(outputs, 'output')}")
    if (tokens < 0).any() or (tokens >= most).any():
        raise InputError(f"{folder.path}: {name!r} leads outside a vocabulary of {most}")
    ordered = np.sort(tokens)
    if (ordered[1:] == ordered[:-1]).any():
        raise InputError(f"{folder.path}: {name!r} leads to one token twice")
    result: IntArray = tokens.astype(np.int32)
    return result
