"""One text that is asked for: what its parameters mean for the rule, the drafters and the end."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.core.protocols import Drafter, Stop
from forerun.drafters.guided import GuidedDrafter
from forerun.drafters.none import NoDrafter
from forerun.models.sequence import Rule
from forerun.sampling.constraint import ConstrainedEnd, ConstrainedRanker, ConstrainedRule, Constraint
from forerun.sampling.fused import (
    FusedCoupledRanker,
    FusedCoupledRule,
    FusedDrawingRanker,
    FusedRejectionRule,
    core_settings,
)
from forerun.sampling.grammar import Grammars
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.text.detokenize import StreamDecoder
from forerun.text.stops import Ending

if TYPE_CHECKING:
    from forerun import _core
    from forerun.drafters.model import Ranker
    from forerun.text.tokenizer import Tokenizer


class Request:
    """The parts of one text's decoding that its parameters decide.

    Args:
        prompt: token ids, checked.
        params: how to choose; without a seed they get one.
        tokenizer, vocab_size, end_tokens: of the model.
        grammars: compiles the grammar that the parameters may name.
        continues: the text goes on from the prompt's.

    Attributes:
        seed: of the noise.
        constraint: the grammar along this text, if there is one.
        ending: turns tokens into text and knows stop strings and end tokens.
        stop: where the text ends: `ending`, and the grammar's end.
    """

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        tokenizer: Tokenizer,
        vocab_size: int,
        end_tokens: Sequence[int],
        grammars: Grammars,
        continues: bool,
    ) -> None:
        self.prompt = prompt
        self.params = params
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self._vocab_size = vocab_size
        self._end_tokens = () if params.ignore_end else tuple(end_tokens)
        grammar = grammars.of(params)
        self.constraint: Constraint | None = None
        if grammar is not None:
            ends = {*self._end_tokens, *filter(tokenizer.is_special, params.stop_tokens)}
            self.constraint = Constraint(grammar, vocab_size, ends, len(prompt))
        self.ending = Ending(
            StreamDecoder(tokenizer, continues=continues or self.constraint is not None),
            params.stop,
            (*self._end_tokens, *params.stop_tokens),
            params.min_tokens,
        )
        self.stop: Stop = self.ending
        if self.constraint is not None:
            self.stop = ConstrainedEnd(self.ending, self.constraint, prompt, params.min_tokens)

    def rule(self) -> Rule:
        """How a token is chosen from logits."""
        pipeline = self._pipeline()
        chosen_by = (FusedCoupledRule if self._coupled else FusedRejectionRule)(pipeline, self.seed)
        if self.constraint is None:
            return chosen_by
        return ConstrainedRule(chosen_by, self.constraint, pipeline.forbidden)

    def ranker(self, drafter: str) -> Ranker:
        """What turns the logits of the draft model behind a drafter's name into candidates."""
        ranks = (FusedCoupledRanker if self._coupled else FusedDrawingRanker)(
            self._pipeline(), self.seed, self._vocab_size, model=f"drafter {drafter}"
        )
        return ranks if self.constraint is None else ConstrainedRanker(ranks, self.constraint)

    def core_settings(self) -> _core.SamplingSettings:
        """What turns a drafting head's logits into candidates."""
        return core_settings(self._pipeline(), self.seed)

    def guided(self, drafter: Drafter) -> Drafter:
        """The drafter, led by the grammar if there is one."""
        if self.constraint is None or isinstance(drafter, NoDrafter):
            return drafter
        return GuidedDrafter(drafter, self.constraint)

    @property
    def _coupled(self) -> bool:
        return self.params.acceptance == "coupled"

    def _pipeline(self) -> Pipeline:
        return Pipeline(self.params, self._vocab_size, self._end_tokens, len(self.prompt))
