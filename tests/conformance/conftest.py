"""The backends that the suite runs over."""

from __future__ import annotations

import pytest

from conformance.tiny_model import TinyBackend
from forerun.models.backend import Backend


@pytest.fixture(scope="session", params=["numpy-flat", "numpy-sharp"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """A tiny random model of 24 tokens whose last one ends a text."""
    sharpness = {"numpy-flat": 2.0, "numpy-sharp": 9.0}
    return TinyBackend(sharpness=sharpness[request.param])
