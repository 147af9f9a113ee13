"""The cost curve t(n): seconds of a target forward over n rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

LEARN, LEARN_WIDTH = 0.1, 0.03
"""Weight of a new measurement for all widths, and for its own beside the others: a machine that gets slower
does so for all, and rows must not look cheap where only single ones were seen since."""

FIRST = 0.5
"""Weight of the first measurement: what was measured at another time may be wrong altogether."""

FORGET = 0.01
"""How far, at every step, what was measured of one width goes back to what the others say."""

SOME = 8
"""Steps that are forgotten together."""

OUTLIER = 3.0
"""A measurement counts at most as this many times what was expected: other programs run too."""


class CostCurve:
    """t(n) as measured beforehand, kept right by what the steps of a generation really take (contexts grow,
    machines get busy).

    Args:
        points: seconds by rows, at least for one row; between them t is linear, beyond them it goes on as
            between the last two (or in proportion, if there is only one).
        most: the widest forward asked about.
    """

    def __init__(self, points: Mapping[int, float], most: int = 64) -> None:
        if 1 not in points or min(points.values()) <= 0:
            raise ValueError("a cost curve needs positive seconds, for one row at least")
        widths = np.array(sorted(points), dtype=np.float64)
        seconds = np.maximum.accumulate([points[int(n)] for n in widths])
        n = np.arange(most + 1, dtype=np.float64)
        base = np.interp(n, widths, seconds)
        slope = (seconds[-1] - seconds[-2]) / (widths[-1] - widths[-2]) if widths.size > 1 else seconds[0]
        beyond = n > widths[-1]
        base[beyond] = seconds[-1] + slope * (n[beyond] - widths[-1])
        self._base: list[float] = base.tolist()
        self._scale = 1.0
        self._own = [1.0] * (most + 1)  # beside one row
        self._tried = [0] * (most + 1)
        self._seen = 0
        self.most = most

    def __call__(self, n: int) -> float:
        n = min(n, self.most)
        # more rows never cost less: where it looks so, that is noise
        return max(self._base[n] * self._own[n], self._base[1]) * self._scale

    def beyond_plain(self, rows: int) -> list[float]:
        """What 1, 2, ... so many rows more than one cost."""
        plain = self(1)
        return [self(1 + k) - plain for k in range(1, rows + 1)]

    def saw(self, n: int, seconds: float) -> None:
        """A forward over n rows took so long. It tells of widths near by, too, from half to twice as many:
        none stays wrong for not being tried."""
        if n > self.most:
            return
        off = min(seconds / self(n), OUTLIER)
        first = FIRST / (1 + self._tried[n])
        self._tried[n] += 1
        if n == 1:
            self._scale *= 1.0 + max(LEARN, first) * (off - 1.0)
        else:
            self._scale *= 1.0 + LEARN * (off - 1.0)
            change = max(LEARN_WIDTH, first) * (off - 1.0)
            for m in range(max((n + 1) // 2, 2), min(2 * n, self.most) + 1):
                self._own[m] *= 1.0 + change * (min(m, n) / max(m, n)) ** 2
        self._seen += 1
        if self._seen % SOME == 0:
            self._own = [own + SOME * FORGET * (1.0 - own) for own in self._own]
