"""Training of EAGLE-3 heads: the arithmetic against plain loops, what rows may see, resuming, and one command
from a model to a head that works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import forerun  # noqa: E402
from forerun.errors import InputError  # noqa: E402
from forerun.models.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from forerun.models.heads import open_head  # noqa: E402
from forerun.models.heads.size import read_head_size  # noqa: E402
from forerun.models.rope import plain  # noqa: E402
from forerun.models.shipped import DRAFT_FILE  # noqa: E402
from forerun.training.batches import Batch, Conversations, Place, grouped  # noqa: E402
from forerun.training.data import open_to_read, open_to_write  # noqa: E402
from forerun.training.eagle import Eagle  # noqa: E402
from forerun.training.eagle3 import Eagle3  # noqa: E402
from forerun.training.eagle_head import Layout  # noqa: E402
from forerun.training.export import FOUR_BITS, plainly, rope_theta  # noqa: E402
from forerun.training.hydra import Hydra  # noqa: E402
from forerun.training.losses import mean_head_rows, soft_cross_entropy  # noqa: E402
from forerun.training.means import NAME  # noqa: E402
from forerun.training.medusa import Medusa  # noqa: E402
from forerun.training.run import Job, most_frequent, train  # noqa: E402
from forerun.training.store import Store  # noqa: E402
from forerun.training.trainer import CHECKPOINT, Figures, Progress, Settings  # noqa: E402
from forerun.training.unrolled import attend  # noqa: E402
from forerun.training.weights import head_rows, layer_weights, values  # noqa: E402
from forerun.training.windows import windows_of  # noqa: E402
from forerun.training.writer import Writer  # noqa: E402
from forerun.weights.safetensors_file import read_safetensors  # noqa: E402
from support.tiny import Tiny, write_tiny_gguf  # noqa: E402

torch.set_num_threads(1)  # the models are too small to share


class Simple(Tiny):
    """A tiny model that goes mostly by its last token, as what a head can learn in seconds must."""

    def weights(self) -> dict[str, np.ndarray]:
        found = super().weights()
        return {
            name: w * 0.02 if name.endswith(("o_proj.weight", "down_proj.weight")) else w
            for name, w in found.items()
        }


TINY = Simple(hidden=64, inner=96, heads=4, head_dim=16, layers=4, tied=False, sharpness=2.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TINY)


@pytest.fixture(scope="module")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    engine = forerun.load(str(model), threads=1)
    with open_to_write(engine, folder, model="tiny", seed=1, prompts=None) as store:
        Writer(engine, store, seed=1, rows=16, longest_answer=60).write(8_000)
    return folder


@pytest.fixture
def checkpoint(model: Path) -> Checkpoint:
    return open_checkpoint(model)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("windows", [((0, 7), (0, 7)), ((2, 6), (3, 4)), ((3, 7), (0, 2))])
def test_unrolled_attention_is_what_serving_sees(steps: int, windows: tuple[tuple[int, int], ...]) -> None:
    """Of two conversations of 7 rows, each with 3 heads of keys and 6 of queries."""
    torch.manual_seed(0)
    wanted = torch.zeros(2, 7, dtype=torch.bool)
    for number, (start, stop) in enumerate(windows):
        wanted[number, start:stop] = True
    rows = windows_of(wanted, 0)
    sizes = [14] + (steps - 1) * [len(rows.rows)]
    made = [torch.randn(n, 3, 4, dtype=torch.double, requires_grad=True) for n in 2 * sizes]
    q = torch.randn(len(rows.rows), 6, 4, dtype=torch.double, requires_grad=True)
    keys, vals, last, expected = made[:steps], made[steps:], steps - 1, []
    for number, (start, stop) in enumerate(windows):
        at = len(expected)
        for i in range(start, stop):
            # a row at the start of a window has no path that long: it sees what the target fed in its place
            own = [s for s in range(1, steps) if i - last + s >= start]
            seen = [(0, 7 * number + j) for j in range(i + 1) if j not in [i - last + s for s in own]]
            seen += [(s, at + i - start - last + s) for s in own]
            k = torch.stack([keys[s][j] for s, j in seen]).repeat_interleave(2, 1)
            v = torch.stack([vals[s][j] for s, j in seen]).repeat_interleave(2, 1)
            scores = torch.einsum("hd,nhd->hn", q[at + i - start], k) / 2
            expected.append(torch.einsum("hn,nhd->hd", scores.softmax(-1), v).flatten())
    found, whole = attend(q, keys, vals, rows), torch.stack(expected)
    assert torch.allclose(found, whole)
    weights = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), [q, *made]),
        torch.autograd.grad((whole * weights).sum(), [q, *made]),
        strict=True,
    ):
        assert torch.allclose(one, other)


def test_the_loss_is_cross_entropy() -> None:
    torch.manual_seed(0)
    head, final = torch.randn(50, 8, dtype=torch.double), torch.randn(700, 8, dtype=torch.double)
    states = torch.randn(700, 8, dtype=torch.double, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        states @ head.T, (final @ head.T).softmax(-1), reduction="sum"
    )
    found = soft_cross_entropy(states, head, mean_head_rows(final, head))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)  # sums are kept in single precision
    (gradient,) = torch.autograd.grad(expected, states)
    (other,) = torch.autograd.grad(found, states)
    assert torch.allclose(other, gradient, atol=1e-5)


def test_weights_are_the_models(model: Path, checkpoint: Checkpoint, tmp_path: Path) -> None:
    whole = TINY.weights()
    assert np.array_equal(values(checkpoint.tensors["norm.weight"]).numpy(), whole["norm.weight"])
    assert np.array_equal(head_rows(checkpoint).numpy(), whole["lm_head.weight"])
    rough = open_checkpoint(write_tiny_gguf(tmp_path / "q8.gguf", TINY, quant="Q8_0"))
    error = head_rows(rough).numpy() - whole["lm_head.weight"]
    assert 0 < np.abs(error).max() < 0.02 * np.abs(whole["lm_head.weight"]).max()


def test_it_starts_as_the_targets_last_layer(checkpoint: Checkpoint) -> None:
    """Over the last of the three states, made weak; what it reads of the token is new."""
    torch.manual_seed(0)
    head, hidden = Eagle3(checkpoint, torch.arange(200)), 64
    last = layer_weights(checkpoint, TINY.layers - 1)
    layer = head.midlayer
    for part in ("q_proj", "k_proj", "v_proj"):
        weight = getattr(layer.self_attn, part).weight
        assert torch.equal(weight[:, hidden:], last[f"self_attn.{part}.weight"])
        assert weight[:, :hidden].std() < 0.2
    assert torch.equal(layer.self_attn.o_proj.weight, last["self_attn.o_proj.weight"])
    assert torch.equal(layer.mlp.down_proj.weight, last["mlp.down_proj.weight"])
    assert torch.equal(layer.hidden_norm.weight, last["input_layernorm.weight"])
    assert torch.equal(head.norm.weight, values(checkpoint.tensors["norm.weight"]))
    states = torch.randn(50, 3 * hidden)
    reduced, weak = head.fc(states), 0.3 * states[:, 2 * hidden :]
    assert (reduced - weak).norm() < 0.5 * weak.norm()


def random_batch(rows: int = 32) -> Batch:
    draw = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 200, (2, rows + 1), generator=draw)
    features = torch.randn(2, rows, 4, 64, generator=draw).bfloat16()
    return Batch(tokens, features, torch.ones(2, rows, dtype=torch.bool))


def test_rows_see_nothing_later(checkpoint: Checkpoint) -> None:
    """Row i of step k knows tokens up to i + 1 and the target's states up to i - k."""
    head = Eagle3(checkpoint, torch.arange(200), steps=3)
    batch, at = random_batch(), 20
    features, tokens = batch.features.clone(), batch.tokens.clone()
    features[:, at], tokens[:, at + 1] = 7.0, 3
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        before, by_features, by_tokens = (
            [state.unflatten(0, (2, -1)) for state in head.passes(one, 3)]
            for one in (batch, replace(batch, features=features), replace(batch, tokens=tokens))
        )
    for step in range(3):
        assert torch.equal(before[step][:, step : at + step], by_features[step][:, step : at + step])
        assert not torch.equal(before[step][:, at + step], by_features[step][:, at + step])
        assert torch.equal(before[step][:, step:at], by_tokens[step][:, step:at])
        assert not torch.equal(before[step][:, at], by_tokens[step][:, at])


@pytest.mark.parametrize("kind", [Eagle3, Eagle])
def test_rows_that_nothing_needs_are_left_out(kind: type[Eagle3 | Eagle], checkpoint: Checkpoint) -> None:
    """What is computed for the rows that are wanted does not depend on the others."""
    head, batch, wanted = kind(checkpoint, torch.arange(200)), random_batch(), torch.zeros(2, 32).bool()
    batch = replace(batch, features=batch.features.float())
    head.embedding = head.embedding.float()
    wanted[0, 9:20] = wanted[1, 30] = True
    with torch.no_grad():
        whole, some = head.passes(batch, 3), head.passes(replace(batch, wanted=wanted), 3)
        for one, other in zip(whole, some, strict=True):
            assert torch.allclose(one.unflatten(0, (2, -1))[wanted], other, rtol=1e-4, atol=1e-4)


def test_what_is_judged_at_the_borders(written: Path) -> None:
    data = Conversations(open_to_read([written], 64, 4, 291))
    place = data.training[0]
    one = data.stores[0].conversation(place.place)
    batch, n = data.batch([place]), len(one.tokens)
    rows = batch.wanted[0].nonzero()[:, 0].tolist()
    # the first row judged says the answer's first token, the last one its last
    assert rows == list(range(one.answer - 2, n - 2))
    assert batch.tokens[0, :n].tolist() == one.tokens.tolist()
    held_out = {p.place for p in data.held_out + data.greedy_held_out}
    assert held_out
    assert not held_out & {p.place for p in data.training}
    assert data.token_counts(291).sum() < data.tokens


def test_groups_are_within_bounds() -> None:
    places = [Place(0, i, 10 + i, 4) for i in range(50)]
    groups = grouped(places, 200)
    assert [place for group in groups for place in group] == places
    assert all(len(group) * max(p.tokens for p in group) <= 200 for group in groups)
    assert grouped([Place(0, 0, 500, 4)], 200) == [[Place(0, 0, 500, 4)]]


def job(model: Path, folder: Path, data: Path, epochs: float, steps: int = 2, kind: str = "eagle3") -> Job:
    settings = Settings(epochs=epochs, rows=1024, seed=5, rate=3e-3)
    return Job(kind, str(model), folder, [data], settings, draft_vocabulary=250, steps=steps, layers=2)


class Interrupt:
    """Stops a training after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def __call__(self, at: Progress, spent: float) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["eagle3", "eagle", "hydra", "draft"])
def test_resumed_training_is_the_same(kind: str, model: Path, written: Path, tmp_path: Path) -> None:
    def nothing(*_: object) -> None:
        pass

    whole = train(job(model, tmp_path / "whole", written, 1.5, kind=kind), nothing, nothing)
    for batches in (3, 9):
        with pytest.raises(KeyboardInterrupt):
            train(job(model, tmp_path / "parts", written, 1.5, kind=kind), Interrupt(batches), nothing)
    assert (tmp_path / "parts" / NAME).exists()
    parts = train(job(model, tmp_path / "parts", written, 1.5, kind=kind), nothing, nothing)
    assert not (tmp_path / "parts" / NAME).exists()
    assert parts == whole
    name = DRAFT_FILE if kind == "draft" else "model.safetensors"
    one, other = ((tmp_path / x / name).read_bytes() for x in ("whole", "parts"))
    assert one == other
    other_kind = "eagle" if kind == "eagle3" else "eagle3"
    with pytest.raises(InputError, match="other settings"):
        train(job(model, tmp_path / "parts", written, 1.5, kind=other_kind), nothing, nothing)
    whole_checkpoint = (tmp_path / "parts" / CHECKPOINT).read_bytes()
    for damaged in (b"nothing", b"", whole_checkpoint[:5000], whole_checkpoint[:-100]):
        (tmp_path / "parts" / CHECKPOINT).write_bytes(damaged)
        with pytest.raises(InputError, match=r"cannot go on from .* it is damaged, or no checkpoint"):
            train(job(model, tmp_path / "parts", written, 1.5, kind=kind), nothing, nothing)


def test_what_is_no_start(model: Path, written: Path, tmp_path: Path) -> None:
    def nothing(*_: object) -> None:
        pass

    first = job(model, tmp_path / "first", written, 0.1)
    train(first, nothing, nothing)
    fresh = replace(first, folder=tmp_path / "fresh", start=first.folder)
    train(replace(fresh, draft_vocabulary=100), nothing, nothing)  # weights fit any draft vocabulary
    with pytest.raises(InputError, match="a training of eagle3, not of medusa"):
        train(replace(fresh, folder=tmp_path / "other", kind="medusa"), nothing, nothing)
    with pytest.raises(InputError, match="no training"):
        train(replace(fresh, folder=tmp_path / "other", start=tmp_path), nothing, nothing)
    small = replace(first, folder=tmp_path / "small", kind="draft", hidden=32, layers=1)
    train(small, nothing, nothing)
    with pytest.raises(InputError, match="of other sizes"):
        train(replace(small, folder=tmp_path / "large", start=small.folder, layers=2), nothing, nothing)
    with pytest.raises(InputError, match="a vocabulary of 250, not of 200"):
        train(replace(small, draft_vocabulary=200), nothing, nothing)
    heads = replace(first, folder=tmp_path / "heads", kind="medusa", heads=2, blocks=2)
    train(heads, nothing, nothing)
    with pytest.raises(InputError, match="of other sizes"):
        train(replace(heads, folder=tmp_path / "shallow", start=heads.folder, blocks=1), nothing, nothing)


@pytest.mark.parametrize("kind", ["eagle3", "eagle", "medusa", "hydra"])
def test_a_file_that_names_fewer_tokens(kind: str, model: Path, written: Path, tmp_path: Path) -> None:
    """Than the loss is over: the same weights are trained, and written again for others."""

    def nothing(*_: object) -> None:
        pass

    def named() -> list[int]:
        tokens = open_head(tmp_path).tokens
        assert tokens is not None
        return [int(token) for token in tokens]

    first = replace(job(model, tmp_path, written, 0.1, kind=kind), draft_vocabulary=100, loss_vocabulary=200)
    figures = train(first, nothing, nothing)
    assert "over 200 tokens, of which its file names 100." in (tmp_path / "MODEL_CARD.md").read_text()
    few, weights = named(), torch.load(tmp_path / CHECKPOINT, weights_only=True)["module"]
    counts = Conversations(open_to_read([written], 64, 4, 291)).token_counts(291)
    assert few == most_frequent(torch.from_numpy(counts), 100).tolist()
    again = replace(first, draft_vocabulary=150, loss_vocabulary=None)
    assert train(again, nothing, nothing).by_depth == figures.by_depth
    assert named() == most_frequent(torch.from_numpy(counts), 150).tolist()
    after = torch.load(tmp_path / CHECKPOINT, weights_only=True)["module"]
    assert all(torch.equal(after[name], weight) for name, weight in weights.items())
    assert len(after["vocabulary"]) == 200
    if kind == "medusa":
        rows = values(open_head(tmp_path).tensors["heads.0.out.weight"])
        assert torch.equal(rows, head_rows(open_checkpoint(model))[named()].bfloat16().float())
    for other in (replace(first, draft_vocabulary=250), replace(first, loss_vocabulary=250)):
        with pytest.raises(InputError, match="a vocabulary of 200, not of 2"):
            train(other, nothing, nothing)
    whole = replace(first, layout="original", folder=tmp_path / "original")
    if kind == "eagle3":
        train(whole, nothing, nothing)
        assert len(open_head(whole.folder).tokens) == 200


def test_weights_are_enough_to_begin_from(model: Path, written: Path, tmp_path: Path) -> None:
    """Going on takes all of a checkpoint."""

    def nothing(*_: object) -> None:
        pass

    first = job(model, tmp_path / "first", written, 0.1)
    train(first, nothing, nothing)
    whole = torch.load(first.folder / CHECKPOINT, weights_only=True)
    bare = tmp_path / "bare"
    bare.mkdir()
    torch.save({"module": whole["module"], "about": whole["about"]}, bare / CHECKPOINT)
    train(replace(first, folder=tmp_path / "fresh", start=bare), nothing, nothing)
    with pytest.raises(InputError, match=r"cannot go on from .*: it lacks counts, optimizer, progress"):
        train(replace(first, folder=bare), nothing, nothing)
    for lack in ("module", "about"):
        torch.save({name: part for name, part in whole.items() if name != lack}, bare / CHECKPOINT)
        with pytest.raises(InputError, match=f"cannot begin from .*: it lacks {lack}"):
            train(replace(first, folder=tmp_path / "other", start=bare), nothing, nothing)


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        ("progress", {"epoch": 1, "speed": 2}, "cannot go on"),
        ("progress", [], "lacks progress"),
        ("optimizer", {}, "cannot go on"),
        ("module", {}, "draft vocabulary"),
        ("module", {"vocabulary": torch.arange(10**6, 10**6 + 250)}, "draft vocabulary"),
        ("module", {"vocabulary": torch.arange(250), 3: 4}, "other sizes"),
        ("about", {}, "other settings"),
        ("counts", [5, 5], "a training on 2 folders of data, not on 1"),
    ],
)
def test_damaged_checkpoints(
    model: Path, written: Path, tmp_path: Path, part: str, value: object, says: str
) -> None:
    def nothing(*_: object) -> None:
        pass

    first = job(model, tmp_path, written, 0.1)
    train(first, nothing, nothing)
    whole = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    torch.save({**whole, part: value}, tmp_path / CHECKPOINT)
    with pytest.raises(InputError, match=says):
        train(first, nothing, nothing)


def test_two_trainings_in_one_folder(model: Path, written: Path, tmp_path: Path) -> None:
    one = job(model, tmp_path, written, 0.1)

    def meanwhile(*_: object) -> None:
        with pytest.raises(InputError, match="another process is writing"):
            train(one, lambda *_: None, lambda *_: None)

    train(one, meanwhile, meanwhile)
    train(one, lambda *_: None, lambda *_: None)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_checkpoint_that_the_disk_does_not_take(model: Path, written: Path, tmp_path: Path) -> None:
    (tmp_path / f".forerun-{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"cannot write .*: No space left on device"):
        train(job(model, tmp_path, written, 0.1), lambda *_: None, lambda *_: None)


def test_states_that_were_not_kept(model: Path, written: Path, tmp_path: Path) -> None:
    """Training computes them again, and is the same."""
    whole, engine = Store(written), forerun.load(str(model), threads=1)
    about = dict(whole.about)
    with Store(tmp_path / "data", about, whole.position_bytes * whole.tokens_written // 2) as store:
        for place in range(len(whole)):
            store.add(whole.conversation(place))
        assert not store.is_whole
    one = job(model, tmp_path / "one", written, 0.5)
    other = replace(one, folder=tmp_path / "other", data=[tmp_path / "data"])
    with pytest.raises(InputError, match="lacks hidden states"):
        train(other, lambda *_: None, lambda *_: None)
    other = replace(other, folder=tmp_path / "again", target=engine.backend)
    assert train(one, lambda *_: None, lambda *_: None) == train(other, lambda *_: None, lambda *_: None)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "again")]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("kind", "own", "least"),
    [
        ("eagle3", ["--unroll", "3"], 1.8),
        ("eagle", [], 1.5),
        ("medusa", ["--heads", "3"], 1.2),
        ("hydra", [], 1.8),
        ("draft", ["--layers", "1"], 1.5),
        ("draft", ["--hidden", "64", "--layers", "1", "--layout", "original"], 1.5),
    ],
)
def test_one_command_from_a_model_to_a_head(
    model: Path, tmp_path: Path, kind: str, own: list[str], least: float
) -> None:
    command = [sys.executable, "-m", "forerun", "train", kind, "-m", str(model), "-o", str(tmp_path), *own]
    command += ["--tokens", "20000", "--epochs", "6", "--rate", "3e-3"]
    command += [] if "original" in own else ["--draft-vocab", "250"]
    done = subprocess.run(
        [*command, "--batch", "256", "--threads", "1"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("chains ")[1].split()[0]) > least, done.stdout
    card = (tmp_path / "MODEL_CARD.md").read_text()
    assert "Held-out" in card
    assert "times the speed of plain decoding" in card
    assert ", expected " in done.stdout
    assert float(done.stdout.split("served in trees of 8: ")[1]) > least
    assert "- Where it serves: answers to " in card
    assert ", expected " in done.stderr
    # and it does as well where it serves
    engine = forerun.load(str(model), threads=1, draft_tokens=4)
    forwards = tokens = 0
    for word in ("one", "two", "three", "four", "five"):
        prompt = [{"role": "user", "content": f"Write {word}"}]
        params = forerun.SamplingParams(max_tokens=60, ignore_end=True)
        drafted = engine.generate(
            prompt, params, drafter=f"{'draft' if kind == 'draft' else 'head'}:{tmp_path}"
        )
        assert drafted.tokens == engine.generate(prompt, params, drafter="none").tokens
        forwards += drafted.report.target_forwards
        tokens += len(drafted.tokens)
    assert tokens / forwards > least


def test_an_eagle3_folder(model: Path, written: Path, tmp_path: Path) -> None:
    train(job(model, tmp_path, written, 0.1), lambda *_: None, lambda *_: None)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["draft_vocab_size"] == 250
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 2, 1]
    tensors = read_safetensors(tmp_path / "model.safetensors")
    assert tensors["fc.weight"].shape == (64, 192)
    ids = tensors["d2t"].data.view(np.int64) + np.arange(250)
    assert (np.diff(ids) > 0).all()
    assert np.array_equal(np.flatnonzero(tensors["t2d"].data), ids)


@pytest.mark.parametrize("layout", ["small", "original", "speculators"])
def test_layouts_of_eagle3(model: Path, written: Path, tmp_path: Path, layout: Layout) -> None:
    """Whatever the layout, the same head is read; other engines find its output layer in it, too."""
    nothing = job(model, tmp_path / "small", written, 0.05)
    train(nothing, lambda *_: None, lambda *_: None)
    train(replace(nothing, folder=tmp_path / "new", layout=layout), lambda *_: None, lambda *_: None)
    one, other = open_head(tmp_path / "small"), open_head(tmp_path / "new")
    assert other.layout == ("speculators" if layout == "speculators" else "eagle3")
    assert one.tokens is not None
    assert other.tokens is not None
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.taps_for(TINY.config()) == other.taps_for(TINY.config())
    more = {"small": set(), "original": {"lm_head.weight"}}.get(
        layout, {"lm_head.weight", "embed_tokens.weight"}
    )
    assert other.tensors.keys() - one.tensors.keys() == more
    assert all(np.array_equal(one.tensors[name].data, other.tensors[name].data) for name in one.tensors)
    if layout == "speculators":
        config = json.loads((tmp_path / "new" / "config.json").read_text())
        assert config["speculators_config"]["verifier"]["name_or_path"] is None  # others do not read GGUF


def test_medusa_as_its_authors_lay_it_out(model: Path, written: Path, tmp_path: Path) -> None:
    """With the target's whole output layer for each head, which serves as it was trained."""
    whole = replace(
        job(model, tmp_path, written, 0.3, kind="medusa"), layout="original", draft_vocabulary=10**6
    )
    train(whole, lambda *_: None, lambda *_: None)
    head = open_head(tmp_path)
    assert (tmp_path / "medusa_lm_head.safetensors").exists()
    assert (head.layout, head.depth, head.outputs, head.tokens) == (
        "medusa",
        4,
        TINY.config().vocab_size,
        None,
    )
    rows = values(head.tensors["heads.3.out.weight"])
    assert torch.equal(rows, head_rows(open_checkpoint(model)).bfloat16().float())
    engine = forerun.load(str(model), threads=1, draft_tokens=4)
    params = forerun.SamplingParams(max_tokens=40, ignore_end=True)
    drafted = engine.generate("one two", params, drafter=f"medusa:{tmp_path}")
    assert drafted.tokens == engine.generate("one two", params, drafter="none").tokens
    assert drafted.report.mean_accepted_length > 1


@pytest.mark.parametrize("theta", [10_000.0, 100_000.0, 500_000.0, 1_000_000.0])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_the_base_of_frequencies(theta: float, head_dim: int) -> None:
    """As the target's own configuration says it, though it is taken from float32 frequencies."""
    config = replace(TINY.config(), head_dim=head_dim, inv_freq=plain(theta, head_dim))
    assert rope_theta(config) == theta
    assert plainly(float(np.float32(1e-5))) == 1e-5


def test_figures() -> None:
    assert Figures([0.5, 0.25], 0.8, 0.4).mean_accepted_length == 1.75


@pytest.mark.parametrize("kind", [Eagle, Eagle3, Medusa, Hydra])
def test_what_a_guess_reads_is_what_serving_counts(kind: type[Any], model: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(model)
    head = kind(checkpoint, torch.arange(256))
    head.save(tmp_path, None, "small")
    once = 3 * 64 * 64 * FOUR_BITS if kind is Eagle3 else 0  # what joins states is read for the first guess
    reads = read_head_size(str(tmp_path), checkpoint.config).reads
    assert head.guess_bytes - once == pytest.approx(reads, rel=0.05)
