"""The cost curve t(n): seconds of a target forward over n rows (csrc/decoding/curve.h)."""

from forerun._core import CostCurve

__all__ = ["CostCurve"]
