"""The rejection rule by exact enumeration: all candidates that can be drawn, all decisions that can fall."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.sampling.arithmetic import Doubles
from forerun.sampling.rules import choose_by_rejection

TINY = 2.0**-40


def outcomes(target: Doubles, candidates: list[int], proposal: Doubles | None) -> Doubles:
    """The exact distribution of the rule's answer over its draws, found from the outside.

    For fixed later draws, each decision is "this candidate below a threshold, something else above": the
    threshold is found by bisection. The last draw picks by a cumulative distribution, whose steps are found
    the same way.
    """
    k = len(candidates)

    def ask(draws: list[float]) -> int:
        return choose_by_rejection(target, candidates, proposal, np.array(draws))

    def threshold(below: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        if below(1 - TINY):
            return 1.0
        while high - low > TINY:
            middle = (low + high) / 2
            low, high = (middle, high) if below(middle) else (low, middle)
        return low

    result = np.zeros(target.size)
    chance = 1.0
    for place in range(k):
        refused = [1 - TINY] * place
        rest = [1 - TINY] * (
            k - place
        )  # would be refused by the later ones, and differ from an acceptance here
        token = candidates[place]
        if ask([*refused, TINY, *rest]) != token:
            continue
        share = threshold(lambda draw: ask([*refused, draw, *rest]) == token)  # noqa: B023
        result[token] += chance * share
        chance *= 1 - share
        if chance < 1e-9:
            return result
    refused = [1 - TINY] * k
    start = 0.0
    while start < 1 - 2 * TINY:
        token = ask([*refused, start + TINY])
        end = max(threshold(lambda draw: draw < start + TINY or ask([*refused, draw]) == token), start + TINY)  # noqa: B023
        result[token] += chance * (end - start)
        start = end
    return result


def without_replacement(proposal: Doubles, k: int) -> list[tuple[list[int], float]]:
    """Every ordered draw of `k` (or as many as have probability), with its probability."""
    able = np.flatnonzero(proposal).tolist()
    draws = []
    for order in permutations(able, min(k, len(able))):
        left, chance = 1.0, 1.0
        for token in order:
            chance *= proposal[token] / left
            left -= proposal[token]
        draws.append((list(order), chance))
    return draws


def simplex(size: int, zeros: bool = True) -> st.SearchStrategy[Doubles]:
    weights = st.lists(
        st.sampled_from([0.0, 1.0, 2.0, 5.0] if zeros else [1.0, 2.0, 5.0]), min_size=size, max_size=size
    )
    return weights.filter(any).map(lambda values: np.array(values) / sum(values))


def expected(target: Doubles, proposal: Doubles, k: int) -> Doubles:
    result = np.zeros(target.size)
    for candidates, chance in without_replacement(proposal, k):
        result += chance * outcomes(target, candidates, proposal)
    return result


@settings(max_examples=40, deadline=None)
@given(target=simplex(4), proposal=simplex(4), k=st.integers(1, 3))
def test_drawn_candidates(target: Doubles, proposal: Doubles, k: int) -> None:
    """Chains (one candidate) and trees (several, drawn without replacement)."""
    assert np.abs(expected(target, proposal, k) - target).max() < 1e-8


@settings(max_examples=60, deadline=None)
@given(target=simplex(5), candidates=st.lists(st.integers(0, 4), max_size=5))
def test_chosen_candidates(target: Doubles, candidates: list[int]) -> None:
    """Point masses, repeated ones included, whatever they are."""
    assert np.abs(outcomes(target, candidates, None) - target).max() < 1e-8


@pytest.mark.parametrize("k", [1, 2, 3])
def test_equal_distributions_accept_the_first(k: int) -> None:
    target = np.array([0.5, 0.25, 0.125, 0.125])
    for candidates, _ in without_replacement(target, k):
        assert outcomes(target, candidates, target)[candidates[0]] == pytest.approx(1.0)


def test_disjoint_distributions_accept_nothing() -> None:
    target, proposal = np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.25, 0.75])
    assert np.abs(expected(target, proposal, 2) - target).max() < 1e-8
    assert outcomes(target, [2, 3], proposal)[2:].tolist() == [0, 0]


def test_acceptance_is_the_overlap() -> None:
    """Leviathan et al.: the first candidate is accepted with chance sum(min(p, q))."""
    target, proposal = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    accepted = 0.0
    for token in range(3):
        threshold = min(1.0, target[token] / proposal[token])
        assert choose_by_rejection(target, [token], proposal, np.array([threshold - 1e-9, 0.5])) == token
        accepted += proposal[token] * threshold
    assert accepted == pytest.approx(np.minimum(target, proposal).sum())
