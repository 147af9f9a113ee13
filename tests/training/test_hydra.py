"""Hydra heads in training: the published equations, where they begin, and what is written of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

import forerun  # noqa: E402
from forerun.errors import InputError  # noqa: E402
from forerun.models.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from forerun.models.heads import open_head  # noqa: E402
from forerun.training.batches import Batch  # noqa: E402
from forerun.training.hydra import Hydra  # noqa: E402
from forerun.training.least_squares import RIDGE, fitted  # noqa: E402
from forerun.training.weights import head_rows, values  # noqa: E402
from forerun.weights.hf_folder import HYDRA_FILES, SINGLE  # noqa: E402
from support.tiny import Tiny, write_tiny_gguf  # noqa: E402

TINY = Tiny(hidden=64, inner=96, heads=4, head_dim=16, layers=4, tied=False)
SAID = torch.arange(0, 200)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", TINY))


def batch(rows: int = 16) -> Batch:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 200, (2, rows + 1), generator=draw)
    features = torch.randn(2, rows, 4, 64, generator=draw).bfloat16()
    wanted = torch.zeros(2, rows, dtype=torch.bool)
    wanted[:, 5 : rows - 4] = True
    wanted[0, :2] = True  # nothing foretells the first row two ahead
    return Batch(tokens, features, wanted)


def random(checkpoint: Checkpoint, heads: int = 3, blocks: int = 2, said: torch.Tensor = SAID) -> Hydra:
    torch.manual_seed(0)
    made = Hydra(checkpoint, said, heads, blocks)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    return made


def as_published(tensors: dict[str, torch.Tensor], head: int, read: torch.Tensor) -> torch.Tensor:
    """What a head gives its output layer, from a file's tensors and c [n, (head + 2) hidden]."""

    def of(name: str, x: torch.Tensor) -> torch.Tensor:
        at = f"hydra_mlp.{head}.{name}"
        return x @ tensors[f"{at}.weight"].T + tensors[f"{at}.bias"]

    y = of("0.res_connection", read) + torch.nn.functional.silu(of("0.linear", read))
    block = 1
    while f"hydra_mlp.{head}.{block}.linear.weight" in tensors:
        y = y + torch.nn.functional.silu(of(f"{block}.linear", y))
        block += 1
    return y


def read_at(one: Batch, embedding: torch.Tensor, c: int, i: int, head: int) -> torch.Tensor:
    """c of the equations for a head at row i of a conversation, [1, (head + 2) hidden]."""
    path = [embedding[one.tokens[c, i + 1 + step]] for step in range(head + 1)]
    return torch.cat([one.features[c, i, 3].float(), *path])[None]


@pytest.mark.parametrize("layout", ["small", "original"])
def test_drafted_logits_are_the_trained_ones(layout: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    said = SAID if layout == "small" else torch.arange(TINY.config().vocab_size)
    student, one = random(checkpoint, said=said), batch()
    student.save(tmp_path / "heads", None, layout)
    backend = forerun.load(str(tmp_path / "tiny.gguf"), threads=1).backend
    heads = backend.load_head(open_head(tmp_path / "heads"), dtype="f32").core
    for number, (state, foretold) in enumerate(student.states(one)):
        for (c, i), found in zip(one.wanted.nonzero()[foretold].tolist(), state, strict=True):
            path = one.tokens[c, i - number + 1 : i + 2].tolist()
            drafted = torch.tensor(heads.logits(one.features[c, i - number, 3].float().numpy(), path))
            trained = student.output.float() @ found
            assert (drafted - trained).norm() < 0.01 * trained.norm()


@pytest.mark.parametrize("layout", ["small", "original"])
def test_what_is_written_computes_what_was_trained(
    layout: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """By the published equations, with the target's own embeddings, whatever the trained heads read."""
    said = SAID if layout == "small" else torch.arange(TINY.config().vocab_size)
    student, one = random(checkpoint, said=said), batch()
    for parameter in student.parameters():
        parameter.data = parameter.data.bfloat16().float()  # as the file rounds
    assert student.scale != 1
    student.save(tmp_path, None, layout)
    head = open_head(tmp_path)
    written = tmp_path / (SINGLE if layout == "small" else HYDRA_FILES[0])
    tensors = {name: tensor.float() for name, tensor in load_file(written).items()}
    embedding = values(checkpoint.tensors["embed_tokens.weight"]).bfloat16().float()
    for number, (state, foretold) in enumerate(student.states(one)):
        wanted = one.wanted.nonzero()[foretold]
        for (c, i), found in zip(wanted.tolist(), state, strict=True):
            expected = as_published(tensors, number, read_at(one, embedding, c, i - number, number))
            assert torch.allclose(found, expected[0], rtol=1e-4, atol=1e-4)
    assert (head.family, head.depth) == ("hydra", 3)
    if layout == "small":
        assert head.tokens is not None
        assert head.tokens.tolist() == SAID.tolist()
    else:
        rows = values(head.tensors["heads.2.out.weight"])
        assert torch.equal(rows, head_rows(checkpoint).bfloat16().float())


def test_hydras_loss(checkpoint: Checkpoint) -> None:
    """Head k at row i tells what the target's head says k + 1 rows on, where that is judged."""
    student, one = random(checkpoint), batch()
    output, expected = student.output.float(), []
    for number, (state, foretold) in enumerate(student.states(one)):
        at = one.wanted.nonzero()[foretold].tolist()
        assert len(at) == sum(1 for _, i in one.wanted.nonzero().tolist() if i >= number)
        entropies = [
            torch.nn.functional.cross_entropy(
                output @ said, (output @ one.features[c, i + 1, 3].float()).softmax(-1)
            )
            for (c, i), said in zip(at, state, strict=True)
        ]
        expected.append(0.8**number * sum(entropies) / len(at))
    found, first = student.loss(one, student.targets(one))
    assert found.item() == pytest.approx(sum(expected).item() / (1 + 0.8 + 0.64), rel=0.01)
    assert first == pytest.approx(expected[0].item(), rel=0.01)


def test_heads_read_their_path_and_nothing_later(checkpoint: Checkpoint) -> None:
    student, one, row = random(checkpoint), batch(), 8
    before = [state for state, _ in student.states(one)]
    for token in range(row + 3):
        tokens = one.tokens.clone()
        tokens[1, token] = (tokens[1, token] + 1) % 200
        after = student.states(Batch(tokens, one.features, one.wanted))
        for number, (state, foretold) in enumerate(after):
            at = one.wanted.nonzero()[foretold].tolist().index([1, row])
            # its state is that of token row - number
            read = row - number + 1 <= token <= row + 1
            assert torch.equal(state[at], before[number][at]) != read


def test_heads_begin_as_the_targets_own(checkpoint: Checkpoint) -> None:
    one = batch()
    rows = one.wanted.flatten().nonzero()[:, 0]
    for number, (state, foretold) in enumerate(Hydra(checkpoint, SAID, 3, 2).states(one)):
        assert torch.equal(state, one.features[:, :, 3].flatten(0, 1)[rows[foretold] - number].float())


def test_heads_go_on_from_others(checkpoint: Checkpoint) -> None:
    """Blocks and heads that the earlier ones lack change nothing; what they have more of is left out."""
    shallow, one = random(checkpoint, 3, 1), batch()
    deep, few = Hydra(checkpoint, SAID, 4, 3), Hydra(checkpoint, SAID, 2, 1)
    for heads in (deep, few):
        heads.load_state_dict(heads.grown(shallow.state_dict()))
    before, grown = list(shallow.states(one)), list(deep.states(one))
    for number in range(3):
        assert torch.equal(before[number][0], grown[number][0])
    assert all(torch.equal(x[0], y[0]) for x, y in zip(few.states(one), before[:2], strict=True))


def test_least_squares() -> None:
    """Of two outputs from different inputs, in parts, against numpy's."""
    draw = np.random.default_rng(3)
    inputs = draw.normal(size=(400, 5)).astype(np.float32) * [1, 1, 20, 0.1, 0]
    outputs = [draw.normal(size=(400, 2)).astype(np.float32) + inputs[:, :1] for _ in range(2)]
    parts = [
        (torch.tensor(inputs[at], dtype=torch.float32), [torch.tensor(y[at]) for y in outputs])
        for at in (slice(0, 250), slice(250, 400))
    ]
    for (weight, bias), n, output in zip(fitted(parts, [2, 5]), (2, 5), outputs, strict=True):
        one = np.concatenate([np.ones((400, 1)), inputs[:, :n]], 1)
        ridge = np.diag(np.sqrt(RIDGE * (one**2).sum(0)))
        expected = np.linalg.lstsq(
            np.concatenate([one, ridge]), np.concatenate([output, np.zeros((1 + n, 2))]), rcond=None
        )[0]
        assert np.allclose(weight.numpy().T, expected[1:], atol=1e-3)
        assert np.allclose(bias.numpy(), expected[0], atol=1e-3)


def test_no_least_squares_of_nothing(checkpoint: Checkpoint) -> None:
    for rows in ([], [(torch.zeros(0, 2), [torch.zeros(0, 1)])]):
        assert fitted(rows, [2]) is None
    with pytest.raises(InputError, match="too large"):
        fitted([(torch.full((3, 2), 3e38), [torch.zeros(3, 1)])], [2])
    student, one = Hydra(checkpoint, SAID, 16), batch()  # no conversation is as long as its last head's path
    before = {name: parameter.clone() for name, parameter in student.named_parameters()}
    student.begin([one])
    assert all(torch.equal(parameter, before[name]) for name, parameter in student.named_parameters())


def test_where_states_are_linear_heads_begin_right(checkpoint: Checkpoint) -> None:
    """A head that is solved for says the state that follows from its path."""
    student, one = Hydra(checkpoint, SAID, 3, 1), batch(rows=1500)
    embedding = values(checkpoint.tensors["embed_tokens.weight"]).bfloat16().float()
    draw = torch.Generator().manual_seed(5)
    carry, take = (torch.randn(64, 64, generator=draw) / 12 for _ in range(2))
    features = one.features.float()
    for i in range(1499):
        features[:, i + 1, 3] = features[:, i, 3] @ carry + 20 * embedding[one.tokens[:, i + 1]] @ take
    one = Batch(one.tokens, features.bfloat16(), one.wanted)
    student.begin([one])
    following = torch.cat([features[:, 1:, 3], torch.zeros(2, 1, 64)], 1)[one.wanted]
    for state, foretold in student.states(one):
        expected = following[foretold]
        assert (state - expected).norm() < 0.05 * expected.norm()


def test_as_large_as_is_shipped(tmp_path: Path) -> None:
    """The heads by default, for a model of 576 values: 12 MB, with a map of 8,192 tokens."""
    whole = Tiny(hidden=576, inner=64, heads=9, kv_heads=3, head_dim=64, layers=3)
    student = Hydra(open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", whole)), SAID)
    student.save(tmp_path / "heads", "somebody/some-model", "small")
    size = sum(path.stat().st_size for path in (tmp_path / "heads").iterdir())
    assert size + (8192 - len(SAID)) * 4 < 12_000_000
