"""The parts of a Llama decoder in plain torch, for training."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.models.config import ModelConfig


class RMSNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich, arXiv 1910.07467), computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


Tables = tuple[Tensor, Tensor]
"""cos and sin of rotary embedding, float32 [rows, 1, head_dim / 2]."""


def of_rows(tables: Tables, rows: Tensor) -> Tables:
    """Those of some rows, int64 [n]."""
    return tables[0][rows], tables[1][rows]


class Rotary:
    """Rotary position embedding, half-split (Su et al., arXiv 2104.09864)."""

    def __init__(self, config: ModelConfig) -> None:
        self._inv_freq = torch.from_numpy(config.inv_freq.copy())
        self._scale = config.rope_scale

    def tables(self, positions: Tensor) -> Tables:
        """For these positions, int64 [n]."""
        angles = positions[:, None, None] * self._inv_freq.to(positions.device)
        return angles.cos() * self._scale, angles.sin() * self._scale


class _Rotated(torch.autograd.Function):
    """Its gradient is turned back by the same angles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return turned(upstream[0], cos, -sin), None, None


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair of values of the two halves of x turned by its angle; cos and sin float32 [..., half]."""
    first, second = x.chunk(2, -1)
    out = torch.empty_like(x)
    torch.sub(first * cos, second * sin, out=out[..., : cos.shape[-1]])
    torch.add(second * cos, first * sin, out=out[..., cos.shape[-1] :])
    return out


def rotate(x: Tensor, tables: Tables) -> Tensor:
    """Turn [rows, heads, head_dim] by the rows' positions."""
    out: Tensor = _Rotated.apply(x, *tables)  # type: ignore[no-untyped-call]
    return out


class Attention(nn.Module):
    """The projections of grouped-query attention. `inputs`: values a row of what is attended with."""

    def __init__(self, config: ModelConfig, inputs: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(inputs, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(inputs, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(inputs, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()

    def queries(self, x: Tensor, tables: Tables) -> Tensor:
        """Of rows [n, inputs]: [n, heads, head_dim], rotated."""
        return rotate(self.q_norm(self._heads(self.q_proj(x))), tables)

    def keys_and_values(self, x: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """Of rows [n, inputs]: each [n, key heads, head_dim], the keys rotated."""
        return rotate(self.k_norm(self._heads(self.k_proj(x))), tables), self._heads(self.v_proj(x))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


class MLP(nn.Module):
    """SwiGLU (Shazeer, arXiv 2002.05202)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """What Llama-shaped decoder layers have in common; each registers these, with what else it has, in the
    order in which its parameters are kept."""

    self_attn: Attention
    mlp: MLP
    post_attention_layernorm: RMSNorm

    def finish(self, state: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer after attention, whose heads lie side by side."""
        state = state + self.self_attn.o_proj(attended)
        out: Tensor = state + self.mlp(self.post_attention_layernorm(state))
        return out
