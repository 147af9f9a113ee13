"""Exact speculative decoding for language models on one's own machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from forerun.version import __version__

if TYPE_CHECKING:
    from forerun.api import Engine, Increment, Result, Stream, load
    from forerun.core.report import Report
    from forerun.errors import ForerunError, InputError
    from forerun.sampling.logprobs import TokenLogprob
    from forerun.sampling.params import SamplingParams

__all__ = [
    "Engine",
    "ForerunError",
    "Increment",
    "InputError",
    "Report",
    "Result",
    "SamplingParams",
    "Stream",
    "TokenLogprob",
    "__version__",
    "load",
]

_HOMES = {
    "Engine": "api",
    "ForerunError": "errors",
    "Increment": "api",
    "InputError": "errors",
    "Report": "core.report",
    "Result": "api",
    "SamplingParams": "sampling.params",
    "Stream": "api",
    "TokenLogprob": "sampling.logprobs",
    "load": "api",
}


def __getattr__(name: str) -> object:
    """Import on first use: the command line must start, and be interrupted, without waiting for numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'forerun' has no attribute {name!r}")
    value = getattr(import_module(f"forerun.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
