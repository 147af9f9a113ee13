"""The machine that this runs on, as far as measurements depend on it."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """The machine's memory, or 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def machine() -> dict[str, object]:
    """What a measurement says of where it was made: nothing that names the machine or its owner."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "memory_gb": round(memory_bytes() / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }
