"""bfloat16 is the upper half of float32; numpy has no such type, so its bits are kept as uint16."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Halves = npt.NDArray[np.uint16]
HALF = np.uint32(16)
EXPONENT = np.uint16(0x7F80)


def to_bfloat16(values: npt.NDArray[np.float32]) -> Halves:
    """float32 to bits, rounded to nearest, ties to even. For finite values."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> HALF) & np.uint32(1))) >> HALF
    result: Halves = rounded.astype(np.uint16)
    return result


def all_finite(bits: Halves) -> bool:
    """Whether none is NaN or infinite."""
    return not (bits & EXPONENT == EXPONENT).any()


def from_bfloat16(bits: Halves) -> npt.NDArray[np.float32]:
    """Bits to float32, exactly."""
    result: npt.NDArray[np.float32] = np.left_shift(bits.astype(np.uint32), HALF).view(np.float32)
    return result
