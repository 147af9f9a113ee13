"""Draft trees. A chain is a tree with one branch, plain decoding a tree with only a root."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forerun._core import DraftTree

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]

__all__ = ["DoubleArray", "DraftTree", "FloatArray", "IntArray"]
