"""From a drafting head on disk to one on the CPU, beside the target that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forerun import _core
from forerun.backends.cpu.tensors import execution, finite, floats, place
from forerun.errors import InputError
from forerun.models.config import ModelConfig
from forerun.models.heads.frequent import frequent_part
from forerun.models.heads.head import EXECUTED_AS, TEXT_TOKENS, Head
from forerun.models.heads.padding import to_vocabulary
from forerun.weights.tensor import Tensor

HeadCore = _core.EagleDrafter | _core.MedusaDrafter | _core.HydraDrafter
HEAD_DTYPES = ("auto", "f32", "bf16", "q8", "q4")


@dataclass(frozen=True)
class CpuHead:
    """A loaded head, for any number of texts.

    core: the core's head
    taps: hidden states of the target that it reads
    name: for reports
    bytes: of its weights, the target's that it shares aside
    kv: how keys and values of its own are kept
    """

    core: _core.EagleHead | _core.MedusaHeads | _core.HydraHeads
    taps: tuple[int, ...]
    name: str
    bytes: int
    kv: str

    def drafter(self, settings: _core.SamplingSettings, longest: int) -> HeadCore:
        """The core's drafter for a text of at most `longest` tokens."""
        if isinstance(self.core, _core.MedusaHeads):
            return _core.MedusaDrafter(self.core, settings)
        if isinstance(self.core, _core.HydraHeads):
            return _core.HydraDrafter(self.core, settings)
        return _core.EagleDrafter(self.core, settings, self.kv, longest)


def load_head(
    head: Head,
    target: _core.Model,
    config: ModelConfig,
    *,
    dtype: str = "auto",
    text_tokens: int = TEXT_TOKENS,
    kernels: str = "",
) -> CpuHead:
    """Pack a head's weights.

    Args:
        head: that fits the target.
        target: whose embedding and output layer are used where the head has none.
        config: the target's.
        dtype: how weights are executed; "auto" as its family's are (`EXECUTED_AS`); "q4" keeps
            EAGLE's and Hydra's output layers in 8 bits.
        text_tokens: of each text that the head lacks, how many it may say all the same, if it guesses by the
            target's output layer.

    Raises:
        InputError: no such dtype, or numbers that are not finite.
    """
    if dtype not in HEAD_DTYPES:
        raise InputError(f"no dtype {dtype!r} for a head; choose one of {', '.join(HEAD_DTYPES)}")
    head.check_fits(config)
    head = to_vocabulary(frequent_part(head, config), config)
    format = EXECUTED_AS[head.family] if dtype == "auto" else dtype
    packer = _Packer(head.path, target.team, format)
    rows = _target_rows(head, target, format, text_tokens)
    core: _core.EagleHead | _core.MedusaHeads | _core.HydraHeads
    if head.family == "medusa":
        core = _medusa(head, target, packer, rows, kernels)
    elif head.family == "hydra":
        core = _hydra(head, target, packer, rows, kernels)
    else:
        core = _eagle(head, target, config, packer, rows, kernels)
    return CpuHead(
        core, head.taps_for(config), head.family, packer.bytes, "f32" if format == "f32" else "bf16"
    )


class _Packer:
    """Packs linear layers, and counts their bytes."""

    def __init__(self, path: Path, team: _core.Team, format: str) -> None:
        self._path = path
        self._team = team
        self._format = format
        self.bytes = 0

    def floats(self, tensor: Tensor) -> npt.NDArray[np.float32]:
        """A norm or a bias."""
        return floats(tensor, self._path)

    def linear(self, tensors: Mapping[str, Tensor], name: str, short: str = "") -> _core.Linear:
        """`short`: the name that says how the layer is executed, if not as most are."""
        bias = tensors.get(f"{name}.bias")
        return self._packed(tensors[f"{name}.weight"], None if bias is None else self.floats(bias), short)

    def stacked(self, tensors: Mapping[str, Tensor], names: Sequence[str]) -> _core.Linear:
        """Layers that read the same as one, the outputs of each behind those of the one before."""
        parts = [tensors[f"{name}.weight"] for name in names]
        kinds = {part.kind for part in parts}
        kind, outputs = kinds.pop() if len(kinds) == 1 else "F32", sum(part.shape[0] for part in parts)
        data = [part.data if part.kind == kind else self.floats(part).view(np.uint8) for part in parts]
        stack = Tensor(
            " and ".join(part.name for part in parts),
            kind,
            (outputs, parts[0].shape[1]),
            np.concatenate(data),
        )
        biases = [tensors.get(f"{name}.bias") for name in names]
        offsets = None
        if any(bias is not None for bias in biases):
            offsets = np.concatenate(
                [
                    np.zeros(part.shape[0], np.float32) if bias is None else self.floats(bias)
                    for part, bias in zip(parts, biases, strict=True)
                ]
            )
        return self._packed(stack, offsets)

    def _packed(
        self, tensor: Tensor, offsets: npt.NDArray[np.float32] | None, short: str = ""
    ) -> _core.Linear:
        outputs, inputs = tensor.shape
        format = execution(self._format, short)
        with finite(tensor, self._path):
            packed = _core.Linear(self._team, tensor.kind, tensor.data, outputs, inputs, format, offsets)
        self.bytes += packed.bytes
        return packed

    def rows(self, linear: _core.Linear, rows: _core.Ints | None) -> _core.Linear:
        """Some rows of another model's layer; all of them are shared."""
        if rows is None:
            return linear
        taken = linear.rows(self._team, rows, execution(self._format, "lm_head"))
        self.bytes += taken.bytes
        return taken

    def into(self, weights: _core.Weights, tensors: Mapping[str, Tensor], name: str) -> None:
        """One linear layer of the decoder, or one of its norms."""
        layer, short = place(name)
        tensor = tensors[name]
        if len(tensor.shape) == 1:
            weights.set_norm(layer, short, self.floats(tensor))
            return
        bias = tensors.get(name.removesuffix("weight") + "bias")
        outputs, inputs = tensor.shape
        format = execution(self._format, short)
        offsets = None if bias is None else self.floats(bias)
        with finite(tensor, self._path):
            _, size = weights.set_linear(
                layer, short, tensor.kind, tensor.data, outputs, inputs, format, None, offsets
            )
        self.bytes += size


def _eagle(
    head: Head,
    target: _core.Model,
    config: ModelConfig,
    packer: _Packer,
    rows: _core.TargetRows | None,
    kernels: str,
) -> _core.EagleHead:
    layer, tensors = head.layer, dict(head.tensors)
    assert layer is not None
    weights = _core.Weights(layer.layers, target.team)
    weights.set_entry(head.family, layer.residual_is_normed, layer.hands_on_normed)
    fc, norm = None, np.zeros(0, dtype=np.float32)
    if head.family == "eagle3":
        if "fc.weight" in tensors:
            fc = packer.linear(tensors, "fc")
            del tensors["fc.weight"]
            tensors.pop("fc.bias", None)
        if "fc_norm.weight" in tensors:
            norm = packer.floats(tensors.pop("fc_norm.weight"))
    for name in tensors:
        if not name.endswith(".bias"):
            packer.into(weights, tensors, name)
    if "embed_tokens.weight" not in tensors:
        weights.share("embed_tokens", target.embedding)
    if "lm_head.weight" not in tensors:
        weights.share("lm_head", packer.rows(target.head, head.tokens))
    embedding = tensors.get("embed_tokens.weight")
    return _core.EagleHead(
        head.hidden_size,
        layer.intermediate_size,
        layer.heads,
        layer.kv_heads,
        layer.head_dim,
        config.vocab_size if embedding is None else embedding.shape[0],
        config.vocab_size if head.outputs is None else head.outputs,
        layer.norm_eps,
        layer.rope_scale,
        np.ascontiguousarray(layer.inv_freq, dtype=np.float32),
        weights,
        fc,
        norm,
        layer.fc_norms,
        _tokens(head),
        rows,
        target.team,
        kernels,
    )


def _medusa(
    head: Head, target: _core.Model, packer: _Packer, rows: _core.TargetRows | None, kernels: str
) -> _core.MedusaHeads:
    assert head.depth is not None
    heads = []
    shared = packer.linear(head.tensors, "heads.0.out")
    for index in range(head.depth):
        at = f"heads.{index}."
        blocks = sum(name.startswith(f"{at}blocks.") and name.endswith(".weight") for name in head.tensors)
        own = index > 0 and f"{at}out.weight" in head.tensors
        out = packer.linear(head.tensors, f"{at}out") if own else shared
        heads.append(([packer.linear(head.tensors, f"{at}blocks.{block}") for block in range(blocks)], out))
    return _core.MedusaHeads(heads, _tokens(head), rows, target.team, kernels)


def _hydra(
    head: Head, target: _core.Model, packer: _Packer, rows: _core.TargetRows | None, kernels: str
) -> _core.HydraHeads:
    assert head.depth is not None
    shared = None if "heads.0.out.weight" in head.tensors else packer.rows(target.head, head.tokens)
    heads = []
    for index in range(head.depth):
        at = f"heads.{index}."
        first = packer.stacked(head.tensors, [f"{at}linear", f"{at}residual"])
        blocks = sum(name.startswith(f"{at}blocks.") and name.endswith(".weight") for name in head.tensors)
        further = [packer.linear(head.tensors, f"{at}blocks.{block}") for block in range(blocks)]
        out = packer.linear(head.tensors, f"{at}out", "lm_head") if shared is None else shared
        heads.append((first, further, out))
    return _core.HydraHeads(heads, target.embedding, _tokens(head), rows, target.team, kernels)


def _target_rows(head: Head, target: _core.Model, format: str, most: int) -> _core.TargetRows | None:
    """Where rows come from for tokens that the head lacks, executed as its own; None: none are wanted."""
    if not head.borrows_rows or most == 0:
        return None
    own = format if head.family == "medusa" else execution(format, "lm_head")
    return _core.TargetRows(target.head, own, most)


def _tokens(head: Head) -> _core.Ints:
    return np.zeros(0, dtype=np.int32) if head.tokens is None else head.tokens
