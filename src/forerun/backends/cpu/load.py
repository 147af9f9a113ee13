"""From a checkpoint to a model on the CPU: every tensor packed once, in parallel, for the kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from forerun import _core
from forerun.backends.cpu.backend import CpuBackend, usable_cores
from forerun.backends.cpu.tensors import execution, finite, floats, place
from forerun.errors import InputError
from forerun.models.checkpoint import Checkpoint
from forerun.models.config import ModelConfig
from forerun.models.memory import kv_type
from forerun.weights.files import release

DTYPES = ("auto", "f32", "bf16", "q8", "q4")
KV_TYPES = ("auto", "f32", "bf16", "f16", "q8")

FEW_THREADS, MOST_THREADS_A_CORE = 16, 4
"""So many threads may be asked for anywhere, and so many for each usable core."""


def check_options(*, dtype: str, threads: int | None, kv: str, kernels: str = "") -> None:
    """Refuse what `load_backend` cannot use, before there is a checkpoint.

    Raises:
        InputError: an option that cannot be used here.
    """
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"no dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    if not isinstance(kv, str) or kv not in KV_TYPES:
        raise InputError(f"no cache type {kv!r}; choose one of {', '.join(KV_TYPES)}")
    cores = usable_cores()
    most = max(FEW_THREADS, MOST_THREADS_A_CORE * cores)
    if threads is not None and type(threads) is not int:
        raise InputError(f"threads is of type {type(threads).__name__}; give a whole number from 1 to {most}")
    if threads is not None and not 1 <= threads <= most:
        raise InputError(
            f"{threads} threads cannot be used; give a number from 1 to {most}: more than the usable cores,"
            f" here {cores}, only slow it down"
        )
    if not isinstance(kernels, str) or (kernels and kernels not in _core.available_kernels()):
        raise InputError(
            f"no kernels {kernels!r} here; this machine has {', '.join(_core.available_kernels())}"
        )


def load_backend(
    checkpoint: Checkpoint,
    *,
    dtype: str = "auto",
    threads: int | None = None,
    kv: str = "auto",
    kernels: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> CpuBackend:
    """Pack a checkpoint's weights and make a model of them.

    Args:
        dtype: how weights are executed. "auto" keeps each tensor's own type; "q4" keeps the embedding and
            the head in 8 bits.
        threads: threads to compute with; all usable cores by default.
        kv: how the cache keeps keys and values; "auto" is f32 with dtype f32 and bf16 otherwise.
        kernels: an instruction set by name; the machine's best by default.
        progress: called with (tensors packed, tensors in all).

    Raises:
        InputError: an option or a tensor that cannot be used; numbers that are not finite are refused.
    """
    check_options(dtype=dtype, threads=threads, kv=kv, kernels=kernels)
    threads = usable_cores() if threads is None else threads
    config = checkpoint.config
    try:
        team = _core.Team(threads)
    except RuntimeError:
        raise InputError(f"the system does not start {threads} threads; use fewer") from None
    weights, formats = _packed(checkpoint, team, dtype, progress)
    model = _core.Model(
        config.hidden_size,
        config.intermediate_size,
        config.heads,
        config.kv_heads,
        config.head_dim,
        config.vocab_size,
        config.norm_eps,
        config.window,
        config.rope_scale,
        np.ascontiguousarray(config.inv_freq, dtype=np.float32),
        weights,
        team,
        kernels,
    )
    return CpuBackend(config, model, kv_type(kv, dtype), formats)


def _packed(
    checkpoint: Checkpoint, team: _core.Team, dtype: str, progress: Callable[[int, int], None] | None
) -> tuple[_core.Weights, Counter[str]]:
    """All weights, and how many bytes of each type of execution a forward reads."""
    config, tensors, path = checkpoint.config, checkpoint.tensors, checkpoint.path
    weights = _core.Weights(config.layers, team)
    formats: Counter[str] = Counter()
    for done, (name, tensor) in enumerate(tensors.items()):
        layer, short = place(name)
        if len(tensor.shape) == 1:
            if not name.endswith(".bias"):
                weights.set_norm(layer, short, floats(tensor, path))
            continue
        outputs, inputs = tensor.shape
        order = _row_order(config, short)
        bias = tensors.get(name.removesuffix("weight") + "bias")
        offsets = None if bias is None else floats(bias, path)
        if offsets is not None and order is not None:
            offsets = offsets[order]
        format = execution(dtype, short)
        with finite(tensor, path):
            packed, bytes_read = weights.set_linear(
                layer, short, tensor.kind, tensor.data, outputs, inputs, format, order, offsets
            )
        release(tensor.data)
        if short != "embed_tokens" or config.tied:
            formats[packed] += bytes_read
        if progress is not None:
            progress(done + 1, len(tensors))
    return weights, formats


def _row_order(config: ModelConfig, short: str) -> npt.NDArray[np.int32] | None:
    """Source rows of q and k in the order of half-split rotation, where the file has pairs side by side."""
    if not config.rope_interleaved or short not in ("q_proj", "k_proj"):
        return None
    heads = config.heads if short == "q_proj" else config.kv_heads
    rows = np.arange(heads * config.head_dim, dtype=np.int32)
    return np.ascontiguousarray(rows.reshape(heads, config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1))
