"""What is held out: never a request that something was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from forerun.training.batches import LEAST_HELD_OUT, Conversations, Place  # noqa: E402
from forerun.training.store import Conversation, Store  # noqa: E402

TOKENS = np.arange(20, dtype=np.int32)
STATES = np.zeros((19, 1, 4), np.uint16)


def requests(data: Conversations, places: list[Place]) -> set[int]:
    return {int(data.stores[0].index[place.place]["request_hash"]) for place in places}


@pytest.mark.parametrize("prompts", [3, 7, 40])
def test_a_users_prompt_is_held_out_at_all_temperatures(prompts: int, tmp_path: Path) -> None:
    """Prompts are answered in rounds, one temperature after the other; interruptions change the order."""
    numbers = np.random.default_rng(prompts).permutation(3 * prompts)
    with Store(tmp_path, {"model": "m", "taps": [1], "hidden_size": 4, "prompts": "p"}) as store:
        for number in numbers.tolist():
            turn, place = divmod(number, prompts)
            store.add(Conversation(number, TOKENS, 5, (0.0, 1.0, 0.7)[turn], 10**9 - 77 * place, STATES))
    data = Conversations([Store(tmp_path)])
    apart = requests(data, data.held_out)
    assert requests(data, data.greedy_held_out) == apart
    assert not apart & requests(data, data.training)
    assert len(apart) == -(-prompts // max(3 * prompts // LEAST_HELD_OUT, 5))  # one in five at most
    assert 10**9 in apart  # the first
    assert len(data.held_out) == 2 * len(data.greedy_held_out) == 2 * len(apart)


def test_a_request_about_an_answer_is_held_out_with_it(tmp_path: Path) -> None:
    with Store(tmp_path, {"model": "m", "taps": [1], "hidden_size": 4, "prompts": None}) as store:
        for number in range(60):
            store.add(Conversation(number, TOKENS, 5, 0.0, number, STATES))
    data = Conversations([Store(tmp_path)])
    apart = requests(data, data.greedy_held_out)
    assert {number ^ 1 for number in apart} == apart
    assert len(apart) == 12
    assert not apart & requests(data, data.training)
