"""What a drafter should gain where it serves, from the model's cost curve and from how deep it is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.backends.cpu import CpuBackend, measure_curve
from forerun.core.curve import CostCurve
from forerun.core.expected import best_chain


@dataclass(frozen=True)
class Costs:
    """What the target costs on this machine's CPU.

    Attributes:
        forward: seconds of a forward by its rows.
        weights: bytes that it reads.
    """

    forward: CostCurve
    weights: int

    def speed_up(self, by_depth: Sequence[float], guess_bytes: int) -> float:
        """How many times as fast as plain decoding the best chain of guesses is.

        Args:
            by_depth: the chance that all guesses up to a depth are right, at temperature 0.
            guess_bytes: weights that a guess reads, which is taken to be as fast as the target's reading.
        """
        plain = self.forward(1)
        guess = plain * guess_bytes / self.weights
        return best_chain(by_depth, self.forward, guess).tokens_per_second * plain


def measure_costs(backend: CpuBackend) -> Costs:
    """Of a loaded model, in a fraction of a second."""
    return Costs(CostCurve(measure_curve(backend)), backend.bytes_per_forward)
