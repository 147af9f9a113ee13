"""The two rules that choose a token where drafts are verified. Both implement `models.sequence.Rule`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forerun.sampling.arithmetic import Doubles, lane_sum
from forerun.sampling.noise import ACCEPT, GROUP_SIZE, MOST_GUMBEL, gumbel, least_exponential, uniforms
from forerun.sampling.pipeline import Bits, Floats, Ints, Pipeline, first_best

FEW = 64
LEAST_SCORE = np.finfo(np.float64).min  # what is above -inf
ALL = np.arange(FEW, dtype=np.int64)
MARGIN = 1e-12
"""More than any rounding of the quick test, for scores of size 1."""


class CoupledRule:
    """The token at a position is argmax(scores + gumbel(seed, position, token)), ties to the lowest id.

    This samples exactly from the processed distribution (Gumbel-max), and does not look at the draft: the
    text depends on the seed alone (Daliri, Musco, Suresh, "Coupling without communication and
    drafter-invariant speculative decoding", arXiv 2408.07978). At temperature 0 there is no noise.
    """

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.pipeline = pipeline
        self.seed = seed

    def choose(
        self,
        logits: Floats,
        history: Ints,
        path: list[int],
        candidates: list[int],
        proposal: Doubles | None,
        allowed: Bits | None = None,
    ) -> int:
        processed = self.pipeline.processed(logits, history, path, allowed)
        if self.pipeline.params.temperature == 0:
            return first_best(processed)
        return noisy_best(self.pipeline.scores(processed), self.seed, len(history) + len(path))


def noisy_best(scores: Doubles, seed: int, position: int) -> int:
    """argmax(scores + gumbel(seed, position, token)), ties to the lowest id; noise is made only where it can
    matter.

    The noisy score of the best few is a bar. A token reaches it only where its exponential noise is at most
    exp(score - bar); the least noise of its group rules almost all of them out.
    """
    best = first_best(scores)
    if np.isposinf(scores[best]):
        return best
    few = ALL[: scores.size]
    if scores.size > FEW:
        few = np.flatnonzero(scores >= max(np.partition(scores, -FEW)[-FEW], LEAST_SCORE))
    bar = float((scores[few] + gumbel(seed, position, few)).max())
    margin = MARGIN * max(1.0, abs(bar))
    tokens = np.flatnonzero(scores >= bar - MOST_GUMBEL - margin)
    groups = np.arange(-(-scores.size // GROUP_SIZE))
    least = least_exponential(seed, position, groups)[tokens // GROUP_SIZE]
    tokens = tokens[np.exp(np.minimum(scores[tokens] - bar + margin, 0.0)) >= least]
    noisy = scores[tokens] + gumbel(seed, position, tokens)
    return int(tokens[noisy.argmax()])


class RejectionRule:
    """Speculative sampling: exact in distribution, whatever the drafter.

    Leviathan, Kalman, Matias (arXiv 2211.17192), Chen et al. (2302.01318); for trees SpecInfer (2305.09781)
    and, for candidates drawn without replacement, Sequoia (2402.12374). With target distribution p and
    candidates x1, x2, ... drawn from q: accept x1 with probability min(1, p(x1) / q(x1)); otherwise p becomes
    norm(max(p - q, 0)), q loses x1 and is normalised again, and x2 is tried; when all are refused the token
    is drawn from the p that is left. A refused candidate has no probability left there, so "the token chosen"
    is a candidate exactly when it was accepted. Candidates that were chosen and not drawn are point masses: q
    is 1 at each in turn.
    """

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.pipeline = pipeline
        self.seed = seed

    def choose(
        self,
        logits: Floats,
        history: Ints,
        path: list[int],
        candidates: list[int],
        proposal: Doubles | None,
        allowed: Bits | None = None,
    ) -> int:
        target = self.pipeline.probabilities(logits, history, path, allowed)
        count = np.arange(len(candidates) + 1, dtype=np.int64)
        draws = uniforms(self.seed, len(history) + len(path), ACCEPT, count)
        return choose_by_rejection(target, candidates, proposal, draws)


def choose_by_rejection(
    target: Doubles, candidates: list[int], proposal: Doubles | None, draws: npt.NDArray[np.float64]
) -> int:
    """The rejection rule itself.

    Args:
        target: float64 [vocabulary], a distribution.
        candidates: [k] tokens drawn without replacement from `proposal`, in the order drawn; distinct tokens,
            or repeated ones that are then refused.
        proposal: float64 [vocabulary], a distribution, or None: each candidate was chosen, not drawn.
        draws: float64 [k + 1], uniform in (0, 1), one for each decision.
    """
    left = target.copy()
    source = None if proposal is None else proposal.copy()
    for token, draw in zip(candidates, draws[:-1], strict=True):
        chance = 1.0 if source is None else float(source[token])
        if chance <= 0:  # repeated, so refused before; or never drawable, and then no draw to judge
            continue
        if draw * chance < left[token]:
            return token
        if source is not None:
            np.maximum(left - source, 0.0, out=left)
            source[token] = 0.0
            source /= lane_sum(source) or 1.0
        left[token] = 0.0
        total = lane_sum(left)
        if total <= 0:  # target and proposal are equal but for rounding
            return token
        left /= total
    return draw_from(left, float(draws[-1]))


def draw_from(left: Doubles, draw: float) -> int:
    """The token whose share holds `draw`, in (0, 1). left: float64 [vocabulary], not all 0, of any sum."""
    bounds = np.cumsum(left)
    token = int(np.searchsorted(bounds, draw * bounds[-1], side="right"))
    return min(token, int(np.flatnonzero(left)[-1]))
