"""Both rules, the ranking of drafts and log-probabilities by the C++ core: the tokens and bits that `rules`,
`ranking` and `logprobs` give, in microseconds."""

from __future__ import annotations

import numpy as np

from forerun import _core
from forerun.models.rows import Outputs
from forerun.sampling.arithmetic import Doubles, log
from forerun.sampling.logprobs import TokenLogprob, token_logprob
from forerun.sampling.pipeline import Bits, Floats, Ints, Pipeline, first_best
from forerun.sampling.ranking import MOST_SERIALS, Ranked, widen


class _Fused:
    """Holds the core's chooser.

    Args:
        pipeline: what to do to logits; only its settings are read.
        seed: of the noise.
        kernels: an instruction set by name; the machine's best by default.
    """

    _model = "the model"
    """Whose logits they are."""

    def __init__(self, pipeline: Pipeline, seed: int, kernels: str = "") -> None:
        self._pipeline = pipeline
        self._chooser = new_chooser(pipeline, seed, kernels)

    def _explain(self, logits: Floats, history: Ints, path: list[int], allowed: Bits | None) -> None:
        """Let the reference say what is wrong with logits from which the core could not choose.

        Raises:
            ForerunError: nothing is allowed, or a logit is not a number.
        """
        first_best(self._pipeline.processed(logits, history, path, allowed), self._model)


class _FusedRule(_Fused):
    """Can also walk a whole tree at once."""

    _by_rejection: bool

    def walk(
        self, output: Outputs, history: Ints, tree: _core.DraftTree
    ) -> tuple[list[int], list[int], int] | None:
        """As `models.sequence.NodeChoices.walk`; of the output only the logits, [nodes, vocabulary].

        Raises:
            ForerunError: nothing is allowed at the root, or a logit is not a number.
        """
        logits = output if isinstance(output, _core.Output) else output.logits
        done = self._chooser.walk(logits, history, tree, self._by_rejection)
        if done is None:
            self._explain(output.logits[0], history, tree.ids[:1], None)
        return done


class FusedCoupledRule(_FusedRule):
    """Implements `models.sequence.Rule` as `rules.CoupledRule` does."""

    _by_rejection = False

    def choose(
        self,
        logits: Floats,
        history: Ints,
        path: list[int],
        candidates: list[int],
        proposal: Doubles | None,
        allowed: Bits | None = None,
    ) -> int:
        token = self._chooser.choose(logits, history, path, allowed)
        if token < 0:
            self._explain(logits, history, path, allowed)
        return token


class FusedRejectionRule(_FusedRule):
    """Implements `models.sequence.Rule` as `rules.RejectionRule` does."""

    _by_rejection = True

    def choose(
        self,
        logits: Floats,
        history: Ints,
        path: list[int],
        candidates: list[int],
        proposal: Doubles | None,
        allowed: Bits | None = None,
    ) -> int:
        token = self._chooser.choose_by_rejection(logits, history, path, candidates, proposal, allowed)
        if token < 0:
            self._explain(logits, history, path, allowed)
        return token


class _FusedRanker(_Fused):
    """Implements `drafters.model.Ranker`.

    Args:
        pipeline: with the parameters of the target's; only its settings are read.
        seed: the target's.
        vocab_size: the target's.
        kernels: an instruction set by name; the machine's best by default.
        model: whose logits they are, for messages.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        seed: int,
        vocab_size: int,
        kernels: str = "",
        *,
        model: str = "the model",
    ) -> None:
        super().__init__(pipeline, seed, kernels)
        self._vocab_size = vocab_size
        self._model = model

    def rank(
        self, logits: Floats, history: Ints, path: list[int], count: int, allowed: Bits | None = None
    ) -> Ranked:
        """At most `count` candidates for what follows history + path, of those that a grammar allows.

        Raises:
            ForerunError: nothing is allowed, or a logit is not a number.
        """
        wide = widen(logits, self._vocab_size)
        wrong, ranked = self._ranked(wide, history, path, count, allowed)
        if wrong:
            self._explain(wide, history, path, allowed)
        return ranked

    def _ranked(
        self, wide: Floats, history: Ints, path: list[int], count: int, allowed: Bits | None
    ) -> tuple[int, Ranked]:
        """What the core finds, and 0; or what it makes of logits that something is wrong with, and not 0."""
        raise NotImplementedError


class FusedCoupledRanker(_FusedRanker):
    """Ranks as `ranking.CoupledRanker` does: the same candidates and chances."""

    drawn = False

    def _ranked(
        self, wide: Floats, history: Ints, path: list[int], count: int, allowed: Bits | None
    ) -> tuple[int, Ranked]:
        wrong, tokens, chances = self._chooser.rank(wide, history, path, count, allowed)
        return wrong, Ranked(tokens, chances, None)


class FusedDrawingRanker(_FusedRanker):
    """Ranks as `ranking.DrawingRanker` does: the same draws."""

    drawn = True
    _draws = 0

    def _ranked(
        self, wide: Floats, history: Ints, path: list[int], count: int, allowed: Bits | None
    ) -> tuple[int, Ranked]:
        self._draws += 1
        serial = self._draws % MOST_SERIALS
        wrong, tokens, proposal = self._chooser.draw(wide, history, path, count, serial, allowed)
        return wrong, Ranked(tokens, proposal[tokens].tolist(), proposal)


def core_settings(pipeline: Pipeline, seed: int) -> _core.SamplingSettings:
    """A pipeline's settings, for the core's choosers and drafting heads. Each counts the text by itself."""
    params = pipeline.params
    return _core.SamplingSettings(
        vocab_size=pipeline.vocab_size,
        prompt_length=pipeline.prompt_length,
        temperature=params.temperature,
        top_k=params.top_k if params.top_k < pipeline.vocab_size else 0,
        top_p=params.top_p,
        log_min_p=float(log(np.array([params.min_p]))[0]) if params.min_p > 0 else None,
        coupled=params.acceptance == "coupled",
        counts_history=pipeline.counts_history,
        repetition=float(np.float32(params.repetition_penalty)),
        presence=float(np.float32(params.presence_penalty)),
        frequency=float(np.float32(params.frequency_penalty)),
        bias_tokens=pipeline.bias_tokens.astype(np.int32),
        bias=pipeline.bias,
        forbidden=pipeline.forbidden.astype(np.int32),
        end_tokens=pipeline.end_tokens.astype(np.int32),
        min_tokens=min(params.min_tokens, 2**31 - 1),
        seed=seed,
    )


def new_chooser(pipeline: Pipeline, seed: int, kernels: str = "") -> _core.Chooser:
    """The core's chooser with a pipeline's settings."""
    return _core.Chooser(core_settings(pipeline, seed), kernels)


def fused_token_logprob(logits: Floats, token: int, top: int, kernels: str = "") -> TokenLogprob:
    """As `logprobs.token_logprob`."""
    found = _core.log_probabilities(logits, token, min(top, logits.size), kernels)
    if found is None:
        return token_logprob(logits, token, top)
    return TokenLogprob(token, found[0], found[1])
