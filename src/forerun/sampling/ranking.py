"""What a draft model's logits say about the target's next token, under each of the two rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.sampling.arithmetic import Doubles, exp, lane_sum
from forerun.sampling.noise import DRAFT, gumbel, uniforms
from forerun.sampling.pipeline import Bits, Floats, Ints, Pipeline, first_best
from forerun.sampling.rules import draw_from

SHORTLIST = 16
"""Candidates that share all chance."""

MOST_SERIALS = 2**24
"""Draws of a text that have noise of their own."""


@dataclass(frozen=True)
class Ranked:
    """Candidates for one position.

    Attributes:
        tokens: the most promising first, or in the order drawn.
        chances: of each, that it is what the target says.
        proposal: float64 [vocabulary] that they were drawn from without replacement, or None if chosen.
    """

    tokens: list[int]
    chances: list[float]
    proposal: Doubles | None


class CoupledRanker:
    """Adds to the draft model's scores the very noise that the target's will get, so that what it ranks first
    is what the target says wherever the two models agree, at any temperature.

    With the noise known, what is unknown is how far the two models' logits differ: a candidate's chance is
    put as the softmax of logits + temperature noise over the SHORTLIST best, which at temperature 0 is
    the draft model's own opinion.

    This is the reference; `fused.FusedCoupledRanker` gives the same candidates and bits sooner.

    Args:
        pipeline: of its own (it counts the text), with the parameters of the target's.
        seed: the target's.
        vocab_size: the target's.
    """

    drawn = False

    def __init__(self, pipeline: Pipeline, seed: int, vocab_size: int) -> None:
        self._pipeline = pipeline
        self._seed = seed
        self._vocab_size = vocab_size

    def rank(
        self, logits: Floats, history: Ints, path: list[int], count: int, allowed: Bits | None = None
    ) -> Ranked:
        """At most `count` candidates for what follows history + path, of those that a grammar allows.

        Raises:
            ForerunError: nothing is allowed, or a logit is not a number.
        """
        processed = self._pipeline.processed(widen(logits, self._vocab_size), history, path, allowed)
        best = first_best(processed)
        if np.isposinf(processed[best]):
            return Ranked([best], [1.0], None)
        temperature = self._pipeline.params.temperature
        scores = processed.astype(np.float64) if temperature == 0 else self._pipeline.scores(processed)
        able = np.flatnonzero(scores > -np.inf)
        scores = scores[able]
        if temperature > 0:
            scores += gumbel(self._seed, len(history) + len(path), able)
        order = np.argsort(-scores, kind="stable")[:SHORTLIST]
        scores = scores[order] * temperature if temperature > 0 else scores[order]
        weights = exp(scores - scores[0])
        chances = weights / lane_sum(weights)
        return Ranked(able[order[:count]].tolist(), chances[:count].tolist(), None)


class DrawingRanker:
    """For the rejection rule: draws candidates from the draft model's processed distribution, without
    replacement, each from what the ones before it have left.

    This is the reference; `fused.FusedDrawingRanker` draws the same sooner. Arguments as `CoupledRanker`'s.
    """

    drawn = True

    def __init__(self, pipeline: Pipeline, seed: int, vocab_size: int) -> None:
        self._pipeline = pipeline
        self._seed = seed
        self._vocab_size = vocab_size
        self._draws = 0

    def rank(
        self, logits: Floats, history: Ints, path: list[int], count: int, allowed: Bits | None = None
    ) -> Ranked:
        """At most `count` candidates for what follows history + path, of those that a grammar allows."""
        self._draws += 1  # nodes at one position draw independently of each other, and of earlier steps
        proposal = self._pipeline.probabilities(widen(logits, self._vocab_size), history, path, allowed)
        stream = DRAFT + (self._draws % MOST_SERIALS << 8)
        left, tokens = proposal.copy(), []
        for draw in uniforms(self._seed, len(history) + len(path), stream, np.arange(count)):
            if not left.any():
                break
            tokens.append(draw_from(left, float(draw)))
            left[tokens[-1]] = 0.0
        return Ranked(tokens, proposal[tokens].tolist(), proposal)


def widen(logits: Floats, vocab_size: int) -> Floats:
    """A draft model's logits over the target's vocabulary: padding on either side gets no probability."""
    if logits.size >= vocab_size:
        return logits[:vocab_size]
    wide = np.full(vocab_size, -np.inf, dtype=np.float32)
    wide[: logits.size] = logits
    return wide
