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


class Rotary:
    """Rotary position embedding, half-split (Su et al., arXiv 2104.09864)."""

    def __init__(self, config: ModelConfig) -> None:
        self._inv_freq = torch.from_numpy(config.inv_freq.copy())
        self._scale = config.rope_scale

    def tables(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin, float32 [length, head_dim / 2]."""
        angles = torch.arange(length, device=device)[:, None] * self._inv_freq.to(device)
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


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn [..., length, head_dim] by its positions."""
    out: Tensor = _Rotated.apply(x, *tables)  # type: ignore[no-untyped-call]
    return out


class Attention(nn.Module):
    """The projections of grouped-query attention. `inputs`: values a row of what is attended with."""

    def __init__(self, config: ModelConfig, inputs: int) -> None:
        super().__init__()
        self.head_dim, self.groups = config.head_dim, config.heads // config.kv_heads
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(inputs, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(inputs, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(inputs, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()

    def project(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, rows, head_dim], rotated, one key head a query head."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        weight = torch.cat([part.weight for part in parts])
        bias = None if self.q_proj.bias is None else torch.cat([part.bias for part in parts])
        q, k, v = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in F.linear(x, weight, bias).split([part.weight.shape[0] for part in parts], -1)
        )
        q, k = rotate(self.q_norm(q), tables), rotate(self.k_norm(k), tables)
        return q, self._spread(k), self._spread(v)

    def _spread(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.groups, 1)


def side_by_side(heads: Tensor) -> Tensor:
    """[batch, heads, rows, head_dim] to [batch, rows, heads * head_dim]."""
    return heads.transpose(1, 2).flatten(2)


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
