"""Ctrl-C in `forerun train`: what was done is kept, and told."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from forerun.training.batches import Conversations
from forerun.training.store import Store
from forerun.training.trainer import CHECKPOINT, Trainer
from forerun.training.writer import Writer
from support.program import error_line, forerun
from support.tiny import Tiny, write_tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = Tiny(hidden=64, inner=96, heads=4, head_dim=16, layers=4)
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", tiny)


def interrupt(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, at: int) -> None:
    """Let the call of this number end as if Ctrl-C came."""
    honest, calls = getattr(kind, method), []

    def broken_off(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == at:
            raise KeyboardInterrupt
        return honest(*arguments)

    monkeypatch.setattr(kind, method, broken_off)


def test_while_data_is_written(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, Writer, "_step", 300)
    done = forerun("train", "data", "-m", model, "-o", tmp_path, "--tokens", 60_000, "--threads", 1)
    assert (done.returncode, done.stdout) == (130, b"")
    there = Store(tmp_path).tokens_written
    assert there > 0
    told = f"{tmp_path} holds {there:,} of 60,000 tokens; the same command goes on from there"
    assert done.stderr.decode() == f"forerun: interrupted: {told}\n"


@pytest.mark.parametrize("at", [1, 4])
def test_while_training(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    common = ("-m", model, "--tokens", 3_000, "--threads", 1)
    assert forerun("train", "data", *common, "-o", tmp_path / "data").returncode == 0
    interrupt(monkeypatch, Trainer, "_train", at)
    options = ("--data", tmp_path / "data", "--draft-vocab", 250, "--batch", 256, "--epochs", 2)
    done = forerun("train", "eagle", *common, *options, "-o", tmp_path / "head")
    assert (done.returncode, done.stdout) == (130, b"")
    assert (tmp_path / "head" / CHECKPOINT).exists()
    kept = rf"[1-9]\d?% of the training is done and kept in {re.escape(str(tmp_path))}/head"
    far = "before the first batch of this run" if at == 1 else kept
    assert re.fullmatch(
        rf"forerun: interrupted: {far}; the same command goes on from there\n", done.stderr.decode()
    )


def test_a_checkpoint_that_was_tampered_with(model: Path, tmp_path: Path) -> None:
    common = ("-m", model, "--threads", 1)
    assert forerun("train", "data", *common, "-o", tmp_path / "data", "--tokens", 1_000).returncode == 0
    options = ("--data", tmp_path / "data", "-o", tmp_path / "heads", "--draft-vocab", 250, "--batch", 256)
    assert forerun("train", "medusa", *common, *options, "--epochs", 0.5).returncode == 0
    path = tmp_path / "heads" / CHECKPOINT
    whole = torch.load(path, weights_only=True)
    first = whole["optimizer"]["state"][0]
    for part, wrong in (
        ("progress", {**whole["progress"], "epoch": "x"}),
        ("progress", {**whole["progress"], "seconds": float("nan")}),
        ("progress", {**whole["progress"], "tokens": -1}),
        ("optimizer", {"state": {0: {**first, "exp_avg": torch.zeros(3)}}}),
        ("optimizer", {"state": {0: {"step": first["step"]}}}),
        ("optimizer", {"state": {999: first}}),
        ("optimizer", {"state": {0: {**first, "exp_avg": first["exp_avg"] * float("nan")}}}),
        ("optimizer", {}),
        ("module", {**whole["module"], "vocabulary": torch.zeros(250, dtype=torch.int64)}),
        ("module", {**whole["module"], "vocabulary": torch.arange(250).flip(0)}),
    ):
        torch.save({**whole, part: wrong}, path)
        done = forerun("train", "medusa", *common, *options, "--epochs", 1)
        assert done.returncode == 2
        assert f"cannot go on from {path}" in error_line(done)
    torch.save(whole, path)
    assert forerun("train", "medusa", *common, *options, "--epochs", 1).returncode == 0


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "hydra"])
def test_a_training_that_diverges(model: Path, tmp_path: Path, kind: str) -> None:
    """It ends at once and says so, and the drafter that was there before stays."""
    head = tmp_path / "head"
    assert forerun("train", "data", "-m", model, "-o", tmp_path / "data", "--tokens", 3_000).returncode == 0
    options = ("--data", tmp_path / "data", "-o", head, "--threads", 1, "--draft-vocab", 250, "--batch", 256)
    assert forerun("train", kind, "-m", model, *options, "--epochs", 0.5).returncode == 0
    (head / CHECKPOINT).unlink()
    before = {path.name: path.read_bytes() for path in head.iterdir()}
    done = forerun("train", kind, "-m", model, *options, "--epochs", 1000, "--rate", 1e300)
    assert (done.returncode, done.stdout) == (2, b"")
    told = r"the training diverged after [\d,]+ tokens: .* lower --rate than 1e\+300, in another folder"
    assert re.search(told, error_line(done))
    assert not (head / CHECKPOINT).exists()
    assert {name: (head / name).read_bytes() for name in before} == before


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    assert forerun("train", "data", "-m", model, "-o", folder, "--tokens", 3_000).returncode == 0
    return folder


def copied(folder: Path, to: Path, change: Callable[[bytes], bytes]) -> Path:
    """The data with other hidden states."""
    shutil.copytree(folder, to)
    states = to / "features.bin"
    states.write_bytes(change(states.read_bytes()))
    return to


def refused(kind: str, model: Path, *options: object) -> str:
    """What a training says that cannot be."""
    options = (*options, "--threads", 1, "--draft-vocab", 250, "--batch", 256, "--epochs", 2)
    done = forerun("train", kind, "-m", model, *options)
    assert (done.returncode, done.stdout) == (2, b"")
    return error_line(done)


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "hydra"])
def test_hidden_states_that_are_not_finite(kind: str, model: Path, data: Path, tmp_path: Path) -> None:
    """Which folder they are in is told, and what was computed from them is not kept."""
    bad = copied(data, tmp_path / "bad", lambda states: b"\xff" * len(states))
    options = ("--data", data, "--data", bad, "-o", tmp_path / "head")
    told = f"{bad} holds hidden states that are not finite; write the data again"
    assert refused(kind, model, *options) == told
    shutil.copy(data / "features.bin", bad)
    options = (*options, "--threads", 1, "--draft-vocab", 250, "--batch", 256, "--epochs", 2)
    assert forerun("train", kind, "-m", model, *options).returncode == 0


def test_held_out_states_that_are_not_finite(model: Path, data: Path, tmp_path: Path) -> None:
    store = Store(data)
    apart = Conversations([store]).greedy_held_out[0].place
    starts = np.cumsum([0, *(store.index["tokens"] - 1)]) * store.position_bytes

    def spoil(states: bytes) -> bytes:
        start, end = starts[apart], starts[apart + 1]
        return states[:start] + b"\xff" * (end - start) + states[end:]

    bad = copied(data, tmp_path / "bad", spoil)
    assert f"{bad} holds hidden states that are not finite" in refused(
        "medusa", model, "--data", bad, "-o", tmp_path / "head"
    )


@pytest.mark.parametrize("kind", ["eagle3", "eagle", "medusa", "hydra", "draft"])
def test_a_start_that_is_not_finite(kind: str, model: Path, data: Path, tmp_path: Path) -> None:
    """A lower rate would not help."""
    own = ("--layers", 1) if kind == "draft" else ()
    first, options = tmp_path / "first", ("--threads", 1, "--draft-vocab", 250, "--batch", 256, *own)
    done = forerun("train", kind, "-m", model, "--data", data, "-o", first, *options, "--epochs", 0.1)
    assert done.returncode == 0, done.stderr
    whole = torch.load(first / CHECKPOINT, weights_only=True)
    trained = {name for name, w in whole["module"].items() if w.is_floating_point()}
    options = ("--data", data, "--start", first, "-o", tmp_path / "head", *own)
    spoilt = f"{first / CHECKPOINT} holds weights that are not finite; name another folder"
    for value, told in (
        (float("nan"), spoilt),
        (float("inf"), spoilt),
        (3e38, "the loss is not finite before anything is trained: "),
    ):
        module = {n: torch.full_like(w, value) if n in trained else w for n, w in whole["module"].items()}
        torch.save({**whole, "module": module}, first / CHECKPOINT)
        assert told in refused(kind, model, *options)


def test_prompts_that_are_fewer_than_tokens_wished_for(model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("One.\n\nTwo.\n")
    options = ("--prompts", tmp_path / "prompts.txt", "--tokens", 10**9)
    done = forerun("train", "data", "-m", model, "-o", tmp_path / "data", *options)
    assert (done.returncode, done.stdout) == (0, b"")
    there = Store(tmp_path / "data").tokens_written
    told = f"{tmp_path}/data holds {there:,} of 1,000,000,000 tokens"
    assert done.stderr.decode().splitlines()[-1] == f"forerun: there is no more to write about: {told}"
