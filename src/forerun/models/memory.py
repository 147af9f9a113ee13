"""How much memory a model takes, worked out from its configuration and its tensors' kinds alone.

Bytes that become resident: weights as the CPU core packs them (csrc/weights/packed.cpp), keys and values
(csrc/model/cache.cpp), the arrays of a forward (csrc/model/forward.cpp), and the program around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from forerun.models.checkpoint import expected_tensors
from forerun.models.config import ModelConfig
from forerun.weights.tensor import KINDS

TILE = 16  # outputs that are packed together
GROUP = 32  # inputs that share a scale
ARENA = 64 << 20  # weights are taken from mappings of this size,
HUGE_PAGE = 2 << 20  # on pages of this one
PREFILL_ROWS = 512
VERIFIED_ROWS = 17
STAGED_ROWS = 64  # places in a cache, beyond the text, for drafts that are being verified
CHUNK = 128  # positions whose softmax is one part
PART_HEADER = 16

FLOATS: Mapping[str, int] = {"f32": 4, "f16": 2, "bf16": 2}
KV_SIZES: Mapping[str, int] = {"f32": 4, "bf16": 2, "f16": 2, "q8": 1}
AUTOMATIC: Mapping[str, str] = {
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "Q4_0": "q4",
    "Q4_1": "q4",
    "Q4_K": "q4",
}
"""How kinds are executed with dtype auto; q8 where none is given."""
WITH_MINIMUM = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
HALF_GROUPS = ("Q6_K",)

PROGRAM = 52_000_000
"""Bytes of the interpreter, the libraries and small things, measured on x86-64 Linux."""
BYTES_A_TOKEN = 400
"""Of the vocabulary, in the tokenizer; measured."""
SUFFIX_BYTES = 110
"""What suffix matching keeps for a token of the text."""


@dataclass(frozen=True)
class Memory:
    """Bytes that a model takes.

    Attributes:
        weights: as they are executed.
        kv_per_token: keys and values of one token.
        kv: those of the whole context, and of the drafts behind it.
        activations: arrays of the largest forward, logits and features included.
    """

    weights: int
    kv_per_token: int
    kv: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations


def format_of(kind: str, dtype: str, name: str) -> str:
    """The format that executes a tensor: q4 keeps embedding and head in 8 bits."""
    if dtype == "auto":
        return AUTOMATIC.get(kind, "q8")
    return "q8" if dtype == "q4" and name in ("embed_tokens.weight", "lm_head.weight") else dtype


def packed_bytes(kind: str, format: str, outputs: int, inputs: int) -> int:
    """Bytes of a matrix [outputs, inputs] stored as `kind` and executed as `format`."""
    tiles = -(-outputs // TILE)
    if format in FLOATS:
        return tiles * _round((inputs + inputs % 2) * TILE * FLOATS[format], 64)
    keeps = KINDS[kind].block > 1 and (format == "q8" or AUTOMATIC.get(kind) == "q4")  # its own integers
    has_minimum = kind in WITH_MINIMUM if keeps else format == "q4"
    group = GROUP // 2 if keeps and kind in HALF_GROUPS else GROUP
    weights = GROUP * TILE * 2 // (1 if format == "q8" else 2)
    scales = 2 * (GROUP // group) * TILE * 2
    minima = 2 * TILE * 2 if has_minimum else 0
    return tiles * -(-inputs // (2 * GROUP)) * (weights + scales + minima)


def matrices(config: ModelConfig, kinds: Mapping[str, str], dtype: str) -> Iterator[tuple[str, str, int]]:
    """Name, format and bytes of every packed matrix, in the order they are loaded.

    `kinds` gives each tensor's kind in the file; a tensor that is missing there is BF16.
    """
    for name, shape in expected_tensors(config):
        if len(shape) == 2:
            kind = kinds.get(name, "BF16")
            format = format_of(kind, dtype, name)
            yield name, format, packed_bytes(kind, format, *shape)


def bytes_per_forward(config: ModelConfig, kinds: Mapping[str, str], dtype: str) -> int:
    """Bytes of weights that a forward reads: all matrices, but of an embedding that is no head only rows."""
    return sum(
        size
        for name, _, size in matrices(config, kinds, dtype)
        if config.tied or name != "embed_tokens.weight"
    )


def kv_bytes_per_token(config: ModelConfig, kv: str) -> int:
    """Keys and values of one token in every layer; values padded to 16, q8 with a scale each."""
    scales = 8 if kv == "q8" else 0
    return config.layers * config.kv_heads * (padded_values(config.head_dim) * KV_SIZES[kv] + scales)


def padded_values(head_dim: int) -> int:
    """Numbers that a head keeps of a token: a key, and a value padded to 16."""
    return head_dim + _round(head_dim, 16)


def kv_type(kv: str, dtype: str) -> str:
    """What `auto` stands for."""
    return ("f32" if dtype == "f32" else "bf16") if kv == "auto" else kv


def model_memory(
    config: ModelConfig,
    kinds: Mapping[str, str],
    *,
    dtype: str,
    kv: str,
    context: int,
    taps: int = 0,
) -> Memory:
    """What a model takes with a text of `context` tokens. `taps`: hidden states that a drafter reads."""
    packed = list(matrices(config, kinds, dtype))
    per_token = kv_bytes_per_token(config, kv_type(kv, dtype))
    floats = max((FLOATS.get(format, 0) for _, format, _ in packed), default=0)
    return Memory(
        weights=resident_weights([size for _, _, size in packed]),
        kv_per_token=per_token,
        kv=per_token * (context + STAGED_ROWS),
        activations=activation_bytes(config, floats, context, taps),
    )


def resident_weights(sizes: list[int]) -> int:
    """Bytes that matrices of these sizes make resident: those of each mapping end on a whole huge page."""
    total = used = 0
    for size in sizes:
        if used and used + size > ARENA:
            total += _round(used, HUGE_PAGE)
            used = 0
        used += _round(size, 64)
    return total + _round(used, HUGE_PAGE)


def activation_bytes(config: ModelConfig, floats: int, context: int, taps: int = 0) -> int:
    """The arrays of the largest forward: a block of the prompt, or a tree at the end of the context.

    floats: bytes of a prepared activation for the widest float weights; 0 where all are quantised (whose
        activations take 2 bytes, scales included).
    """
    heads = config.heads * config.head_dim
    prepared = (max(config.hidden_size, heads) + config.intermediate_size) * max(floats, 2)
    row = 4 * (config.hidden_size + config.head_dim + 2 * heads) + prepared
    part = 4 * config.heads * (PART_HEADER + _round(config.head_dim, 16))
    rows = min(PREFILL_ROWS, context)
    forward = max(rows * row, VERIFIED_ROWS * (row + part * -(-context // CHUNK)))
    logits = 4 * VERIFIED_ROWS * _round(config.vocab_size, TILE)
    return forward + logits + 4 * rows * taps * config.hidden_size


def program_bytes(vocab_size: int) -> int:
    """The program around a model."""
    return PROGRAM + BYTES_A_TOKEN * vocab_size


def _round(n: int, to: int) -> int:
    return -(-n // to) * to
