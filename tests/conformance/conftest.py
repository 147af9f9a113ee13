"""The backends that the suite runs over: the readable one in numpy, and the C++ core in two arithmetics."""

from __future__ import annotations

import pytest

from conformance.tiny_cpu import tiny_cpu_backend
from conformance.tiny_model import TinyBackend
from forerun.models.backend import Backend


@pytest.fixture(scope="session", params=["numpy", "cpu-bf16", "cpu-q8"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """A tiny random model of 24 tokens whose last one ends a text."""
    kind, _, which = request.param.partition("-")
    if kind == "numpy":
        return TinyBackend(sharpness=4.0)
    return tiny_cpu_backend(dtype=which)
