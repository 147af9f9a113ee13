"""Exact speculative decoding for language models on one's own machine."""

from __future__ import annotations

from forerun.version import __version__

TYPE_CHECKING = False  # as `typing` has it, which takes long to import
if TYPE_CHECKING:
    from forerun.answers import Increment, Result, Stream
    from forerun.api import load
    from forerun.core.report import Report
    from forerun.engine import Engine
    from forerun.errors import ForerunError, InputError
    from forerun.sampling.logprobs import TokenLogprob
    from forerun.sampling.params import SamplingParams
    from forerun.stepwise import SpeculativeEngine

__all__ = [
    "Engine",
    "ForerunError",
    "Increment",
    "InputError",
    "Report",
    "Result",
    "SamplingParams",
    "SpeculativeEngine",
    "Stream",
    "TokenLogprob",
    "__version__",
    "load",
]

_HOMES = {
    "Engine": "engine",
    "ForerunError": "errors",
    "Increment": "answers",
    "InputError": "errors",
    "Report": "core.report",
    "Result": "answers",
    "SamplingParams": "sampling.params",
    "SpeculativeEngine": "stepwise",
    "Stream": "answers",
    "TokenLogprob": "sampling.logprobs",
    "load": "api",
}


def __getattr__(name: str) -> object:
    """Import on first use: the command line must start, and be interrupted, without waiting for numpy."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'forerun' has no attribute {name!r}")
    value = getattr(import_module(f"forerun.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
