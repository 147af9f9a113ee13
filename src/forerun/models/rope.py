"""The frequencies of rotary position embeddings (RoFormer, arXiv 2104.09864) and their published scalings.

A pair of values k of a head of size d is turned by position * theta^(-2k/d). What is computed here follows
transformers (`modeling_rope_utils.py`) operation by operation in float32, so that long positions agree too.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Frequencies = npt.NDArray[np.float32]


def powers(theta: float, head_dim: int) -> Frequencies:
    """theta^(2k/d) for k < d/2, float32. The power itself is taken in float64, for numpy's float32 power is
    off by one unit in the last place far more often than torch's."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    result: Frequencies = (np.float64(theta) ** exponents.astype(np.float64)).astype(np.float32)
    return result


def plain(theta: float, head_dim: int) -> Frequencies:
    """Inverse frequencies without scaling, [d/2]."""
    result: Frequencies = np.float32(1.0) / powers(theta, head_dim)
    return result


def linear(frequencies: Frequencies, factor: float) -> Frequencies:
    """Position interpolation (arXiv 2306.15595): every position is divided by `factor`."""
    result: Frequencies = frequencies / np.float32(factor)
    return result


def llama3(frequencies: Frequencies, factor: float, low: float, high: float, original: int) -> Frequencies:
    """Llama 3.1's scaling: wavelengths above original/low are stretched by `factor`, those below
    original/high stay, those between are blended."""
    wavelengths = np.float32(2 * math.pi) / frequencies
    scaled = np.where(wavelengths > original / low, frequencies / np.float32(factor), frequencies)
    smooth = (np.float32(original) / wavelengths - np.float32(low)) / np.float32(high - low)
    blended = (np.float32(1.0) - smooth) * scaled / np.float32(factor) + smooth * scaled
    between = ~(wavelengths < original / high) & ~(wavelengths > original / low)
    return np.where(between, blended, scaled).astype(np.float32)


def yarn(
    theta: float, head_dim: int, factor: float, original: int, fast: float, slow: float, truncate: bool
) -> Frequencies:
    """YaRN (arXiv 2309.00071, section 3.2): pairs that turn more than `fast` times over the original context
    stay, those that turn fewer than `slow` times are interpolated by `factor`, with a linear ramp between."""

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip(
        (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1
    )
    keep = np.float32(1.0) - ramp
    base = powers(theta, head_dim)
    interpolated = np.float32(1.0) / (np.float32(factor) * base)
    result: Frequencies = interpolated * (np.float32(1.0) - keep) + np.float32(1.0) / base * keep
    return result


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's factor on cos and sin, 0.1 ln(factor) + 1: its temperature, shared by queries and keys."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
