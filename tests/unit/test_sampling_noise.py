from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.sampling.arithmetic import exp, lane_sum, log
from forerun.sampling.noise import (
    ACCEPT,
    GROUP,
    GROUP_SIZE,
    GUMBEL,
    LEAST_GUMBEL,
    MOST_GUMBEL,
    gumbel,
    philox,
    uniforms,
)

ALL = np.arange(1000, dtype=np.int64)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers published with Random123 (kat_vectors, philox4x32 10)
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (np.array([word], dtype=np.uint64) for word in counter)
    assert tuple(int(word[0]) for word in philox((c0, c1, c2, c3), key)) == expected


def word(seed: int, position: int, stream: int, index: int) -> int:
    """With Python's integers: other languages can be checked against this."""
    block = tuple(np.array([w], dtype=np.uint64) for w in (index // 4, position, stream, 0))
    return int(philox(block, (seed % 2**32, seed // 2**32))[index % 4][0])  # type: ignore[arg-type]


def exponential(word: int) -> float:
    return -math.log((word + 0.5) / 2**32)


def test_the_recipe_of_the_docstring() -> None:
    seed, position = 2**40 + 17, 1234
    for token in (*range(4288, 4352), 0, 200_000):
        group = token // 64
        noise = exponential(word(seed, position, GROUP, 2 * group)) / 64
        if token % 64 != word(seed, position, GROUP, 2 * group + 1) % 64:
            noise += exponential(word(seed, position, GUMBEL, token))
        assert gumbel(seed, position, np.array([token]))[0] == pytest.approx(-math.log(noise), rel=1e-13)


def test_these_bits_stay() -> None:
    """Texts are reproduced from seeds across versions and languages: these values must never change."""
    noise = gumbel(7, 3, np.array([0, 1, 2, 3, 49151]))
    assert [value.hex() for value in noise.tolist()] == NOISE


NOISE = [
    "0x1.d332d9a5102a3p-2",
    "-0x1.c3839b623ab97p+0",
    "0x1.092cf1ba49f32p+1",
    "-0x1.8efcf02618055p-3",
    "0x1.42fe39b72ee0dp-1",
]


@given(tokens=st.lists(st.integers(0, 200_000), min_size=1, max_size=30), position=st.integers(0, 2**32 - 1))
def test_any_token_alone_or_among_others(tokens: list[int], position: int) -> None:
    together = gumbel(99, position, np.array(tokens))
    alone = [gumbel(99, position, np.array([token]))[0] for token in tokens]
    assert together.tolist() == alone


def test_many_tokens_are_as_few() -> None:
    many = np.arange(5, 9000, 2, dtype=np.int64)
    few = np.concatenate([gumbel(3, 4, part) for part in np.array_split(many, 9)])
    assert (gumbel(3, 4, many) == few).all()


def test_what_keeps_streams_apart() -> None:
    base = uniforms(1, 2, GUMBEL, ALL)
    for other in (
        uniforms(2, 2, GUMBEL, ALL),
        uniforms(1 + 2**32, 2, GUMBEL, ALL),
        uniforms(1, 3, GUMBEL, ALL),
        uniforms(1, 2, ACCEPT, ALL),
    ):
        assert not (base == other).any()
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.15


def test_bounds() -> None:
    ends = (np.array([0.0, 2**32 - 1]) + 0.5) * 2.0**-32
    most, least = -log(ends)
    low, high = -log(np.array([most / GROUP_SIZE + most, least / GROUP_SIZE]))
    assert LEAST_GUMBEL < low < LEAST_GUMBEL + 0.01
    assert MOST_GUMBEL - 0.01 < high < MOST_GUMBEL


def test_uniform_and_gumbel_are_what_they_say() -> None:
    many = np.arange(200_000, dtype=np.int64)
    drawn = np.sort(uniforms(5, 6, GUMBEL, many))
    assert np.abs(drawn - (many + 0.5) / many.size).max() < 1.63 / np.sqrt(many.size)  # Kolmogorov, 1 %
    levels = np.sort(np.exp(-np.exp(-gumbel(5, 6, many))))
    assert np.abs(levels - (many + 0.5) / many.size).max() < 1.63 / np.sqrt(many.size)


def test_noise_within_a_group_is_independent() -> None:
    """Over many positions: no two tokens of a group go together, each has the least as often, and the next
    lies above it as the next of independent ones does."""
    tokens = np.arange(GROUP_SIZE)
    noise = np.stack([np.exp(-gumbel(8, position, tokens)) for position in range(4000)])
    together = np.corrcoef(np.exp(-noise).T) - np.eye(GROUP_SIZE)
    assert np.abs(together).max() < 4.5 / np.sqrt(len(noise))
    holders = np.bincount(noise.argmin(axis=1), minlength=GROUP_SIZE)
    expected = len(noise) / GROUP_SIZE
    assert ((holders - expected) ** 2 / expected).sum() < 110  # chi-square, 63 degrees: 103 at 0.1 %
    others = np.sort(noise, axis=1)[:, 1]
    gaps = np.sort(-np.expm1(-(others - noise.min(axis=1)) * (GROUP_SIZE - 1)))
    assert np.abs(gaps - (np.arange(gaps.size) + 0.5) / gaps.size).max() < 1.63 / np.sqrt(gaps.size)


@given(st.floats(1e-300, 1e300))
def test_log(x: float) -> None:
    assert log(np.array([x]))[0] == pytest.approx(np.log(x), rel=4e-15, abs=1e-15)


@given(st.floats(-707.9, 0))
def test_exp(x: float) -> None:
    assert exp(np.array([x]))[0] == pytest.approx(np.exp(x), rel=1e-15)


def test_exp_far_below() -> None:
    assert exp(np.array([-708.5, -1e6, -np.inf])).tolist() == [0.0, 0.0, 0.0]
    assert exp(np.array([0.0])).tolist() == [1.0]


@given(st.lists(st.floats(0, 1), max_size=50))
def test_lane_sum(values: list[float]) -> None:
    lanes = [0.0] * 8
    for place, value in enumerate(values):
        lanes[place % 8] += value
    a, b, c, d, e, f, g, h = lanes
    assert lane_sum(np.array(values)) == ((a + b) + (c + d)) + ((e + f) + (g + h))
