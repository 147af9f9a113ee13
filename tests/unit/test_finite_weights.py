"""Weights that are NaN or infinite are refused when they are packed; all that is finite is taken."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from conformance.tiny_cpu import tiny_cpu_backend
from forerun import SamplingParams, _core, load
from forerun.backends.cpu import load_backend
from forerun.errors import ForerunError, InputError
from forerun.models.checkpoint import Checkpoint
from forerun.models.heads import open_head
from forerun.weights.tensor import KINDS, Tensor
from support.heads import Sizes, TinyHead
from support.random_models import as_kind, random_checkpoint, random_config
from support.tiny import Tiny, write_tiny_gguf

NUMBERS = {"F32": "<f", "F16": "<e", "BF16": "<f"}  # bfloat16: a float's upper half
NUMBERS_IN_BLOCKS = {  # byte of a block -> what is there is a float16
    "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,),
}  # fmt: skip
OUTPUTS, INPUTS = 19, 512
TARGET = tiny_cpu_backend()


def written(value: float, kind: str) -> bytes:
    """A number as the kind stores its own, or its scales."""
    raw = struct.pack(NUMBERS.get(kind, "<e"), value)
    return raw[2:] if kind == "BF16" else raw


@pytest.mark.parametrize("format", ["auto", "f32", "bf16", "q8", "q4"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_number_is_looked_at(kind: str, format: str) -> None:
    draw, team = np.random.default_rng(3), _core.Team(2)
    data = as_kind(draw.normal(size=(OUTPUTS, INPUTS)).astype(np.float32), kind, draw).copy()
    blocks = data.reshape(-1, KINDS[kind].size)
    places = NUMBERS_IN_BLOCKS.get(kind, (0,))
    size = len(written(0.0, kind))

    def pack() -> None:
        _core.Linear(team, kind, data, OUTPUTS, INPUTS, format)

    for value, row in ((np.nan, 0), (np.inf, len(blocks) - 1), (-np.inf, int(draw.integers(len(blocks))))):
        for at in places:
            before = blocks[row].copy()
            blocks[row, at : at + size] = np.frombuffer(written(value, kind), np.uint8)
            with pytest.raises(OverflowError, match="not a finite number"):
                pack()
            blocks[row] = before
    if kind in NUMBERS_IN_BLOCKS:  # whatever the other bytes are, they make finite numbers
        kept = [blocks[:, at : at + 2].copy() for at in places]
        blocks[:] = 255
        for at, scale in zip(places, kept, strict=True):
            blocks[:, at : at + 2] = scale
    pack()


def checkpoint_with(name: str, value: float) -> Checkpoint:
    found = random_checkpoint(random_config(qkv_bias=True))
    tensor = found.tensors[name]
    values = tensor.data.view(np.float32).copy()
    values[-1] = value
    spoilt = Tensor(name, "F32", tensor.shape, values.view(np.uint8))
    return replace(found, path=Path("some/where"), tensors={**found.tensors, name: spoilt})


@pytest.mark.parametrize(
    "name",
    [
        "embed_tokens.weight",
        "norm.weight",
        "layers.1.input_layernorm.weight",
        "layers.1.self_attn.k_proj.weight",
        "layers.1.self_attn.k_proj.bias",
        "layers.0.mlp.down_proj.weight",
    ],
)
def test_a_model(name: str) -> None:
    load_backend(checkpoint_with(name, 3.0))
    for value in (np.nan, np.inf):
        with pytest.raises(InputError) as caught:
            load_backend(checkpoint_with(name, value))
        assert "some/where" in str(caught.value)
        assert repr(name) in str(caught.value)


HEADS = {
    "eagle": lambda: Sizes().eagle(fc_bias=True, qkv_bias=True, embedding=True),
    "eagle3": lambda: Sizes().eagle3(norms="input_norm", embedding=True),
    "medusa": lambda: Sizes().medusa(),
    "hydra": lambda: Sizes().hydra(blocks=2),
}
CASES = [
    (family, name)
    for family, make in HEADS.items()
    for name, values in make().arrays.items()
    if values.dtype.kind == "f"
]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_head(tmp_path: Path, family: str, name: str) -> None:
    """Every tensor of every family."""
    made = HEADS[family]()
    values = made.arrays[name].copy()
    values.flat[values.size // 2] = np.nan
    head = open_head(TinyHead(made.config, {**made.arrays, name: values}, made.file).save(tmp_path / "bad"))
    with pytest.raises(InputError, match="not finite") as caught:
        TARGET.load_head(head)
    assert str(tmp_path / "bad") in str(caught.value)


class Loud(Tiny):
    """Its weights are finite; what they are multiplied to is not."""

    def weights(self) -> dict[str, np.ndarray]:
        found = super().weights()
        name = "layers.1.mlp.down_proj.weight"
        return {**found, name: np.copysign(np.float32(3e38), found[name])}


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
@pytest.mark.parametrize("regex", [None, "[a-z]+"])
def test_logits_that_overflow_are_told_with_their_model(
    acceptance: Literal["coupled", "rejection"], regex: str | None, tmp_path: Path
) -> None:
    sound, loud = write_tiny_gguf(tmp_path / "a.gguf"), write_tiny_gguf(tmp_path / "b.gguf", Loud())
    params = SamplingParams(max_tokens=3, acceptance=acceptance, regex=regex, seed=1, temperature=1)
    engine = load(str(sound), drafter="none")
    with pytest.raises(ForerunError, match=rf"^drafter draft:{loud} computed a logit that is not a number"):
        engine.generate("hello", params, drafter=f"draft:{loud}")
    with pytest.raises(ForerunError, match=r"^the model computed a logit that is not a number"):
        load(str(loud), drafter="none").generate("hello", params)
