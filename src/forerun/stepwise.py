"""The literature's reference interface: a target, a draft, a lookahead, one step at a time, on token ids."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.arguments import check_params, check_tokens, check_whole, refuse
from forerun.core.budget import FixedBudget
from forerun.core.engine import decode
from forerun.core.report import Report
from forerun.drafters.model import ModelDrafter
from forerun.engine import Engine
from forerun.errors import InputError
from forerun.models.guide import Guide
from forerun.models.sequence import Sequence as TargetSequence
from forerun.sampling.fused import (
    FusedCoupledRanker,
    FusedCoupledRule,
    FusedDrawingRanker,
    FusedRejectionRule,
)
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.text.vocabularies import refuse_other_vocabulary


class SpeculativeEngine:
    """Speculative decoding of one sequence as the papers write it down (Leviathan et al., algorithm 1).

    Each step drafts `lookahead_k` tokens and verifies them in one forward of the target; it runs the loop
    that every other way of generating runs. Caches are kept between steps, and go back to what two calls' ids
    share.

    Args:
        target: the model whose text it is.
        draft: a smaller model of the same vocabulary.
        lookahead_k: tokens drafted a step.
        params: how tokens are chosen; where a text ends is the caller's business.

    Raises:
        InputError: the vocabularies differ, or there is nothing to draft.
    """

    def __init__(
        self, target: Engine, draft: Engine, lookahead_k: int = 4, params: SamplingParams | None = None
    ) -> None:
        for name, engine in (("target", target), ("draft", draft)):
            if not isinstance(engine, Engine):
                refuse(name, engine, "an engine that forerun.load made")
        if lookahead_k is None:
            refuse("lookahead_k", lookahead_k, "a whole number")
        check_whole("lookahead_k", lookahead_k, 1)
        refuse_other_vocabulary("draft", target.tokenizer, draft.tokenizer, target.backend.config.vocab_size)
        self._engine = target
        self._draft = draft
        self._lookahead = lookahead_k
        self._params = check_params(params)
        self._text: list[int] = []
        self.report = Report()
        """Of the last step."""

    def generate_step(self, input_ids: Sequence[int]) -> list[int]:
        """The next 1 to lookahead_k + 1 token ids of the text `input_ids`: what was accepted, and one of the
        target's own. None where the context is full.

        Raises:
            InputError: no ids, or more than the context holds.
        """
        ids = check_tokens(input_ids, self._engine.backend.config.vocab_size)
        if not ids:
            raise InputError("there are no token ids; give at least one")
        if len(ids) > self._engine.context:
            raise InputError(f"{len(ids)} ids do not fit a context of {self._engine.context}")
        held = self._shared(ids)
        if not held:
            self._start(len(ids))
        self.report = Report()
        self._text = []  # unless the step comes to its end
        steps = decode(
            self._target, self._drafter, ids, policy=FixedBudget(self._lookahead, self._lookahead),
            stop=lambda token: None, max_tokens=None, report=self.report, held=held,
        )  # fmt: skip
        tokens = next(steps).tokens
        steps.close()
        self._text = ids + tokens
        return tokens

    def _shared(self, ids: list[int]) -> int:
        """How many leading ids are those of the last step's text."""
        shared = 0
        for old, new in zip(self._text, ids, strict=False):
            if old != new:
                break
            shared += 1
        return shared

    def _start(self, prompt_length: int) -> None:
        """New caches and rules: the first text's ids count as prompt."""
        engine, params = self._engine, self._params
        vocab_size, seed = engine.backend.config.vocab_size, params.seed or 0
        pipeline = Pipeline(params, vocab_size, engine.end_tokens, prompt_length)
        own = Pipeline(params, vocab_size, engine.end_tokens, prompt_length)
        coupled = params.acceptance == "coupled"
        rule = (FusedCoupledRule if coupled else FusedRejectionRule)(pipeline, seed)
        ranks = FusedCoupledRanker if coupled else FusedDrawingRanker
        ranker = ranks(own, seed, vocab_size, model="the draft model")
        capacity = engine.context + self._lookahead + 1
        self._target = TargetSequence(engine.backend, rule, context=engine.context, capacity=capacity)
        draft = self._draft.backend
        guide = Guide(draft, min(capacity, draft.config.context))
        self._drafter = ModelDrafter(guide, ranker, siblings=1)
