"""Exact speculative decoding for language models on one's own machine."""

from __future__ import annotations

from forerun.api import Engine, Increment, Result, Stream, load
from forerun.core.report import Report
from forerun.errors import ForerunError, InputError
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
    "load",
]
