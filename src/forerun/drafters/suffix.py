"""Suffix matching: guess what followed the longest endings of the text before, in this text or in past ones.

Oliaro et al., "SuffixDecoding", arXiv 2411.04975, whose suffix trees are a suffix automaton here
(forerun._core): an ending of any length is found, a token costs a microsecond or two and less than 100 bytes,
whatever the length of the text. The longer the match, and the more often and the more recently it went on in
one way, the longer and the more certain the draft; where it went on in several ways, the tree branches. Where
one token of a copied passage was replaced by another, the passage goes on after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from forerun import _core
from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree, FloatArray, IntArray


@dataclass(frozen=True)
class SuffixConstants:
    """What the drafter believes before it has seen how good its guesses are, and how fast it learns.

    The values were chosen as those with which answers to the project's own prompts are written soonest
    (scripts/tune_suffix.py), before passages were resumed; now they are within 1 % of the best that a search
    under the budget by cost has found, whose `doubt` of 1.5 gains less where a budget is fixed.
    Of the values of `least_chance` that are as good, from 0.03 to 0.1, the least is taken: where a budget is
    fixed it drafts most.

    Attributes:
        doubt: a match of n tokens goes on as before with prior chance n / (n + doubt).
        shorter: prior chance of the next shorter match where the longer one was wrong, and of a passage to go
            on after a token that was replaced.
        prior: observations that these priors count as.
        window: observations after which older ones count half.
        recent, span: what a count of age a (in tokens) weighs: 1 + recent span / (span + a).
        least_chance: nodes less likely than this are not worth their place in a forward.
    """

    doubt: float = 2.5
    shorter: float = 0.3
    prior: float = 8.0
    window: float = 64.0
    recent: float = 32.0
    span: float = 128.0
    least_chance: float = 0.03


class SuffixDrafter:
    """Trees from the text's own suffix automaton, and from one of past texts if given.

    Args:
        past: an index of texts written before; only read.
        constants: its beliefs.
    """

    name = "suffix"
    taps: tuple[int, ...] = ()

    def __init__(
        self, past: _core.SuffixIndex | None = None, constants: SuffixConstants | None = None
    ) -> None:
        self._past = past
        self._constants = constants or SuffixConstants()

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._index = _core.SuffixDrafter(self._past, **asdict(self._constants))
        self._index.observe(tokens)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        if len(tokens):
            self._index.observe(tokens)

    def propose(self, budget: Budget) -> DraftTree:
        return self._index.propose(budget.nodes, budget.depth)

    def extend(self, tree: DraftTree, node: int, budget: Budget) -> DraftTree:
        """`tree` with at most `budget.nodes` guesses more, which follow `node` and are at most `budget.depth`
        below it."""
        return self._index.extend(tree, node, budget.nodes, budget.depth, self.name)

    def truncate(self, length: int) -> None:
        """Makes the index again: a microsecond a token."""
        self._index.truncate(length)
