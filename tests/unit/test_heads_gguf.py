"""EAGLE-3 heads in llama.cpp's files are the heads that folders hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conformance.tiny_cpu import tiny_cpu_backend
from forerun import _core
from forerun.core.protocols import Budget
from forerun.drafters.heads import HeadDrafter
from forerun.errors import InputError
from forerun.models.checkpoint import open_checkpoint
from forerun.models.heads import Head, is_head, open_head
from forerun.models.rows import Rows
from forerun.sampling.fused import core_settings
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.weights.gguf_file import read_gguf
from support.head_files import write_head_file
from support.heads import Sizes, TinyHead
from support.program import error_line, forerun
from support.tiny import write_tiny_gguf

TARGET = tiny_cpu_backend()
VOCAB = TARGET.config.vocab_size
TEXT = np.random.default_rng(6).integers(0, VOCAB, 12).astype(np.int32)
KINDS = {
    "plain": lambda sizes: sizes.eagle3(),
    "all tokens": lambda sizes: sizes.eagle3(embedding=True, reduced=False, taps=(0, 1, 2)),
    "normed residual": lambda sizes: sizes.eagle3(residual=True, taps=(2, 1, 0)),
    "norms": lambda sizes: sizes.eagle3(norms="input_norm", norm_output=True),
    "the target's head": lambda sizes: sizes.eagle3(head=False),
}


def both(kind: str, tmp_path: Path, quant: str = "F32", **options: object) -> tuple[Head, Head]:
    """A head read from a folder, and from a file."""
    sizes = Sizes(inner=96)
    tiny: TinyHead = KINDS[kind](sizes)
    file = write_head_file(tmp_path / "head.gguf", sizes, tiny, quant=quant, **options)  # type: ignore[arg-type]
    return open_head(tiny.save(tmp_path / "folder")), open_head(file)


def drafts(head: Head) -> tuple[list[int], list[float], list[float]]:
    """A tree after TEXT, its chances, and the logits of the first guess."""
    loaded = TARGET.load_head(head, dtype="f32")
    settings = core_settings(Pipeline(SamplingParams(), VOCAB, (VOCAB - 1,), 1), 0)
    assert isinstance(loaded.core, _core.EagleHead)
    core = _core.EagleDrafter(loaded.core, settings, loaded.kv, 100)
    drafter = HeadDrafter(core, loaded.taps, loaded.name, 0.0)
    states = TARGET.forward(Rows.chain(TEXT, TARGET.new_cache(64)), TEXT[:0], drafter.taps).features.copy()
    drafter.begin(TEXT[:1], None)
    drafter.observe(TEXT[1:].tolist(), states[:-1])
    tree = drafter.propose(Budget(12, 4))
    assert tree.chances is not None
    return tree.tokens.tolist(), tree.chances.tolist(), core.logits.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_same_head(kind: str, tmp_path: Path) -> None:
    folder, file = both(kind, tmp_path)
    assert is_head(file.path)
    assert file.layout == "llama.cpp"
    assert file.taps_for(TARGET.config) == folder.taps_for(TARGET.config)
    assert (file.tokens is None) == (folder.tokens is None)
    assert file.tensors.keys() == folder.tensors.keys()
    for name, tensor in file.tensors.items():
        assert np.array_equal(tensor.data, folder.tensors[name].data), name
    assert drafts(file) == drafts(folder)


def test_quantised_weights(tmp_path: Path) -> None:
    folder, file = both("plain", tmp_path, "Q8_0")
    assert file.tensors["fc.weight"].kind == "Q8_0"
    exact, rough = (np.array(drafts(head)[2]) for head in (folder, file))
    assert 0 < np.linalg.norm(rough - exact) < 0.02 * np.linalg.norm(exact)


def test_the_early_name_of_its_taps_and_scaled_frequencies(tmp_path: Path) -> None:
    factors = np.linspace(1, 4, 8)
    folder, file = both("normed residual", tmp_path, taps_key="extract_layers", factors=factors)
    assert file.taps == (2, 1, 0)
    assert file.layer is not None
    assert folder.layer is not None
    np.testing.assert_allclose(file.layer.inv_freq, folder.layer.inv_freq / factors, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tokens": np.full(15, 3)}, "leads to one token twice"),
        ({"tokens": np.arange(15) + 20}, "leads outside a vocabulary of 24"),
        ({"tokens": -np.arange(15)}, "leads outside a vocabulary"),
        ({"architecture": "llama"}, "is a model, not a drafting head; write draft:"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        both("plain", tmp_path, **options)


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    """Of a model's file they are refused."""
    sizes = Sizes()
    head = sizes.eagle3()
    path = write_head_file(tmp_path / "x.gguf", sizes, head, architecture="qwen2")
    assert read_gguf(path).tensors["d2t"].kind == "I64"
    with pytest.raises(InputError, match="tensor 'd2t' is I64; a model's are F32"):
        open_checkpoint(path)


def test_from_the_command_line(tmp_path: Path) -> None:
    target = write_tiny_gguf(tmp_path / "tiny.gguf")
    sizes = Sizes(target=256, hidden=256, vocab=291, outputs=100)
    file = write_head_file(tmp_path / "head.gguf", sizes, sizes.eagle3())
    assert b"EAGLE-3, as llama.cpp stores it" in forerun("inspect", file).stdout
    for name in (f"head:{file}", f"suffix+{file}", f"eagle3:{file}"):
        done = forerun("generate", "-m", target, "hello", "--drafter", name, "--max-tokens", 4, "--raw")
        assert done.returncode == 0, done.stderr
    assert b"weights" in forerun("plan", "-m", target, "--bandwidth", 9, "--drafter", f"head:{file}").stdout
    for arguments in (("-m", file), ("-m", target, "--drafter", f"draft:{file}")):
        done = forerun("generate", "hello", *arguments)
        assert done.returncode == 2
        assert f"it is the drafter head:{file}" in error_line(done)
