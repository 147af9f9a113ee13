"""How torch uses this machine."""

from __future__ import annotations

import torch

from forerun.backends.cpu import usable_cores


def use_threads(threads: int | None) -> None:
    """Compute with so many threads; all usable cores by default."""
    torch.set_num_threads(usable_cores() if threads is None else threads)
