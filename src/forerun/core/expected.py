"""What speculation gives on average, before anything is decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Speculation:
    """Steps with chains of `guesses`: `tokens` that each emits and `seconds` that it takes, on average."""

    guesses: int
    tokens: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def best_chain(
    reached: Sequence[float], cost: Callable[[int], float], draft: float, share: float = 1.0
) -> Speculation:
    """The chain length, 0 included, with the most expected tokens a second.

    A step emits one token more than the guesses that are right (Leviathan et al., arXiv 2211.17192, equation
    1). It takes the walltime of their theorem 3.8, with a measured cost curve in the place of its assumption
    that a forward over k + 1 rows costs what one over 1 row does.

    Args:
        reached: for each depth, the chance that all guesses up to it are right.
        cost: seconds of a target forward by its rows.
        draft: seconds that drafting one guess takes.
        share: of the steps, in which the drafter has guesses; the others are plain.
    """

    def chain(k: int) -> Speculation:
        tokens, seconds = 1 + share * sum(reached[:k]), share * (cost(k + 1) + k * draft)
        return Speculation(k, tokens, seconds + (1 - share) * cost(1))

    return max(map(chain, range(len(reached) + 1)), key=lambda choice: choice.tokens_per_second)


def best_speculation(
    acceptance: float, cost: Callable[[int], float], draft: float, most: int = 16, share: float = 1.0
) -> Speculation:
    """The best chain of at most so many guesses, if each is right with probability `acceptance` where its
    predecessors are. `share` as for `best_chain`."""
    return best_chain([acceptance**depth for depth in range(1, most + 1)], cost, draft, share)
