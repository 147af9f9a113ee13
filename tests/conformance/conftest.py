"""The backends that the suite runs over: the readable one in numpy, and the C++ core in three arithmetics."""

from __future__ import annotations

import pytest

from conformance.tiny_cpu import tiny_cpu_backend
from conformance.tiny_model import TinyBackend
from forerun.models.backend import Backend


@pytest.fixture(scope="session", params=["numpy-flat", "numpy-sharp", "cpu-f32", "cpu-bf16", "cpu-q8"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """A tiny random model of 24 tokens whose last one ends a text."""
    kind, _, which = request.param.partition("-")
    if kind == "numpy":
        return TinyBackend(sharpness={"flat": 2.0, "sharp": 9.0}[which])
    return tiny_cpu_backend(dtype=which)
