"""Draft models: what they begin from, what they read, and that what training computes is what serves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gguf import GGMLQuantizationType, quants  # noqa: E402

from forerun import text  # noqa: E402
from forerun.backends.cpu import load_backend  # noqa: E402
from forerun.errors import InputError  # noqa: E402
from forerun.models.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from forerun.models.draft_vocabulary import draft_vocabulary  # noqa: E402
from forerun.models.rows import Rows  # noqa: E402
from forerun.models.shipped import DRAFT_FILE  # noqa: E402
from forerun.training.batches import Batch  # noqa: E402
from forerun.training.draft import Draft, Shape, chosen_layers, nearest  # noqa: E402
from forerun.training.rounding import Kind, round_to, rounded  # noqa: E402
from support.tiny import Tiny, write_tiny_gguf  # noqa: E402

torch.set_num_threads(1)
TINY = Tiny(hidden=64, inner=96, heads=4, head_dim=16, layers=4, tied=True)
VOCAB = TINY.config().vocab_size
SAID = torch.arange(0, VOCAB, 2)
TEXT = np.random.default_rng(4).integers(0, VOCAB, 24).astype(np.int32)


def made(checkpoint: Checkpoint, shape: Shape) -> Draft:
    torch.manual_seed(0)
    return Draft(checkpoint, text.from_gguf(checkpoint.metadata), SAID, shape)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_rounding_is_what_a_file_keeps(kind: Kind) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(40, 128) * torch.logspace(-3, 1, 40)[:, None]
    matrix[3, :32] = 0
    matrix[4, 32:64] = 0.25
    type = GGMLQuantizationType[kind]
    kept = quants.dequantize(quants.quantize(matrix.numpy(), type), type)
    assert np.array_equal(round_to(matrix, kind).numpy(), kept)


def test_the_gradient_of_rounding_passes_through() -> None:
    matrix = torch.randn(4, 64, requires_grad=True)
    weights = torch.randn(4, 64)
    (rounded(matrix) * weights).sum().backward()
    assert matrix.grad is not None
    assert torch.equal(matrix.grad, weights)


def test_which_layers_it_begins_from() -> None:
    for target, wanted in ((30, 4), (5, 4), (2, 1)):
        chosen = chosen_layers(target, wanted)
        assert chosen == sorted(set(chosen))
        assert len(chosen) == wanted
        assert 0 <= chosen[0] <= chosen[-1] < target


def test_an_unknown_token_reads_the_most_similar_one() -> None:
    embedding = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.9, 0.2], [-1.0, -1.0], [0.1, 3.0]])
    places = torch.tensor([0, 1, -1, 2, -1])
    assert nearest(embedding, places).tolist() == [0, 1, 1, 2, 0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "shape", [Shape(layers=2), Shape(layers=2, whole=True), Shape(32, 1), Shape(32, 1, True)]
)
def test_what_training_computes_is_what_serves(arch: str, tied: bool, shape: Shape, tmp_path: Path) -> None:
    tiny = replace(TINY, arch=arch, tied=tied)
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", tiny))
    draft = made(checkpoint, shape)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.copy_(parameter.bfloat16())  # as the file of a whole one has them
    folder = tmp_path / "draft"
    folder.mkdir()
    draft.save(folder)
    batch = Batch(
        torch.tensor([[*TEXT.tolist(), 0]]), torch.zeros(1, 24, 4, 64), torch.ones(1, 24, dtype=torch.bool)
    )
    with torch.no_grad():
        said = (draft.states(batch) @ draft.head.float().T)[0, :-1].numpy()

    saved = open_checkpoint(folder if shape.whole else folder / DRAFT_FILE)
    backend = load_backend(saved, dtype="f32", threads=1)
    part = draft_vocabulary(saved.metadata, saved.config.vocab_size, saved.path)
    assert (part is None) == shape.whole
    tokens = TEXT if part is None else part.read(TEXT)
    logits = backend.forward(
        Rows.chain(tokens, backend.new_cache(24)), np.arange(1, 24, dtype=np.int32)
    ).logits
    served = logits[:, SAID.numpy()] if part is None else logits
    for row in range(23):
        assert np.linalg.norm(served[row] - said[row]) < 0.03 * np.linalg.norm(said[row])  # bfloat16 rows
    if part is not None:
        assert part.tokens.tolist() == SAID.tolist()
        assert part.pieces == [text.from_gguf(checkpoint.metadata).piece(token) for token in SAID.tolist()]


def test_all_layers_are_too_many(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", TINY))
    with pytest.raises(InputError, match="4 layers is no smaller than the model, which has 4"):
        made(checkpoint, Shape())
