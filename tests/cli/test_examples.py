"""Every shell example of the documents runs, on a tiny model in the place of the default one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli.test_documents import DOCUMENTS, _commands

from forerun.models import hub
from support.program import forerun
from support.tiny import Tiny, write_tiny_gguf

ELSEWHERE = ("README.md", "constrained.md")
"""Run by the build, and in the conformance suite."""

NEEDS_MORE = ("pull", "llama.cpp")
"""Of a network, of another package."""

SHORTER = {"60": "8", "500": "200"}
"""Seconds of tuning, and texts to count, that are enough for a tiny model."""

EXAMPLES = {
    tuple(arguments): name
    for name, text in DOCUMENTS.items()
    if name not in ELSEWHERE
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    for arguments in _commands(block)
    if not any(word in arguments for word in NEEDS_MORE)
}


def of_the_package(arguments: tuple[str, ...]) -> bool:
    """Whether a drafter of the package is named, which needs its model."""
    return any("smollm2-135m/" in argument for argument in arguments)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As deep as the default model, and with room for what the examples ask of it."""
    tiny = Tiny(hidden=64, inner=96, heads=4, kv_heads=2, head_dim=16, layers=30, context=4400)
    return write_tiny_gguf(tmp_path_factory.mktemp("small") / "small.gguf", tiny)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(arguments, id=f"{name}: {' '.join(arguments)}", marks=pytest.mark.model)
        if of_the_package(arguments)
        else pytest.param(arguments, id=f"{name}: {' '.join(arguments)}")
        for arguments, name in EXAMPLES.items()
    ],
)
def test_it_runs(
    arguments: tuple[str, ...], small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    if not of_the_package(arguments):
        monkeypatch.setattr(hub, "cached_path", lambda known: small)
    for name in ("model.gguf", "small.gguf"):
        Path(name).symlink_to(small)
    for name in ("my.jsonl", "prompts.jsonl"):
        Path(name).write_text("".join(json.dumps({"prompt": f"hello {i}"}) + "\n" for i in range(2)))
    done = forerun(*(SHORTER.get(argument, argument) for argument in arguments), input=b"some text\n")
    too_slow = done.returncode == 2 and b"too little was measured" in done.stderr  # says what to do
    assert done.returncode == 0 or (arguments[0] == "tune" and too_slow), done.stderr
    for option in ("--html", "--json", "--record"):
        if option in arguments[:-1]:
            assert Path(arguments[arguments.index(option) + 1]).stat().st_size
