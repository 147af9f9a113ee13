"""What holds of everything that is trained: the target stays as it is, and text without answers changes
nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from forerun import text  # noqa: E402
from forerun.models.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from forerun.training.batches import Batch  # noqa: E402
from forerun.training.draft import Draft, Shape  # noqa: E402
from forerun.training.eagle import Eagle  # noqa: E402
from forerun.training.eagle3 import Eagle3  # noqa: E402
from forerun.training.hydra import Hydra  # noqa: E402
from forerun.training.medusa import Medusa  # noqa: E402
from forerun.training.run import most_frequent  # noqa: E402
from support.tiny import Tiny, write_tiny_gguf  # noqa: E402

TINY = Tiny(hidden=64, inner=96, heads=4, head_dim=16, layers=4, tied=False)
SAID = torch.arange(0, 200)


def draft(checkpoint: Checkpoint) -> Draft:
    return Draft(checkpoint, text.from_gguf(checkpoint.metadata), SAID, Shape(layers=2))


STUDENTS = {
    "eagle3": lambda checkpoint: Eagle3(checkpoint, SAID, 3),
    "eagle": lambda checkpoint: Eagle(checkpoint, SAID),
    "medusa": lambda checkpoint: Medusa(checkpoint, SAID, 3),
    "hydra": lambda checkpoint: Hydra(checkpoint, SAID, 3, 2),
    "draft": draft,
}


def batch(answers: bool) -> Batch:
    drawn = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 200, (2, 17), generator=drawn)
    features = torch.randn(2, 16, 4, 64, generator=drawn).bfloat16()
    wanted = torch.zeros(2, 16, dtype=torch.bool)
    wanted[:, 5:12] = answers
    return Batch(tokens, features, wanted)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", TINY))


@pytest.mark.parametrize("kind", STUDENTS)
def test_the_target_is_not_trained(kind: str, checkpoint: Checkpoint) -> None:
    torch.manual_seed(0)
    student = STUDENTS[kind](checkpoint)
    frozen = {name: buffer.clone() for name, buffer in student.named_buffers()}
    before = {name: parameter.detach().clone() for name, parameter in student.named_parameters()}
    one = batch(answers=True)
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.1)
    with torch.autocast("cpu", torch.bfloat16):  # as the trainer does
        loss, _ = student.loss(one, student.targets(one))
    loss.backward()
    optimizer.step()
    assert frozen.keys() & {"head", "embedding", "output"}
    assert all(torch.equal(buffer, frozen[name]) for name, buffer in student.named_buffers())
    assert any(not torch.equal(parameter, before[name]) for name, parameter in student.named_parameters())


@pytest.mark.parametrize("kind", STUDENTS)
def test_text_without_answers_teaches_nothing(kind: str, checkpoint: Checkpoint) -> None:
    """No division by nothing, whatever else a batch lacks."""
    torch.manual_seed(0)
    student = STUDENTS[kind](checkpoint)
    none = batch(answers=False)
    with torch.autocast("cpu", torch.bfloat16):
        means = student.targets(none)
        loss, shown = student.loss(none, means)
    assert len(means) == 0
    loss.backward()
    assert (float(loss.detach()), shown) == (0.0, 0.0)
    assert not any(parameter.grad.any() for parameter in student.parameters() if parameter.grad is not None)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        right, among = student.guesses(none, 3)
    assert (tuple(right.shape), len(among)) == ((0, 3), 0)


@pytest.mark.parametrize(("kind", "deep"), [("eagle3", 5), ("medusa", 3), ("hydra", 3), ("draft", 5)])
def test_what_guesses_less_deep_is_judged_less_deep(kind: str, deep: int, checkpoint: Checkpoint) -> None:
    student, one = STUDENTS[kind](checkpoint), batch(answers=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        right, among = student.guesses(one, 5)
        shallow, _ = student.guesses(one, 2)
    assert tuple(right.shape) == (len(among), deep)
    assert torch.equal(shallow, right[:, :2])


def test_medusas_loss(checkpoint: Checkpoint) -> None:
    """Head h at row i tells what the target's head says h + 1 rows on, where that is judged."""
    torch.manual_seed(0)
    heads, one = Medusa(checkpoint, SAID, 3, 2), batch(answers=True)
    one.wanted[0, :2] = True  # nothing foretells the first row two ahead
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    final, output = one.features[:, :, 3].float(), heads.output.float()
    expected = []
    for number, blocks in enumerate(heads.heads):
        state = final
        for block in blocks:
            state = state + torch.nn.functional.silu(block(state))
        at = [(c, i) for c in range(2) for i in range(16 - number) if one.wanted[c, i + number]]
        entropies = [
            torch.nn.functional.cross_entropy(
                output @ state[c, i], (output @ final[c, i + number + 1]).softmax(-1)
            )
            for c, i in at
        ]
        expected.append(0.8**number * sum(entropies) / len(at))
    found, first = heads.loss(one, heads.targets(one))
    assert found.item() == pytest.approx(sum(expected).item() / (1 + 0.8 + 0.64), rel=0.01)
    assert first == pytest.approx(expected[0].item(), rel=0.01)


def test_medusa_goes_on_from_other_heads(checkpoint: Checkpoint) -> None:
    """Blocks and heads that the earlier ones lack change nothing; what they have more of is left out."""
    torch.manual_seed(0)
    shallow = Medusa(checkpoint, SAID, 3, 1)
    for parameter in shallow.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    deep, few = Medusa(checkpoint, SAID, 4, 3), Medusa(checkpoint, SAID, 2, 1)
    for heads in (deep, few):
        heads.load_state_dict(heads.grown(shallow.state_dict()))
    one = batch(answers=True)
    before, grown = list(shallow.states(one)), list(deep.states(one))
    for (state, _), (other, _), name in zip(before, grown, range(3), strict=False):
        assert torch.equal(state, other), name
    assert torch.equal(grown[3][0], one.features[:, 2:9, 3].flatten(0, 1).float())
    assert all(torch.equal(one[0], two[0]) for one, two in zip(few.states(one), before[:2], strict=True))


def test_which_tokens_are_said() -> None:
    counts = torch.tensor([0, 3, 0, 9, 1, 0, 3])
    assert most_frequent(counts, 2).tolist() == [1, 3]
    assert most_frequent(counts, 5).tolist() == [0, 1, 3, 4, 6]  # fewer occur than are wanted
    assert most_frequent(counts, 100).tolist() == list(range(7))
