"""A drafter of the caller's own: what it is and what it proposes is looked at before it is relied on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.arguments import refuse
from forerun.core.protocols import Budget, Drafter
from forerun.core.tree import DoubleArray, DraftTree, FloatArray, IntArray
from forerun.errors import InputError
from forerun.words import counted

OF_A_DRAFTER = ("name", "taps", "begin", "propose", "observe", "truncate")
"""What `core.protocols.Drafter` asks of one."""

CLOSE = 1e-4
"""How far from 1 the sum of a proposal may be: it may come from float32."""


class OwnDrafter:
    """Another drafter, whose proposals must be distributions: the rejection rule would turn anything else
    into tokens that are not the target's, and nobody would notice.

    Args:
        drafter: the caller's.
        layers, vocab_size: of the target.

    Raises:
        InputError: it is no drafter, or reads hidden states that there are not.
    """

    def __init__(self, drafter: Drafter, layers: int, vocab_size: int) -> None:
        if isinstance(drafter, type) or not all(hasattr(drafter, part) for part in OF_A_DRAFTER):
            refuse("drafter", drafter, f"a name, or an object with {', '.join(OF_A_DRAFTER)}")
        self.name, self.taps = drafter.name, drafter.taps
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"the drafter's name is {self.name!r}; it must be a text")
        numbers = isinstance(self.taps, tuple) and all(type(tap) is int for tap in self.taps)
        if not numbers or any(not 0 <= tap <= layers for tap in self.taps):
            raise InputError(
                f"the drafter's taps are {self.taps!r}; they must be a tuple of numbers from 0 to {layers}"
            )
        self._drafter = drafter
        self._vocab_size = vocab_size

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._drafter.begin(tokens, features)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        self._drafter.observe(tokens, features)

    def truncate(self, length: int) -> None:
        self._drafter.truncate(length)

    def propose(self, budget: Budget) -> DraftTree:
        """What the drafter proposes.

        Raises:
            InputError: it gave no tree, or could not make one (of chances that are no numbers, for instance),
                or drew candidates from what is no distribution over the target's vocabulary.
        """
        try:
            tree = self._drafter.propose(budget)
        except ValueError as error:
            raise InputError(f"drafter {self.name!r} could not propose: {error}") from error
        if not isinstance(tree, DraftTree):
            raise InputError(f"drafter {self.name!r} proposed {tree!r:.80} in place of a DraftTree")
        if tree.drawn:
            for node, proposal in tree.proposals.items():
                if wrong := self._fault(proposal):
                    raise InputError(f"drafter {self.name!r}: its proposal at node {node} {wrong}")
        return tree

    def _fault(self, proposal: DoubleArray) -> str | None:
        """What is wrong about a proposal, if anything."""
        if proposal.size != self._vocab_size:
            return f"is over {counted(proposal.size, 'token')}; the model knows {self._vocab_size}"
        whole = float(proposal.sum())
        if not np.isfinite(whole):
            return "has probabilities that are not finite (NaN or infinity)"
        if proposal.min() < 0:
            return f"has a negative probability, {proposal.min():g}"
        if abs(whole - 1) > CLOSE:
            return f"has probabilities that add up to {whole:g}; they must to 1"
        return None
