"""Hydra heads: Medusa's, and each also reads the tokens on the way to its own.

Ankner et al., Hydra (arXiv 2402.05109). Head k (from 0) reads c = [h_i ; e(x_i+1) ; ... ; e(x_i+1+k)], where
h_i is the target's last hidden state at token i and e its embedding, and guesses token i + 2 + k:

    y = R c + r + silu(W c + w)        the first block
    y = y + silu(W_b y + w_b)          each further one
    logits = O y + o                   the head's output layer, or the target's where it has none

Canonical tensors, for head k and hidden size H; every one may have a bias:

    heads.k.linear.weight, heads.k.residual.weight   W and R, [H, (k + 2) H]
    heads.k.blocks.b.weight                          [H, H]
    heads.k.out.weight                               [outputs, H]; all heads have one, or none has

As with Medusa, reference code lets blocks share weights; what is stored is what is executed here. Between the
blocks there may have been dropout, which leaves gaps in their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from forerun.errors import InputError
from forerun.models.config import LARGEST_VOCABULARY
from forerun.models.fields import Fields
from forerun.models.heads.head import Head, target_tokens
from forerun.models.heads.reading import Folder
from forerun.weights.tensor import Tensor

_BLOCK = re.compile(
    r"hydra_mlp\.(?P<head>\d{1,2})\.(?P<block>\d{1,2})\.(?P<part>linear|res_connection)\.(?P<rest>weight|bias)"
)
_OUT = re.compile(r"hydra_lm_head\.(?P<head>\d{1,2})\.(?:\d{1,2}\.)?(?P<rest>weight|bias)")
_EMBEDDING = "input_embed_fn.weight"
"""The target's embedding, which the authors' files hold too."""


def looks_like_hydra(folder: Folder) -> bool:
    named = "hydra_head_arch" in folder.config or folder.config.get("model_type") == "hydra"
    return named or any(name.startswith("hydra_mlp.") for name in folder.entries)


def read_hydra(folder: Folder) -> Head:
    """Heads as their authors store them, or without output layers; counted from the weights.

    Raises:
        InputError: of another architecture, or tensors that do not go together.
    """
    fields = Fields(folder.config, folder.source)
    _check_kind(folder, fields)
    tensors = _tensors(folder)
    first = tensors.get("heads.0.linear.weight")
    if first is None or len(first.shape) != 2:
        raise InputError(f"{folder.path} lacks the first block of its first Hydra head; fetch it again")
    hidden = first.shape[0]
    out = tensors.get("heads.0.out.weight")
    outputs = out.shape[0] if out is not None else folder.length("d2t")
    shapes = _shapes(tensors, hidden, None if out is None else outputs)
    folder.check(tensors, shapes)
    if extra := tensors.keys() - shapes.keys():
        raise InputError(f"{folder.path} holds {min(extra)!r}, which does not belong to its Hydra heads")
    vocab = fields.integer("vocab_size", 1, LARGEST_VOCABULARY) if fields.has("vocab_size") else None
    vocab = _vocabulary(folder, hidden, vocab)
    tokens = None if outputs is None else target_tokens(folder, vocab, outputs)
    return Head(
        path=folder.path,
        layout="hydra",
        family="hydra",
        hidden_size=hidden,
        features=hidden,
        taps=None,
        vocab_size=vocab,
        outputs=outputs,
        tokens=tokens,
        tensors=tensors,
        depth=_heads(tensors),
    )


def _check_kind(folder: Folder, fields: Fields) -> None:
    """Refuse what is called Hydra and computes otherwise."""
    kind = fields.text("hydra_head_arch", "mlp")
    if kind == "prefix-mlp":
        raise InputError(
            f"{folder.path} holds Hydra++ heads (prefix-mlp), which read a decoder layer of their own;"
            " Hydra heads of the kind mlp are known here"
        )
    if kind != "mlp":
        raise InputError(f"{folder.path} holds Hydra heads of the kind {kind!r}; only mlp is known here")
    offset = fields.integer("hidden_state_offset", 0, 1 << 16, 0)
    if offset != 0:
        raise InputError(
            f"{folder.path} holds Hydra heads that read the hidden state {offset} layers before the last"
            " (hidden_state_offset); only the last is read here"
        )
    blocks = [name for name in folder.entries if name.startswith("hydra_mlp.")]
    if blocks and not any("res_connection" in name for name in blocks):
        raise InputError(
            f"{folder.path} holds Hydra heads that are not grounded: they see no tokens of their path, as"
            " Medusa's; only grounded ones are read here"
        )


def _tensors(folder: Folder) -> dict[str, Tensor]:
    """By canonical names. A head's blocks are taken in the order of their numbers."""
    numbers: dict[str, set[int]] = {}
    for name in folder.entries:
        if match := _BLOCK.fullmatch(name):
            numbers.setdefault(match["head"], set()).add(int(match["block"]))
    tensors: dict[str, Tensor] = {}
    for name in folder.entries:
        if match := _BLOCK.fullmatch(name):
            place = sorted(numbers[match["head"]]).index(int(match["block"]))
            part = "residual" if match["part"] == "res_connection" else "linear"
            if place > 0:
                part = f"blocks.{place - 1}" if part == "linear" else f"blocks.{place - 1}.residual"
            folder.put(tensors, name, f"heads.{int(match['head'])}.{part}.{match['rest']}")
        elif match := _OUT.fullmatch(name):
            folder.put(tensors, name, f"heads.{int(match['head'])}.out.{match['rest']}")
    return tensors


def _heads(tensors: Mapping[str, Tensor]) -> int:
    return 1 + max(int(name.split(".")[1]) for name in tensors)


def _shapes(tensors: Mapping[str, Tensor], hidden: int, outputs: int | None) -> dict[str, tuple[int, ...]]:
    """What so many heads have. `outputs`: of their output layers; None: they have none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(_heads(tensors)):
        at = f"heads.{head}."
        blocks = sum(name.startswith(f"{at}blocks.") and name.endswith(".weight") for name in tensors)
        inputs = (head + 2) * hidden
        matrices = {"linear": (hidden, inputs), "residual": (hidden, inputs)}
        matrices |= {f"blocks.{block}": (hidden, hidden) for block in range(blocks)}
        if outputs is not None:
            matrices["out"] = (outputs, hidden)
        for name, shape in matrices.items():
            shapes[f"{at}{name}.weight"] = shape
            if f"{at}{name}.bias" in tensors:
                shapes[f"{at}{name}.bias"] = shape[:1]
    return shapes


def _vocabulary(folder: Folder, hidden: int, said: int | None) -> int | None:
    """The target's, by its embedding in the authors' files, or as the configuration says. The embedding
    itself is not needed: it is the target's."""
    if _EMBEDDING not in folder.entries:
        return said
    folder.taken.add(_EMBEDDING)
    shape = folder.entries[_EMBEDDING].shape
    if len(shape) != 2 or shape[1] != hidden:
        raise InputError(
            f"tensor {_EMBEDDING!r} in {folder.path} has the shape {shape}, not (tokens, {hidden})"
        )
    return shape[0]
