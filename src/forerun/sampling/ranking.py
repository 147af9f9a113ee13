"""What a draft model's logits say about the target's next token, under each of the two rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forerun.sampling.arithmetic import Doubles
from forerun.sampling.noise import DRAFT, gumbel, uniforms
from forerun.sampling.pipeline import Floats, Ints, Pipeline, first_best
from forerun.sampling.rules import noisy_best

SHORTLIST = 64


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

    With the noise known, what is unknown is how far the two models' logits differ: a candidate's chance
    is put as the softmax of logits + temperature noise, which at temperature 0 is the draft model's own
    opinion.

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

    def rank(self, logits: Floats, history: Ints, path: list[int], count: int) -> Ranked:
        """At most `count` candidates for what follows history + path."""
        processed = self._pipeline.processed(widen(logits, self._vocab_size), history, path)
        temperature = self._pipeline.params.temperature
        if temperature == 0:
            best = first_best(processed)
            tokens = shortlist(processed.astype(np.float64))
            scores = processed[tokens].astype(np.float64)
        else:
            position = len(history) + len(path)
            noisy = self._pipeline.scores(processed)
            best = noisy_best(noisy, self._seed, position)
            tokens = np.union1d(shortlist(noisy), np.array([best]))
            scores = (noisy[tokens] + gumbel(self._seed, position, tokens)) * temperature
        scores[tokens == best] += 1e-9  # the first stays the first when it ties with a lower id
        order = np.argsort(-scores, kind="stable")[:count]
        weights = np.exp(scores - scores.max())
        return Ranked(tokens[order].tolist(), (weights / weights.sum())[order].tolist(), None)


class DrawingRanker:
    """For the rejection rule: draws candidates from the draft model's processed distribution, without
    replacement.

    The draws (the best of scores + Gumbel noise, which is the same thing) come from a stream of noise of
    their own.
    """

    drawn = True

    def __init__(self, pipeline: Pipeline, seed: int, vocab_size: int) -> None:
        self._pipeline = pipeline
        self._seed = seed
        self._vocab_size = vocab_size
        self._draws = 0

    def rank(self, logits: Floats, history: Ints, path: list[int], count: int) -> Ranked:
        """At most `count` candidates for what follows history + path."""
        chances = self._pipeline.probabilities(widen(logits, self._vocab_size), history, path)
        able = np.flatnonzero(chances)
        self._draws += 1  # nodes at one position draw independently of each other, and of earlier steps
        stream = DRAFT + (self._draws << 8)
        noise = -np.log(-np.log(uniforms(self._seed, len(history) + len(path), stream, able)))
        order = np.argsort(-(np.log(chances[able]) + noise), kind="stable")[:count]
        tokens = able[order]
        return Ranked(tokens.tolist(), chances[tokens].tolist(), chances)


def widen(logits: Floats, vocab_size: int) -> Floats:
    """A draft model's logits over the target's vocabulary: padding on either side gets no probability."""
    if logits.size >= vocab_size:
        return logits[:vocab_size]
    wide = np.full(vocab_size, -np.inf, dtype=np.float32)
    wide[: logits.size] = logits
    return wide


def shortlist(scores: Doubles) -> npt.NDArray[np.int64]:
    """The ids of the best few, ascending."""
    if scores.size <= SHORTLIST:
        return np.flatnonzero(scores > -np.inf)
    least = np.partition(scores, -SHORTLIST)[-SHORTLIST]
    return np.flatnonzero(scores >= max(least, np.finfo(np.float64).min))
