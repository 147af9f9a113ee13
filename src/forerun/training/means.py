"""What the loss needs of the target's distributions, kept from the first pass over the data for later ones.

A mean head row (see `losses`) costs two products with the output head, as many as the student's own; it never
changes, so later passes read it. Rows are kept as they were computed, in bfloat16, so that training goes on
bit for bit after an interruption.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from forerun.training.batches import Conversations, Place
from forerun.weights.bfloat16 import Halves

NAME = "means.bin"
SPARE = 1.5
"""The disk must have so many times the room that the file takes."""


class KeptMeans:
    """A file with the mean head rows of each conversation's wanted rows, and a checksum of them: 0 where they
    were not computed yet, wrong where a power cut tore them.

    Args:
        folder: of the training.
        data: its conversations.
        width: values of a row.
    """

    def __init__(self, folder: Path, data: Conversations, width: int) -> None:
        self.path = folder / NAME
        places = data.training
        self._starts = np.cumsum([0, *(place.wanted for place in places)], dtype=np.int64)
        self._at = {place: at for at, place in enumerate(places)}
        head, size = 4 * len(places), 2 * width * int(self._starts[-1])
        if not self.path.exists() or self.path.stat().st_size != head + size:
            with self.path.open("wb") as file:
                file.truncate(head + size)  # takes room only as it fills
        self._head, self._width = head, width
        self._file = self.path.open("r+b", buffering=0)
        self._sums = np.memmap(self.path, np.uint32, "r", shape=(len(places),))
        self._rows = np.memmap(self.path, np.uint16, "r", head, (int(self._starts[-1]), width))

    def read(self, group: Sequence[Place]) -> Tensor | None:
        """The rows of a batch, bfloat16 [wanted rows, width]; None if one is missing."""
        found = []
        for place in group:
            rows, at = self._of(place)
            if place.wanted and zlib.crc32(rows.data) != self._sums[at]:
                return None
            found.append(rows)
        return torch.from_numpy(np.concatenate(found).view(np.int16)).view(torch.bfloat16)

    def keep(self, group: Sequence[Place], means: Tensor) -> None:
        """Keep what was computed for a batch; what a full disk does not take will be computed again."""
        # Written, not mapped: a map of a file that the disk has no room for ends the process.
        values = means.cpu().view(torch.int16).numpy().view(np.uint16)
        start = 0
        for place in group:
            at, rows = self._at[place], np.ascontiguousarray(values[start : start + place.wanted])
            with suppress(OSError):
                os.pwrite(
                    self._file.fileno(), rows.data, self._head + 2 * self._width * int(self._starts[at])
                )
                os.pwrite(self._file.fileno(), np.uint32(zlib.crc32(rows.data)).tobytes(), 4 * at)
            start += place.wanted

    def remove(self) -> None:
        """Training is over."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _of(self, place: Place) -> tuple[Halves, int]:
        at = self._at[place]
        return self._rows[self._starts[at] : self._starts[at + 1]], at


def room_for_means(folder: Path, data: Conversations, width: int) -> bool:
    """Whether the disk has room for them."""
    return shutil.disk_usage(folder).free > SPARE * 2 * width * sum(place.wanted for place in data.training)
