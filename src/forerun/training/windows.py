"""Which rows of a batch a drafter must compute for the rows that are judged.

A conversation's prompt, often half of it, is only attended to: it needs keys and values once. The rest of the
layer is computed for the answer, and for the few rows before it that its first rows are fed by.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """A conversation's window.

    Attributes:
        base: its first row among all rows of the batch.
        start, stop: its rows, counted from `base`.
        at: where they begin among those of all windows.
    """

    base: int
    start: int
    stop: int
    at: int

    @property
    def own(self) -> slice:
        """Its rows among those of all windows."""
        return slice(self.at, self.at + self.stop - self.start)

    @property
    def seen(self) -> slice:
        """All rows of its conversation up to its last one, among all rows of the batch."""
        return slice(self.base, self.base + self.stop)


@dataclass(frozen=True)
class Windows:
    """Rows of conversations that lie one after the other.

    Attributes:
        rows: int64 [n], all windows' rows among those of the batch.
        begins: bool [n]: the first of a window.
        judged: int64 [m], the judged rows among the n.
        spans: where each conversation's window is.
    """

    rows: Tensor
    begins: Tensor
    judged: Tensor
    spans: list[Span]


def windows_of(wanted: Tensor, before: int) -> Windows:
    """From so many rows before the first judged one to the last.

    Args:
        wanted: bool [conversations, rows]: which are judged.
    """
    length, spans, judged, at = wanted.shape[1], [], [], 0
    for number, flags in enumerate(wanted.cpu()):
        rows = flags.nonzero()[:, 0]
        if len(rows):
            start, stop = max(int(rows[0]) - before, 0), int(rows[-1]) + 1
            spans.append(Span(number * length, start, stop, at))
            judged.append(rows - start + at)
            at += stop - start
    every = [torch.arange(span.base + span.start, span.base + span.stop) for span in spans]
    none, device = torch.zeros(0, dtype=torch.int64), wanted.device
    begins = torch.zeros(at, dtype=torch.bool)
    begins[[span.at for span in spans]] = True
    return Windows(
        torch.cat([none, *every]).to(device), begins.to(device), torch.cat([none, *judged]).to(device), spans
    )


def one_row_on(state: Tensor, windows: Windows) -> Tensor:
    """Each row [n, hidden] gets what the row before it had; a window's first gets zeros."""
    shifted = torch.cat([torch.zeros_like(state[:1]), state[:-1]])
    return shifted.masked_fill(windows.begins[:, None], 0.0)
