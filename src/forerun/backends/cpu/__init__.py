"""The CPU backend: the Python face of the C++ core."""

from forerun.backends.cpu.backend import CpuBackend, usable_cores
from forerun.backends.cpu.curve import measure_curve
from forerun.backends.cpu.load import load_backend

__all__ = ["CpuBackend", "load_backend", "measure_curve", "usable_cores"]
