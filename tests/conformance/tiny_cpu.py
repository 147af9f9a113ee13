"""A tiny random Llama-shaped model over the C++ core."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forerun.backends.cpu import load_backend
from forerun.models.backend import Backend
from forerun.models.checkpoint import Checkpoint, expected_tensors
from forerun.models.config import ModelConfig
from forerun.weights.tensor import Tensor


def tiny_cpu_backend(
    vocab_size: int = 24, dtype: str = "f32", sharpness: float = 3.0, layers: int = 2
) -> Backend:
    """Weights from a fixed seed; `sharpness` scales the logits."""
    config = ModelConfig(
        architecture="llama",
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=96,
        layers=layers,
        heads=4,
        kv_heads=2,
        head_dim=16,
        context=4096,
        norm_eps=1e-5,
        inv_freq=(10000.0 ** (-np.arange(0, 16, 2) / 16)).astype(np.float32),
        rope_scale=1.0,
        tied=False,
        qkv_bias=False,
        qk_norm=False,
        window=0,
        rope_interleaved=False,
        bos_token_id=None,
        eos_token_ids=(vocab_size - 1,),
        name="tiny",
    )
    tensors = {
        name: Tensor(name, "F32", values.shape, np.frombuffer(values.tobytes(), dtype=np.uint8))
        for name, values in tiny_weights(config, sharpness).items()
    }
    checkpoint = Checkpoint(Path("tiny"), config, tensors, "hf", {})
    return load_backend(checkpoint, dtype=dtype, threads=2)


def tiny_weights(config: ModelConfig, sharpness: float = 3.0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    made = {}
    for name, shape in expected_tensors(config):
        values = np.ones(shape) if len(shape) == 1 else draw.normal(size=shape) * 1.5 / np.sqrt(shape[-1])
        if name == "lm_head.weight":
            values *= sharpness
        made[name] = values.astype(np.float32)
    return made
