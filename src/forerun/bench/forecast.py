"""How fast a model will be, before it is loaded: from bytes, bandwidth and acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forerun.core.curve import CostCurve
from forerun.core.expected import Speculation, best_speculation
from forerun.models.memory import bytes_per_forward, kv_bytes_per_token, kv_type
from forerun.models.outline import Outline
from forerun.planning import Planner

TYPICAL_ACCEPTANCE = 0.7
"""What is assumed where nothing was measured."""


@dataclass(frozen=True)
class Forecast:
    """Tokens a second of plain decoding, and of the best chain of guesses (which may be none)."""

    plain: float
    speculative: Speculation


class Forecaster:
    """Predicts speeds of a planned model.

    A decode step takes as long as reading its weights and the context's keys and values takes. Unless the
    cost curve was measured, a forward over a few rows is taken to cost what one over a single row does, which
    holds where memory, not arithmetic, is the limit.

    Args:
        planner: the model and its drafters.
        bandwidth: bytes a second.
        acceptance: the chance that a guess is right where its predecessors are.
        curve: seconds of a forward by rows, measured after a short context; None if it was not.
    """

    def __init__(
        self, planner: Planner, bandwidth: float, acceptance: float, curve: Mapping[int, float] | None = None
    ) -> None:
        self._planner = planner
        self._bandwidth = bandwidth
        self._acceptance = acceptance
        self._curve = None if curve is None else CostCurve(curve)

    def at(self, context: int) -> Forecast:
        """Speeds after `context` tokens."""

        def cost(rows: int) -> float:
            weights = self._weights(self._planner.target) if self._curve is None else self._curve(rows)
            return weights + self._cache(self._planner.target, context)

        most = 0 if not self._planner.drafters else 16
        return Forecast(1 / cost(1), best_speculation(self._acceptance, cost, self._draft(context), most))

    def _weights(self, outline: Outline) -> float:
        """Seconds to read the weights once."""
        return bytes_per_forward(outline.config, outline.kinds, self._planner.dtype) / self._bandwidth

    def _cache(self, outline: Outline, context: int) -> float:
        """Seconds to read the keys and values of a context once."""
        kv = kv_type(self._planner.kv, self._planner.dtype)
        return kv_bytes_per_token(outline.config, kv) * context / self._bandwidth

    def _draft(self, context: int) -> float:
        """Seconds that a guess takes: of a cascade's drafters, the dearest is what counts."""
        seconds = 0.0
        for share in self._planner.at(context).shares[1:-1]:
            kind, _, detail = share.name.partition(":")
            if kind == "draft":
                outline = self._planner.drafts[share.name]
                seconds = max(seconds, self._weights(outline) + self._cache(outline, context))
            elif share.name in self._planner.heads:
                read = self._planner.heads[share.name].reads + share.kv
                seconds = max(seconds, read / self._bandwidth)
            elif kind == "skip":
                layers = self._planner.target.config.layers
                part = (int(detail) if detail.isdecimal() else max(1, layers // 3)) / layers
                whole = self._weights(self._planner.target) + self._cache(self._planner.target, context)
                seconds = max(seconds, part * whole)
        return seconds
