"""Ctrl-C in `forerun train`: what was done is kept, and told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

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
        ("optimizer", {}),
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


def test_hidden_states_that_are_not_finite(model: Path, tmp_path: Path) -> None:
    data, head = tmp_path / "data", tmp_path / "head"
    assert forerun("train", "data", "-m", model, "-o", data, "--tokens", 3_000).returncode == 0
    states = data / "features.bin"
    states.write_bytes(b"\xff" * states.stat().st_size)
    done = forerun("train", "eagle3", "-m", model, "--data", data, "-o", head, "--threads", 1)
    assert (done.returncode, done.stdout) == (2, b"")
    assert "hidden states that are not finite; write the data again" in error_line(done)


def test_prompts_that_are_fewer_than_tokens_wished_for(model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("One.\n\nTwo.\n")
    options = ("--prompts", tmp_path / "prompts.txt", "--tokens", 10**9)
    done = forerun("train", "data", "-m", model, "-o", tmp_path / "data", *options)
    assert (done.returncode, done.stdout) == (0, b"")
    there = Store(tmp_path / "data").tokens_written
    told = f"{tmp_path}/data holds {there:,} of 1,000,000,000 tokens"
    assert done.stderr.decode().splitlines()[-1] == f"forerun: there is no more to write about: {told}"
