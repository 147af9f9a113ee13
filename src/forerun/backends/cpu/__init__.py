"""The CPU backend: the Python face of the C++ core."""

from forerun.backends.cpu.backend import CpuBackend, usable_cores
from forerun.backends.cpu.curve import curve_key, known_curve, measure_curve, remembered_curve
from forerun.backends.cpu.load import check_options, load_backend

__all__ = [
    "CpuBackend",
    "check_options",
    "curve_key",
    "known_curve",
    "load_backend",
    "measure_curve",
    "remembered_curve",
    "usable_cores",
]
