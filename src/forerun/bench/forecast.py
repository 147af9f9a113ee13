"""How fast a model will be, before it is loaded: from bytes, bandwidth and acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forerun.core.curve import CostCurve
from forerun.core.expected import Speculation, best_speculation
from forerun.models.config import layers_to_run
from forerun.models.memory import bytes_per_forward, kv_bytes_per_token, kv_type
from forerun.models.outline import Outline
from forerun.planning import LIGHT, Planner
from forerun.roster import head_named, split_cascade
from forerun.tuning import Choice

TYPICAL_ACCEPTANCE = 0.7
TYPICAL_SHARE = 0.67
"""What is assumed where nothing was measured: the chance that a guess is right, and the share of steps in
which drafters that look in the text alone have one. Of SmolLM2-135M-Instruct's answers to prompts of bench's
seven kinds, suffix matching with 8 guesses had 0.67 and 0.67 (the share: chat 0.54, extraction 1.00)."""

MEASURED, ASSUMED = "measured by tune", "assumed"


@dataclass(frozen=True)
class Guessing:
    """How well is guessed, and who says so.

    Attributes:
        acceptance: the chance that a guess is right where its predecessors are.
        source: of the acceptance, for people.
        share: of the steps, in which there are guesses.
        share_source: of the share.
    """

    acceptance: float
    source: str
    share: float
    share_source: str


def expected_guessing(given: float | None, tuned: Choice | None, drafters: Sequence[str]) -> Guessing:
    """What to predict with for these drafters: what was measured for others says nothing of them.

    Args:
        given: the acceptance that the user gives.
        tuned: what `forerun tune` chose and measured.
    """
    if tuned is None or tuple(map(head_named, split_cascade(tuned.drafter))) != tuple(drafters):
        tuned = Choice()
    acceptance, source = tuned.acceptance, MEASURED
    if given is not None:
        acceptance, source = given, "given"
    elif acceptance is None:
        acceptance, source = TYPICAL_ACCEPTANCE, ASSUMED
    if tuned.share is not None:
        return Guessing(acceptance, source, tuned.share, MEASURED)
    alone = all(name in LIGHT for name in drafters)
    return Guessing(acceptance, source, TYPICAL_SHARE if alone else 1.0, ASSUMED)


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
        guessing: how well the drafters guess.
        curve: seconds of a forward by rows, measured after a short context; None if it was not.
    """

    def __init__(
        self,
        planner: Planner,
        bandwidth: float,
        guessing: Guessing,
        curve: Mapping[int, float] | None = None,
    ) -> None:
        self._planner = planner
        self._bandwidth = bandwidth
        self._guessing = guessing
        self._curve = None if curve is None else CostCurve(curve)

    def at(self, context: int) -> Forecast:
        """Speeds after `context` tokens."""

        def cost(rows: int) -> float:
            weights = self._weights(self._planner.target) if self._curve is None else self._curve(rows)
            return weights + self._cache(self._planner.target, context)

        most = 0 if not self._planner.drafters else 16
        acceptance, share = self._guessing.acceptance, self._guessing.share
        best = best_speculation(acceptance, cost, self._draft(context), most, share)
        return Forecast(1 / cost(1), best)

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
                part = layers_to_run(detail, layers) / layers
                whole = self._weights(self._planner.target) + self._cache(self._planner.target, context)
                seconds = max(seconds, part * whole)
        return seconds
