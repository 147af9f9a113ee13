"""What speculation gives on average, before anything is decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Speculation:
    """Chains of `guesses`, each `seconds` long with drafting, that emit `tokens` on average."""

    guesses: int
    tokens: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def best_chain(reached: Sequence[float], cost: Callable[[int], float], draft: float) -> Speculation:
    """The chain length, 0 included, with the most expected tokens a second.

    A step emits one token more than the guesses that are right (Leviathan et al., arXiv 2211.17192, equation
    1). It takes the walltime of their theorem 3.8, with a measured cost curve in the place of its assumption
    that a forward over k + 1 rows costs what one over 1 row does.

    Args:
        reached: for each depth, the chance that all guesses up to it are right.
        cost: seconds of a target forward by its rows.
        draft: seconds that drafting one guess takes.
    """
    choices = [Speculation(k, 1 + sum(reached[:k]), cost(k + 1) + k * draft) for k in range(len(reached) + 1)]
    return max(choices, key=lambda choice: choice.tokens_per_second)


def best_speculation(
    acceptance: float, cost: Callable[[int], float], draft: float, most: int = 16
) -> Speculation:
    """The best chain of at most so many guesses, if each is right with probability `acceptance` where its
    predecessors are."""
    return best_chain([acceptance**depth for depth in range(1, most + 1)], cost, draft)
