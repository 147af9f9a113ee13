"""`forerun train -o`: what is in the way there, and what an earlier layout left."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

pytest.importorskip("torch")

from forerun.errors import InputError
from forerun.models.heads import open_head
from forerun.training.folder import CARD, READ, check_output
from forerun.weights.hf_folder import MEDUSA_FILES, SINGLE
from support.program import error_line, forerun
from support.tiny import Tiny, write_tiny_hf

TINY = Tiny(hidden=64, inner=96, heads=4, head_dim=16, layers=4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_hf(tmp_path / "model", TINY)


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "hydra", "draft"])
def test_other_weights_are_not_written_over(kind: str, model: Path, tmp_path: Path) -> None:
    other = write_tiny_hf(tmp_path / "other", TINY)
    for folder, told in ((model, "is the model's own folder"), (other, f"holds {SINGLE}")):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert told in error_line(forerun("train", kind, "-m", model, "-o", folder, "--tokens", 500))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", READ)
def test_weights_that_would_be_read_instead_are_in_the_way(name: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=f"holds {name}, which no training has written"):
        check_output(tmp_path, str(model))
    (tmp_path / CARD).write_bytes(b"")
    check_output(tmp_path, str(model))


def test_the_layout_that_was_asked_for_last_is_served(model: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "heads"
    common = ("-m", model, "--threads", 1)
    assert forerun("train", "data", *common, "-o", data, "--tokens", 1_000).returncode == 0
    options = ("--data", data, "-o", out, "--epochs", 0.2, "--batch", 256)
    for layout, written, outputs in (
        ("original", MEDUSA_FILES[0], 291),
        ("small", SINGLE, 32),
        ("original", MEDUSA_FILES[0], 291),
    ):
        said = ("--layout", layout, *(("--draft-vocab", 32) if layout == "small" else ()))
        done = forerun("train", "medusa", *common, *options, *said)
        assert done.returncode == 0, done.stderr
        assert [path.name for path in out.glob("*.safetensors")] == [written]
        assert open_head(out).outputs == outputs


@pytest.mark.parametrize(
    ("kind", "name"), [("hydra", "~tilde"), ("draft", "smollm2-135m"), ("medusa", "\udcff")]
)
def test_odd_names(
    kind: str, name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's home, the default model's name, bytes that are no UTF-8: it is the folder that is tried."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["forerun", "train", kind, "-o", name])
    options = ("-o", name, "--tokens", 3_000, "--seed", 3, "--epochs", 0.2, "--threads", 1)
    done = forerun("train", kind, "-m", "model", *options, *(("--layers", 2) if kind == "draft" else ()))
    assert (done.returncode, b"served in trees" in done.stdout) == (0, True), done.stderr
    assert os.fsencode(f" -o {shlex.quote(name)}\n") in (tmp_path / name / CARD).read_bytes()


def test_what_is_not_judged_has_no_figures(model: Path, tmp_path: Path) -> None:
    """Of one conversation none is held out."""
    options = ("-o", tmp_path / "head", "--tokens", 1, "--epochs", 1, "--threads", 1)
    done = forerun("train", "hydra", "-m", model, *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().endswith("no text is held out to judge it by\n")
    assert done.stdout.decode() == f"{tmp_path / 'head'}: no text was held out to judge it by\n"
    card = (tmp_path / "head" / CARD).read_text()
    assert "No conversation at temperature 0 was held out" in card
    assert "mean" not in card.partition("held out")[2]
