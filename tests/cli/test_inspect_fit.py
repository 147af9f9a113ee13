"""`forerun inspect --target`: whether a drafter fits a model, and why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.heads import Sizes, TinyHead
from support.program import error_line, forerun
from support.tiny import Tiny, vocabulary, write_tiny_gguf, write_tiny_hf

VOCAB = len(vocabulary())


def fit(*arguments: object, status: int = 0) -> dict[str, object]:
    done = forerun("inspect", *arguments, "--json")
    assert done.returncode == status, done.stderr
    found: dict[str, object] = json.loads(done.stdout)["fit"]
    return found


@pytest.fixture
def head(tmp_path: Path) -> TinyHead:
    return Sizes(target=256, hidden=256, heads=8, head_dim=32, vocab=VOCAB, outputs=100).eagle3()


def test_a_head_that_fits(tiny: Path, head: TinyHead, tmp_path: Path) -> None:
    folder = head.save(tmp_path / "head")
    assert fit(folder, "--target", tiny) == {
        "target": str(tiny),
        "fits": True,
        "why": None,
        "notes": ["reads the hidden states 2, 1, 0 of 0 to 2", f"guesses 100 of its {VOCAB} tokens"],
        "compared_ids": None,
        "different_ids": None,
    }
    shown = forerun("inspect", f"head:{folder}", "--target", tiny).stdout.decode()
    assert "fits             yes\n" in shown
    assert "guesses 100 of its 291 tokens" in shown


def test_positions_that_are_counted_otherwise_are_told(tiny: Path, head: TinyHead, tmp_path: Path) -> None:
    scaled = TinyHead({**head.config, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, head.arrays)
    found = fit(scaled.save(tmp_path / "head"), "--target", tiny)
    assert found["fits"]
    assert "rotary base or scaling is not the target's" in str(found["notes"])


def test_a_head_that_does_not_fit(tiny: Path, tmp_path: Path) -> None:
    folder = Sizes(target=64, vocab=VOCAB, outputs=100).eagle3(embedding=True).save(tmp_path / "head")
    found = fit(folder, "--target", tiny, status=1)
    assert not found["fits"]
    assert "whose hidden size is 256" in str(found["why"])
    done = forerun("inspect", folder, "--target", tiny)
    assert "whose hidden size is 256" in error_line(done)
    assert b"EAGLE-3" in done.stdout  # what it is, is told all the same


def test_what_matches_is_told(tiny: Path, tmp_path: Path) -> None:
    """Token by token, of a draft model."""
    draft = write_tiny_gguf(tmp_path / "draft.gguf", Tiny(layers=1, context=512))
    found = fit(draft, "--target", tiny)
    assert (found["fits"], found["compared_ids"], found["different_ids"]) == (True, VOCAB, 0)
    assert "silent beyond 512 tokens of 1,024" in str(found["notes"])
    folder = write_tiny_hf(tmp_path / "other", Tiny(layers=1))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = fit(folder, "--target", tiny)
    assert (found["fits"], found["different_ids"]) == (True, 2)  # few enough
    assert f"{ids['a']} is 'a', in the target 'b'" in str(found["notes"])
    letters = [token for token in ids if len(token) == 1]
    for one, other in zip(letters[::2], letters[1::2], strict=False):
        ids[one], ids[other] = ids[other], ids[one]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = fit(folder, "--target", tiny, status=1)
    assert "has another vocabulary" in str(found["why"])
