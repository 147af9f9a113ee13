"""What a head says in training is what it says where it serves: the same equations, rows and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import forerun  # noqa: E402
from forerun import _core  # noqa: E402
from forerun.backends.cpu import CpuBackend  # noqa: E402
from forerun.models.checkpoint import open_checkpoint  # noqa: E402
from forerun.models.heads import open_head  # noqa: E402
from forerun.models.rows import Rows  # noqa: E402
from forerun.sampling.fused import core_settings  # noqa: E402
from forerun.sampling.params import SamplingParams  # noqa: E402
from forerun.sampling.pipeline import Pipeline  # noqa: E402
from forerun.training.batches import Batch  # noqa: E402
from forerun.training.data import feature_taps  # noqa: E402
from forerun.training.eagle import Eagle  # noqa: E402
from forerun.training.eagle3 import Eagle3  # noqa: E402
from support.tiny import Tiny, write_tiny_gguf  # noqa: E402

TINY = Tiny(hidden=64, inner=96, heads=4, head_dim=16, layers=4, tied=False)
VOCAB = TINY.config().vocab_size
GUESSED = torch.arange(0, 250)
TEXT = np.random.default_rng(4).integers(0, VOCAB, 24).astype(np.int32)


@pytest.mark.parametrize("layout", ["small", "original"])
@pytest.mark.parametrize("kind", [Eagle, Eagle3])
def test_logits_and_chains(kind: type[Eagle] | type[Eagle3], layout: str, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TINY)
    torch.manual_seed(0)
    vocabulary = torch.arange(VOCAB) if (kind, layout) == (Eagle, "original") else GUESSED
    head = kind(open_checkpoint(path), vocabulary)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(parameter.bfloat16())  # as the file has them
    head.save(tmp_path / "head", "tiny", "original" if layout == "original" else "small")

    backend = forerun.load(str(path), dtype="bf16", threads=1).backend
    assert isinstance(backend, CpuBackend)
    loaded = backend.load_head(open_head(tmp_path / "head"), dtype="f32", text_tokens=0)
    n, taps = len(TEXT), feature_taps(4)
    rows = Rows.chain(TEXT, backend.new_cache(n))
    recorded = torch.tensor(backend.forward(rows, np.zeros(0, np.int32), taps).features).bfloat16().float()
    read = recorded[:, :3] if kind is Eagle3 else recorded[:, 3:]

    drafter = _core.EagleDrafter(
        loaded.core, core_settings(Pipeline(SamplingParams(), VOCAB, (), 1), 0), "f32", 64
    )
    drafter.observe(TEXT[:1], None)
    served = []
    for end in range(1, n):
        drafter.observe(TEXT[end : end + 1], read[end - 1 : end].flatten(1).numpy())
        drafter.propose(1, 1, 0.0)
        served.append(torch.tensor(drafter.logits))
    chain = _chain(drafter)

    batch = Batch(
        torch.tensor([[*TEXT.tolist(), chain[0][0]]]), recorded[None], torch.ones(1, n, dtype=torch.bool)
    )
    with torch.no_grad():
        first, second = (head.said(state) @ head.head.float().T for state in head.passes(batch, 2))
    for row, logits in enumerate(served):
        assert (logits - first[row]).norm() < 0.01 * first[row].norm(), row
    said = second[n - 1].softmax(-1)
    assert int(vocabulary[said.argmax()]) == chain[1][0]
    assert float(said.max()) == pytest.approx(chain[1][1], rel=0.05)


def _chain(drafter: _core.EagleDrafter) -> list[tuple[int, float]]:
    """The two likeliest tokens in a row, each with its chance after the one before."""
    tree = drafter.propose(40, 2, 0.0)
    tokens, children, chances = tree.ids, tree.children, tree.odds
    assert chances is not None
    node = max(children[0], key=chances.__getitem__)
    best = max(children[node], key=chances.__getitem__)
    return [(tokens[node], chances[node]), (tokens[best], chances[best] / chances[node])]
