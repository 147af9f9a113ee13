"""What is kept of the target's distributions between passes over the data."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from forerun.training.batches import Conversations  # noqa: E402
from forerun.training.means import NAME, KeptMeans  # noqa: E402
from forerun.training.store import Conversation, Store  # noqa: E402

WIDTH = 6


@pytest.fixture
def data(tmp_path: Path) -> Conversations:
    about = {"model": "none", "taps": [1], "hidden_size": 4}
    with Store(tmp_path / "data", about) as store:
        for number in range(0, 40, 2):
            length = 9 + number
            features = np.zeros((length - 1, 1, 4), np.uint16)
            store.add(Conversation(number, np.arange(length, dtype=np.int32), 5, 0.0, number, features))
        store.add(Conversation(42, np.arange(9, dtype=np.int32), 8, 0.0, 42, features[:8]))
    return Conversations([Store(tmp_path / "data")])


def test_rows_are_kept_by_conversation(data: Conversations, tmp_path: Path) -> None:
    places = data.training
    assert any(place.wanted == 1 for place in places)  # only the answer's last token
    groups = [places[:3], places[3:7]]
    made = [torch.randn(sum(place.wanted for place in group), WIDTH).bfloat16() for group in groups]
    kept = KeptMeans(tmp_path, data, WIDTH)
    for group, means in zip(groups, made, strict=True):
        assert kept.read(group) is None
        kept.keep(group, means)
    again = KeptMeans(tmp_path, data, WIDTH)  # as after an interruption
    whole = torch.cat(made)
    found = again.read(places[:7])
    assert found is not None
    assert torch.equal(found, whole)
    backwards = again.read([places[6], places[0]])
    assert backwards is not None
    assert torch.equal(backwards, torch.cat([whole[-places[6].wanted :], whole[: places[0].wanted]]))
    assert again.read(places[:8]) is None
    batch = data.batch(places[:3])
    assert int(batch.wanted.sum()) == len(made[0])


def test_torn_rows_are_computed_again(data: Conversations, tmp_path: Path) -> None:
    place = data.training[0]
    KeptMeans(tmp_path, data, WIDTH).keep([place], torch.randn(place.wanted, WIDTH).bfloat16())
    with (tmp_path / NAME).open("r+b") as file:
        file.seek(4 * len(data.training) + 5)
        file.write(b"torn")
    kept = KeptMeans(tmp_path, data, WIDTH)
    assert kept.read([place]) is None
    kept.remove()
    assert not (tmp_path / NAME).exists()


def test_a_full_disk_only_costs_time(
    data: Conversations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = data.training[0]
    kept, means = KeptMeans(tmp_path, data, WIDTH), torch.randn(place.wanted, WIDTH).bfloat16()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        kept.keep([place], means)
    assert kept.read([place]) is None
    kept.keep([place], means)
    found = kept.read([place])
    assert found is not None
    assert torch.equal(found, means)


def test_the_order_of_writing_changes_nothing(data: Conversations, tmp_path: Path) -> None:
    """An interrupted writer finishes conversations in another order; training takes them by number."""
    whole = data.stores[0]
    with Store(tmp_path / "backwards", {"model": "none", "taps": [1], "hidden_size": 4}) as store:
        for place in reversed(range(len(whole))):
            store.add(whole.conversation(place))
    again = Conversations([Store(tmp_path / "backwards")])

    def numbers(of: Conversations) -> list[list[int]]:
        kinds = (of.training, of.held_out, of.greedy_held_out)
        return [[of.stores[0].conversation(place.place).number for place in kind] for kind in kinds]

    assert len(data.training) > 5
    assert numbers(again) == numbers(data)
