"""`forerun inspect` and `forerun pull`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_models import HEAD_DIM, HIDDEN, KV_HEADS, LAYERS, VOCAB, shapes, write_folder, write_gguf

from forerun.cli.app import run


def size(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def facts(model: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert run(["inspect", str(model), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(write_gguf(tmp_path / "m.gguf", tied=True, kind="Q8_0"), capsys)
    everything = shapes("llama", tied=True)
    matrices = [shape for shape in everything.values() if len(shape) == 2]
    vectors = [shape for shape in everything.values() if len(shape) == 1]
    packed = sum(map(size, matrices)) // 32 * 34
    assert found["quantisation"] == {
        "Q8_0": {"tensors": len(matrices), "parameters": sum(map(size, matrices)), "bytes": packed},
        "F32": {
            "tensors": len(vectors),
            "parameters": sum(map(size, vectors)),
            "bytes": 4 * sum(map(size, vectors)),
        },
    }
    assert found["parameters"] == sum(map(size, everything.values()))
    assert found["weight_bytes"] == packed + 4 * sum(map(size, vectors))
    assert found["bytes_per_token"] == packed + 4 * sum(map(size, vectors)) + HIDDEN // 32 * 34
    kept = 2 * LAYERS * KV_HEADS * HEAD_DIM
    assert found["kv_bytes_per_token"] == {"f16": 2 * kept, "f32": 4 * kept}
    assert found["tokenizer"] == {"model": "gpt2", "tokens": VOCAB, "chat_template": False}
    assert (found["architecture"], found["context"], found["tied_head"]) == ("llama", 128, True)


def test_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "small", "qwen2", kind="BF16")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Q", "chat_template": "x"}))
    found = facts(folder, capsys)
    stored = 2 * sum(map(size, shapes("qwen2").values()))
    assert found["weight_bytes"] == stored
    assert (
        found["bytes_per_token"] == stored - 2 * VOCAB * HIDDEN + 2 * HIDDEN
    )  # untied: one row of the embedding
    assert found["tokenizer"] == {"file": "tokenizer.json", "class": "Q", "chat_template": True}


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(write_gguf(tmp_path / "m.gguf", kind="Q4_K"))]) == 0
    shown = capsys.readouterr().out
    for words in (
        "llama, 2 layers",
        "4 heads on 2 key-value heads of 64",
        "Q4_K",
        "128 tokens",
        "model gpt2",
    ):
        assert words in shown


def test_pull_prints_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert run(["pull", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"


def test_pull_refuses_what_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.gguf").write_bytes(b"no model")
    for path in (tmp_path, tmp_path / "a.gguf"):
        said = []
        for command in ("pull", "inspect"):
            assert run([command, str(path)]) == 2
            said.append(capsys.readouterr())
        assert said[0] == said[1]
        assert said[0].out == ""
