"""How likely guesses are: what their drafter says, set right by what became of guesses like them
(csrc/decoding/records.h)."""

from __future__ import annotations

from forerun._core import Judged, Records

__all__ = ["Judged", "Records", "reliance"]


def reliance(temperature: float) -> float:
    """The part of what drafters promise that comes true, before anything is known of them.

    Measured on answers of the default model: 1.0 at temperature 0, 0.9 at 0.5 and 0.7, 0.73 at 1; at 1.5 0.45
    of what a head promises, and less of what suffix matching does.
    """
    return 1.0 / (1.0 + 0.5 * temperature * temperature)
