"""What a drafting head takes of memory, by its family: of one on disk, and of one that does not exist yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forerun.errors import InputError
from forerun.models.config import ModelConfig
from forerun.models.heads.frequent import frequent_part, frequent_tokens
from forerun.models.heads.head import EXECUTED_AS, TEXT_TOKENS, Head
from forerun.models.heads.opening import find_head
from forerun.models.heads.padding import to_vocabulary
from forerun.models.memory import TILE, format_of, packed_bytes, padded_values

Shape = tuple[int, int]

USUAL = ("eagle", "eagle3", "medusa", "hydra")
"""Families of which a head of the usual shape can be planned that does not exist yet."""

USUAL_OUTPUTS = 32_000
"""Tokens that EAGLE-3 heads guess at most (the published ones of large vocabularies: exactly)."""

USUAL_HEADS = 4
"""Heads that Medusa's and Hydra's published models have (five were trained for some), of one block each."""

ROWS = 256  # of a forward that reads the prompt
WAITING = 3 * 128  # tokens whose features wait to be read, or are handed over
LEVEL = 16  # nodes of one depth, whose logits are there together


@dataclass(frozen=True)
class HeadSize:
    """What a head takes, in bytes.

    Attributes:
        weights: as they are executed; what the target lends whole is not counted.
        reads: of weights, the target's too, that guessing one depth reads; rows that a text adds aside.
        kv_per_token: keys and values of a token.
        text_rows: the output layer's rows that a text adds at most.
        taps: hidden states of the target that it reads.
        activations: arrays of its largest forward, logits and features that wait.
    """

    weights: int
    reads: int
    kv_per_token: int
    text_rows: int
    taps: int
    activations: int


def read_head_size(where: str, target: ModelConfig, family: str = "head") -> HeadSize:
    """Of the head that the drafter `family:where` names.

    Raises:
        InputError: as for `find_head`, or it is another model's.
    """
    head = find_head(where, family)
    head.check_fits(target)
    head = to_vocabulary(frequent_part(head, target), target)
    sizes = {
        name: _packed(head.family, name, tensor.kind, tensor.shape)
        for name, tensor in head.tensors.items()
        if len(tensor.shape) == 2
    }
    taps = len(head.taps_for(target))
    if head.family == "hydra":
        return _hydra(sizes, head.depth or 1, head.outputs or target.vocab_size, target, head.borrows_rows)
    if head.family == "medusa":
        return _medusa(sizes, head.outputs or target.vocab_size, target, head.borrows_rows)
    return _eagle(head, sizes, taps, target)


def usual_head_size(family: str, target: ModelConfig) -> HeadSize:
    """Of a head that does not exist yet, of the shape that published ones have.

    EAGLE-1 and 2 (Li et al., arXiv 2401.15077, 2406.16858): a layer as the target's, before it a matrix that
    joins two states; embedding and output layer are the target's, of the latter a copy of its frequent rows.
    EAGLE-3 (2503.01840): three states are joined to one, the layer reads two, the output layer is its own,
    over at most 32,000 tokens. Medusa (Cai et al., 2401.10774): a block and an output layer over the
    vocabulary for each guess. Hydra (Ankner et al., 2402.05109): the same, but a block also reads an
    embedding for each token of its path, by two matrices.
    """
    hidden, queries = target.hidden_size, target.heads * target.head_dim
    keys, inner = target.kv_heads * target.head_dim, target.intermediate_size
    if family == "medusa":
        shapes: dict[str, Shape] = {}
        for index in range(USUAL_HEADS):
            shapes[f"heads.{index}.blocks.0.weight"] = (hidden, hidden)
            shapes[f"heads.{index}.out.weight"] = (target.vocab_size, hidden)
        return _medusa(_all_packed(family, shapes), target.vocab_size, target)
    if family == "hydra":
        shapes = {}
        for index in range(USUAL_HEADS):
            for part in ("linear", "residual"):
                shapes[f"heads.{index}.{part}.weight"] = (hidden, (index + 2) * hidden)
            shapes[f"heads.{index}.out.weight"] = (target.vocab_size, hidden)
        return _hydra(_all_packed(family, shapes), USUAL_HEADS, target.vocab_size, target)
    third = family == "eagle3"
    inputs = 2 * hidden if third else hidden
    shapes = {
        "fc.weight": (hidden, 3 * hidden if third else 2 * hidden),
        "layers.0.self_attn.qkv": (queries + 2 * keys, inputs),
        "layers.0.self_attn.o_proj.weight": (hidden, queries),
        "layers.0.mlp.gate_up": (2 * inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
    }
    outputs = min(USUAL_OUTPUTS, target.vocab_size) if third else frequent_tokens(target)
    if third or outputs < target.vocab_size:
        shapes["lm_head.weight"] = (outputs, hidden)
    sizes = _all_packed(family, shapes)
    own = sum(sizes.values())
    lent = 0 if "lm_head.weight" in sizes else _packed(family, "lm_head.weight", "BF16", (outputs, hidden))
    more = 0 if third else _text_tokens(outputs, target)
    return HeadSize(
        own,
        own + lent - (sizes["fc.weight"] if third else 0),
        2 * target.kv_heads * padded_values(target.head_dim),
        _text_rows(family, more, hidden),
        3 if third else 1,
        _activations(target, hidden, inner, queries, outputs + more, 3 if third else 1),
    )


def _packed(family: str, name: str, kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a matrix as the family's are executed."""
    outputs, inputs = shape
    return packed_bytes(kind, format_of(kind, EXECUTED_AS[family], name), outputs, inputs)


def _all_packed(family: str, shapes: Mapping[str, Shape]) -> dict[str, int]:
    return {name: _packed(family, name, "BF16", shape) for name, shape in shapes.items()}


def _eagle(head: Head, sizes: Mapping[str, int], taps: int, target: ModelConfig) -> HeadSize:
    """Of either generation: what it has of its own, and of the target's output layer a copy of the rows that
    it guesses, if these are not all."""
    layer = head.layer
    if layer is None:
        raise InputError(f"{head.path} has no layer")
    outputs = target.vocab_size if head.outputs is None else head.outputs
    own = sum(sizes.values())
    lent = _packed(head.family, "lm_head.weight", "BF16", (outputs, head.hidden_size))
    output_layer = sizes.get("lm_head.weight", lent)
    if "lm_head.weight" not in sizes and head.tokens is not None:
        own += output_layer
    layers = sum(size for name, size in sizes.items() if name.startswith("layers."))
    joins = sizes.get("fc.weight", 0) if head.family == "eagle" else 0
    queries = layer.heads * layer.head_dim
    more = _text_tokens(outputs, target) if head.borrows_rows else 0
    return HeadSize(
        own,
        layers + joins + output_layer,
        layer.layers * layer.kv_heads * padded_values(layer.head_dim) * 2,
        _text_rows(head.family, more, head.hidden_size),
        taps,
        _activations(target, head.hidden_size, layer.intermediate_size, queries, outputs + more, taps),
    )


def _medusa(
    sizes: Mapping[str, int], outputs: int, target: ModelConfig, borrows_rows: bool = False
) -> HeadSize:
    """A guess of one depth reads one head; an output layer that all share is read for each."""
    first = sum(size for name, size in sizes.items() if name.startswith("heads.0."))
    hidden = target.hidden_size
    more = _text_tokens(outputs, target) if borrows_rows else 0
    activations = 4 * _whole(outputs + more) + 4 * hidden
    return HeadSize(sum(sizes.values()), first, 0, _text_rows("medusa", more, hidden), 1, activations)


def _hydra(
    sizes: Mapping[str, int], depth: int, outputs: int, target: ModelConfig, borrows_rows: bool = False
) -> HeadSize:
    """A guess reads one head, the deeper the larger (here one of the middle), and an output layer: its own,
    or a copy of the target's rows."""
    hidden = target.hidden_size
    own = sum(sizes.values())
    outs = sum(size for name, size in sizes.items() if name.endswith(".out.weight"))
    lent = 0 if outs else _packed("hydra", "lm_head.weight", "BF16", (outputs, hidden))
    copied = lent if borrows_rows else 0
    more = _text_tokens(outputs, target) if borrows_rows else 0
    row = _whole(outputs + more) + (depth + 5) * hidden  # of a tree's depth: logits, what is read, two blocks
    return HeadSize(
        own + copied,
        (own - outs) // depth + outs // depth + lent,
        0,
        _text_rows("hydra", more, hidden),
        1,
        LEVEL * 4 * row,
    )


def _text_tokens(outputs: int, target: ModelConfig) -> int:
    """How many tokens a text adds to what a head of so many can say, at most."""
    return min(TEXT_TOKENS, target.vocab_size - outputs)


def _text_rows(family: str, tokens: int, hidden: int) -> int:
    return _packed(family, "lm_head.weight", "BF16", (tokens, hidden)) if tokens else 0


def _activations(target: ModelConfig, hidden: int, inner: int, queries: int, outputs: int, taps: int) -> int:
    """Of a layer: rows of the prompt, or the logits and states of a tree's widest depth."""
    features = 4 * taps * target.hidden_size
    row = 4 * (4 * hidden + 2 * queries + 2 * inner) + features
    return ROWS * row + LEVEL * 4 * (_whole(outputs) + hidden) + WAITING * features


def _whole(outputs: int) -> int:
    return -(-outputs // TILE) * TILE
