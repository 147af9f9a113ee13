"""Medusa heads: residual blocks and an output layer each.

Canonical tensors, for head h of hidden size H:

    heads.h.blocks.l.weight (.bias)   [H, H]
    heads.h.out.weight                [outputs, H]; where only head 0 has one, it is all heads'

Reference code that was published with more than one block a head shares one block's weights between them;
what is stored is what is executed here.
"""

from __future__ import annotations

import re

from forerun.errors import InputError
from forerun.models.config import LARGEST_VOCABULARY
from forerun.models.fields import Fields
from forerun.models.heads.head import Head, checked_tokens
from forerun.models.heads.reading import Folder
from forerun.weights.tensor import Tensor

_ORIGINAL = re.compile(
    r"(?:medusa_head\.)?(?P<head>\d{1,2})\.(?P<layer>\d{1,2})\.(?P<rest>linear\.weight|linear\.bias|weight)"
)
_VLLM = re.compile(
    r"(?:medusa_heads\.)?blocks\.(?P<head>\d{1,2})\.layers\.(?P<layer>\d{1,2})\.(?P<rest>weight|bias)"
)
_VLLM_OUT = re.compile(r"(?:medusa_heads\.)?lm_heads\.(?P<head>\d{1,2})\.weight")


def looks_like_medusa(folder: Folder) -> bool:
    return any(_ORIGINAL.fullmatch(name) or _VLLM_OUT.fullmatch(name) for name in folder.entries)


def read_medusa(folder: Folder) -> Head:
    """Heads in either layout, counted from the weights: configurations often name fewer."""
    vllm = any(_VLLM_OUT.fullmatch(name) for name in folder.entries)
    tensors = _vllm(folder) if vllm else _original(folder)
    heads = 1 + max(int(name.split(".")[1]) for name in tensors)
    first = tensors.get("heads.0.out.weight")
    if first is None or len(first.shape) != 2:
        raise InputError(f"{folder.path} lacks the output layer of its first Medusa head; fetch it again")
    outputs, hidden = first.shape
    fields = Fields(folder.config, f"{folder.path}/config.json")
    vocab = fields.integer("vocab_size", 1, LARGEST_VOCABULARY) if fields.has("vocab_size") else None
    tokens = folder.integers("token_map")
    mapped = None if tokens is None else checked_tokens(folder, "token_map", tokens, vocab, outputs)
    if mapped is None and vllm and vocab is not None and outputs < vocab:
        raise InputError(
            f"{folder.path} guesses {outputs} of {vocab} tokens and has no 'token_map' that says which"
        )
    shapes: dict[str, tuple[int, ...]] = {}
    shared = sum(name.endswith(".out.weight") for name in tensors) == 1 and fields.flag(
        "original_lm_head", False
    )
    for head in range(heads):
        blocks = [
            name for name in tensors if name.startswith(f"heads.{head}.blocks.") and name.endswith("weight")
        ]
        for block in range(len(blocks)):
            shapes[f"heads.{head}.blocks.{block}.weight"] = (hidden, hidden)
            if f"heads.{head}.blocks.{block}.bias" in tensors:
                shapes[f"heads.{head}.blocks.{block}.bias"] = (hidden,)
        if head == 0 or not shared:
            shapes[f"heads.{head}.out.weight"] = (outputs, hidden)
    folder.check(tensors, shapes)
    if extra := tensors.keys() - shapes.keys():
        raise InputError(
            f"{folder.path} holds {min(extra)!r}, which does not belong to its {heads} Medusa heads"
        )
    return Head(
        path=folder.path,
        layout="vllm" if vllm else "medusa",
        family="medusa",
        hidden_size=hidden,
        features=hidden,
        taps=None,
        vocab_size=vocab,
        outputs=outputs,
        tokens=mapped,
        tensors=tensors,
        depth=heads,
        outputs_are_targets=shared,
    )


def _original(folder: Folder) -> dict[str, Tensor]:
    """`{h}.{l}.linear.weight` and `{h}.{layers}.weight`, in a file of their own or among a whole model's."""
    whole = any(name.startswith("medusa_head.") for name in folder.entries)
    tensors: dict[str, Tensor] = {}
    for name in folder.entries:
        match = _ORIGINAL.fullmatch(name)
        if match is None:
            if whole and not name.startswith("medusa_head."):
                folder.taken.add(name)  # the model that the heads were trained together with
            continue
        block = match["rest"].startswith("linear.")
        part = (
            f"blocks.{int(match['layer'])}.{match['rest'].removeprefix('linear.')}" if block else "out.weight"
        )
        folder.put(tensors, name, f"heads.{int(match['head'])}.{part}")
    return tensors


def _vllm(folder: Folder) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in folder.entries:
        if match := _VLLM.fullmatch(name):
            folder.put(
                tensors,
                name,
                f"heads.{int(match['head'])}.blocks.{int(match['layer'])}.{match['rest']}",
            )
        elif match := _VLLM_OUT.fullmatch(name):
            folder.put(tensors, name, f"heads.{int(match['head'])}.out.weight")
    return tensors
