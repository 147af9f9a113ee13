"""Drafting heads: EAGLE's layer, which grows a tree where it is most sure; Medusa's, which each guess one of
the next tokens; and Hydra's, which each see the tokens before theirs too. All read the target's own hidden
states.

Cai et al., Medusa (arXiv 2401.10774); Ankner et al., Hydra (2402.05109); Li et al., EAGLE (2401.15077),
EAGLE-2, whose dynamic trees EAGLE and Hydra grow (2406.16858), and EAGLE-3 (2503.01840). The work is done in
C++ (csrc/drafting).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from forerun import _core
from forerun.core.protocols import Budget
from forerun.core.tree import DraftTree, FloatArray, IntArray

WINDOW = 32
"""Tokens for which a head that was asked reads along."""

LEAST_CHANCE = 0.03
"""Below a node that is less likely nothing is looked for: it would cost more than it gives."""


class HeadDrafter:
    """A head's drafts for one text.

    EAGLE costs a small forward for each depth of a tree. Rows of its cache are made from the target's
    features alone: what was guessed beyond them is forgotten after each tree, and computed from true
    features when it has been accepted. Medusa and Hydra cost a block and an output layer for each depth, and
    remember one state.

    Reading along costs a row for each token. A head that was not asked for WINDOW tokens stops reading; when
    it is asked again, it reads as many of the last tokens, and what was before is lost to it.

    Args:
        core: the head, with the memory of one text.
        taps: hidden states of the target that it reads.
        name: for reports.
        least_chance: nodes that are less likely are not followed.
        reads: whether it reads the prompt; if not, it sleeps until it is asked.
    """

    def __init__(
        self,
        core: _core.EagleDrafter | _core.MedusaDrafter | _core.HydraDrafter,
        taps: tuple[int, ...],
        name: str,
        least_chance: float = LEAST_CHANCE,
        *,
        reads: bool = True,
    ) -> None:
        self.name = name
        self.taps = taps
        self._core = core
        self._least = least_chance
        self._reads = reads
        self._reading = 0.0  # tokens for which it still reads along

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        self._core.begin()
        self._reading = math.inf if self._reads else 0
        self.observe(tokens[:1].tolist(), None)
        self.observe(tokens[1:].tolist(), features)

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        """`features` None: they are unknown, and the text before is lost to the head."""
        if len(tokens):
            self._core.observe(tokens, features, self._reading > 0)
            self._reading -= len(tokens)

    def truncate(self, length: int) -> None:
        """What was computed of the last token may be forgotten with what came after it: then nothing is
        drafted until more is observed."""
        self._core.truncate(length)

    def propose(self, budget: Budget) -> DraftTree:
        self._reading = WINDOW
        return self._core.propose(budget.nodes, budget.depth, max(self._least, budget.least_chance))
