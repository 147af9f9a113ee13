"""Random models in memory, of any family and any kind of weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from forerun.models.checkpoint import Checkpoint, expected_tensors
from forerun.models.config import ModelConfig
from forerun.weights.tensor import Tensor

K_QUANT_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where a block keeps its f16 scales


def random_config(
    *,
    hidden: int = 256,
    inner: int = 512,
    heads: int = 8,
    kv_heads: int = 2,
    head_dim: int = 32,
    vocab: int = 300,
    layers: int = 2,
    window: int = 0,
    tied: bool = True,
    qkv_bias: bool = False,
    qk_norm: bool = False,
) -> ModelConfig:
    """A small model; the sizes suit every kind of weights."""
    return ModelConfig(
        architecture="llama",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=2048,
        norm_eps=1e-5,
        inv_freq=(10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32),
        rope_scale=1.0,
        tied=tied,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        window=window,
        rope_interleaved=False,
        bos_token_id=None,
        eos_token_ids=(vocab - 1,),
        name="random",
    )


def as_kind(values: npt.NDArray[np.float32], kind: str, draw: np.random.Generator) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor. K-quants, which the gguf package cannot write, get random blocks."""
    if kind not in K_QUANT_SCALES:
        written = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        return np.frombuffer(np.ascontiguousarray(written).tobytes(), dtype=np.uint8)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = draw.integers(0, 256, (values.size // block, size), dtype=np.uint8)
    scale = np.float16(0.3 / np.sqrt(values.shape[-1]) / 64)
    for at in K_QUANT_SCALES[kind]:
        raw[:, at : at + 2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
    return raw.reshape(-1)


def random_checkpoint(config: ModelConfig, kind: str = "F32", seed: int = 0) -> Checkpoint:
    """Matrices of `kind`, vectors F32."""
    draw = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_tensors(config):
        if len(shape) == 1:
            values = (1 + 0.1 * draw.normal(size=shape)).astype(np.float32)
            tensors[name] = Tensor(name, "F32", shape, as_kind(values, "F32", draw))
        else:
            values = (draw.normal(size=shape) * 1.5 / np.sqrt(shape[-1])).astype(np.float32)
            tensors[name] = Tensor(name, kind, shape, as_kind(values, kind, draw))
    return Checkpoint(Path("random"), config, tensors, "hf", {})
