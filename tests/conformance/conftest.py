"""The backends that the suite runs over: the readable one in numpy, and the C++ core in two arithmetics."""

from __future__ import annotations

import pytest

import forerun
from conformance.tiny_cpu import tiny_cpu_backend
from conformance.tiny_model import TinyBackend
from forerun.engine import Engine
from forerun.models.backend import Backend
from support.tiny import Tiny, write_tiny_gguf


@pytest.fixture(scope="session", params=["numpy", "cpu-bf16", "cpu-q8"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """A tiny random model of 24 tokens whose last one ends a text."""
    kind, _, which = request.param.partition("-")
    if kind == "numpy":
        return TinyBackend(sharpness=4.0)
    return tiny_cpu_backend(dtype=which)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A tiny model with a tokenizer of 291 tokens; it verifies 12 guesses a step."""
    path = write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", Tiny(hidden=64, inner=96))
    return forerun.load(str(path), threads=2, draft_tokens=12)
