from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import ForerunError
from forerun.sampling.noise import gumbel
from forerun.sampling.rules import noisy_best


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**31),
    size=st.sampled_from([1, 2, 63, 64, 65, 300, 5000]),
    width=st.sampled_from([0.0, 0.5, 3.0, 12.0]),
    out=st.floats(0, 0.99),
)
def test_lazy_noise_changes_nothing(seed: int, position: int, size: int, width: float, out: float) -> None:
    """The token is the one that noise for everybody would give; with ties and with tokens that are out."""
    draw = np.random.default_rng(position)
    scores = np.round(draw.normal(size=size) * width, 1)
    scores[1:][draw.random(size - 1) < out] = -np.inf
    everybody = scores + gumbel(seed, position, np.arange(size))
    assert noisy_best(scores, seed, position) == int(everybody.argmax())


def test_far_tokens_win_as_often_as_they_should() -> None:
    """A token 4 nats below another wins once in about 56 draws."""
    scores = np.full(500, -np.inf)
    scores[[17, 400]] = [-4.0, 0.0]
    wins = sum(noisy_best(scores, seed, 1) == 17 for seed in range(1500))
    expected = 1500 / (1 + np.exp(4.0))
    assert abs(wins - expected) < 4 * np.sqrt(expected)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_what_cannot_be_chosen_from(bad: float) -> None:
    with pytest.raises(ForerunError):
        noisy_best(np.full(100, bad), 1, 1)
