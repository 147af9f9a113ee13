"""Tiny models to run the program on."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.tiny import Tiny, write_tiny_gguf


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in one GGUF file, with a context of 1,024 tokens."""
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that writes for minutes, if nobody stops it."""
    folder = tmp_path_factory.mktemp("endless")
    return write_tiny_gguf(folder / "endless.gguf", Tiny(context=1_000_000, hidden=64, inner=64, layers=1))
