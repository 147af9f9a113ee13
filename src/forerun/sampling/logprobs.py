"""Log-probabilities of emitted tokens: the model's own, before the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.sampling.arithmetic import exp, lane_sum, log
from forerun.sampling.pipeline import Floats


@dataclass(frozen=True)
class TokenLogprob:
    """One emitted token.

    Attributes:
        token: its id.
        logprob: log of the probability that the model gave it.
        top: the most probable tokens there with theirs, the best first (of equals, the lower id).
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


def token_logprob(logits: Floats, token: int, top: int) -> TokenLogprob:
    """From the model's logits, float32 [vocabulary], where `token` was chosen."""
    wide = logits.astype(np.float64)
    best = wide.max()
    wide -= best + log(np.array([lane_sum(exp(wide - best))]))
    top = min(top, wide.size)
    tokens = np.flatnonzero(wide >= np.partition(wide, -top)[-top]) if top else np.zeros(0, dtype=np.int64)
    tokens = tokens[np.argsort(-wide[tokens], kind="stable")][:top]
    pairs = list(zip(tokens.tolist(), wide[tokens].tolist(), strict=True))
    return TokenLogprob(token, float(wide[token]), pairs)
