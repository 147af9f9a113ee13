"""The logits pipeline: from a model's logits to the scores that tokens are chosen by.

One definition, for plain and for speculative decoding, applied at each node to that node's own path. Order
and edge cases are those of transformers' `generate` (`_get_logits_processor`):

    1 logit bias                     added
    2 repetition penalty             positive logits divided, negative ones multiplied
    3 presence, frequency penalty    subtracted (transformers has none; as OpenAI's interface defines them)
    4 banned, allowed tokens         -inf; and what a grammar does not allow here
    5 min tokens                     end tokens -inf
    6 temperature                    divided
    7 top-k                          what is below the k-th score; ties with it stay
    8 top-p                          a token stays while those before it (higher score, or tied and lower id)
                                     sum to less than top-p; the first always stays
    9 min-p                          what is less than min-p times as probable as the most probable

1 to 5 are in single precision as the logits are, 6 to 9 in double precision with `arithmetic`'s functions.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from forerun.errors import ForerunError, InputError
from forerun.sampling.arithmetic import Doubles, exp, lane_sum, log
from forerun.sampling.params import SamplingParams

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint32]

FIRST_SORTED = 256


class Pipeline:
    """The pipeline of one generation.

    Args:
        params: what was asked for.
        vocab_size: of the model.
        end_tokens: the model's end tokens; `params.stop_tokens` count too where end tokens are forbidden.
        prompt_length: tokens before the answer.

    Attributes:
        bias_tokens, bias: ids and what is added to their logits.
        forbidden: ids that are banned or not among the allowed.
        end_tokens: ids that are out while the answer has less than `params.min_tokens`.
        counts_history: whether there is a penalty.
        plain: steps 1 to 5 have nothing to do.

    Raises:
        InputError: a token id outside the vocabulary, or nothing left to choose.
    """

    def __init__(
        self, params: SamplingParams, vocab_size: int, end_tokens: Iterable[int], prompt_length: int
    ) -> None:
        self.params = params
        self.vocab_size = vocab_size
        self.prompt_length = prompt_length
        bias = params.logit_bias
        self.bias_tokens = _token_ids("logit_bias", bias, vocab_size)
        self.bias = np.array(list(bias.values()), dtype=np.float32)
        self.forbidden = _forbidden(params, vocab_size)
        ends = {token for token in end_tokens if token < vocab_size}
        self.end_tokens = _token_ids("stop_tokens", ends.union(params.stop_tokens), vocab_size)
        self.counts_history = params.repetition_penalty != 1 or bool(
            params.presence_penalty or params.frequency_penalty
        )
        self.plain = not (bias or self.counts_history or self.forbidden.size or params.min_tokens)
        self._counted = 0
        self._seen = np.zeros(vocab_size, dtype=np.bool_)
        self._counts = np.zeros(vocab_size, dtype=np.int32)

    def processed(
        self, logits: Floats, history: Ints, path: list[int], allowed: Bits | None = None
    ) -> Floats:
        """Steps 1 to 5: float32 [vocabulary]; `logits` itself where there is nothing to do.

        Args:
            logits: float32 [vocabulary].
            history: the text up to the path; grows from call to call, and only at its end.
            path: the tokens after it, up to the place where a token is to be chosen.
            allowed: uint32 [vocabulary / 32, rounded up], what a grammar allows here: token t's bit is t mod
                32 of word t div 32, the lowest being 0; None allows all.
        """
        if self.plain and allowed is None:
            return logits
        logits = logits.copy()
        logits[self.bias_tokens] += self.bias
        if self.counts_history:
            self._penalise(logits, history, path)
        logits[self.forbidden] = -np.inf
        if allowed is not None:
            logits[~_unpacked(allowed, logits.size)] = -np.inf
        if max(len(history) + len(path) - self.prompt_length, 0) < self.params.min_tokens:
            logits[self.end_tokens] = -np.inf
        return logits

    def scores(self, processed: Floats) -> Doubles:
        """Steps 6 to 9, for a temperature above 0: float64 [vocabulary], -inf where a token is out."""
        params = self.params
        scores: Doubles = processed.astype(np.float64) / params.temperature
        if 0 < params.top_k < scores.size:
            scores[scores < np.partition(scores, -params.top_k)[-params.top_k]] = -np.inf
        if params.top_p < 1:
            scores = _nucleus(scores, params.top_p)
        if params.min_p > 0:
            scores[scores < scores.max() + log(np.array([params.min_p]))] = -np.inf
        return scores

    def probabilities(
        self, logits: Floats, history: Ints, path: list[int], allowed: Bits | None = None
    ) -> Doubles:
        """float64 [vocabulary]: the distribution the next token has; a point mass at temperature 0, and where
        a logit is infinite."""
        processed = self.processed(logits, history, path, allowed)
        best = first_best(processed)
        if self.params.temperature == 0 or np.isposinf(processed[best]):
            one: Doubles = np.zeros(processed.size)
            one[best] = 1.0
            return one
        scores = self.scores(processed)
        weights = exp(scores - scores[first_best(scores)])
        result: Doubles = weights / lane_sum(weights)
        return result

    def _penalise(self, logits: Floats, history: Ints, path: list[int]) -> None:
        if len(history) < self._counted:  # truncated: count again
            self._counted = 0
            self._seen[:] = False
            self._counts[:] = 0
        self._seen[history[self._counted :]] = True
        np.add.at(self._counts, history[max(self._counted, self.prompt_length) :], 1)
        self._counted = len(history)
        if self.params.repetition_penalty != 1:
            seen = self._seen.copy()
            seen[path] = True
            penalty = np.float32(self.params.repetition_penalty)
            hit = logits[seen]
            logits[seen] = np.where(hit < 0, hit * penalty, hit / penalty)
        counts = self._counts.copy()
        np.add.at(counts, path[max(self.prompt_length - len(history), 0) :], 1)
        used = np.flatnonzero(counts)
        logits[used] -= np.float32(self.params.frequency_penalty) * counts[used].astype(np.float32)
        logits[used] -= np.float32(self.params.presence_penalty)


def first_best(scores: Floats | Doubles, model: str = "the model") -> int:
    """The lowest id among those with the highest score. `model`: whose scores they are.

    Raises:
        ForerunError: not a number among the scores.
        InputError: every token is forbidden.
    """
    best = int(scores.argmax())
    if np.isnan(scores[best]):
        raise ForerunError(f"{model} computed a logit that is not a number; its weights may be damaged")
    if np.isneginf(scores[best]):
        raise InputError(
            "every token is forbidden; loosen banned_tokens, allowed_tokens or min_tokens, "
            "or the grammar where there is one"
        )
    return best


def _nucleus(scores: Doubles, top_p: float) -> Doubles:
    """Step 8. Sorting few is enough almost always: the order is the same, only shorter."""
    best = scores[first_best(scores)]
    enough = top_p * lane_sum(exp(scores - best))
    for size in (FIRST_SORTED, scores.size):
        least = np.partition(scores, -size)[-size] if size < scores.size else -np.inf
        tokens = np.flatnonzero(scores >= least)
        tokens = tokens[np.argsort(-scores[tokens], kind="stable")]
        weights = exp(scores[tokens] - best)
        before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
        out = np.flatnonzero(before >= enough)
        if out.size or size >= scores.size:
            break
    kept = tokens[: max(int(out[0]), 1)] if out.size else tokens
    result: Doubles = np.full_like(scores, -np.inf)
    result[kept] = scores[kept]
    return result


def _unpacked(bits: Bits, size: int) -> npt.NDArray[np.bool_]:
    if bits.size * 32 < size:
        raise ValueError(f"{bits.size} words of allowed tokens are too few for a vocabulary of {size}")
    return np.unpackbits(bits.astype("<u4").view(np.uint8), count=size, bitorder="little").view(np.bool_)


def _forbidden(params: SamplingParams, vocab_size: int) -> npt.NDArray[np.int64]:
    """Ids that are banned or not among the allowed."""
    out = np.zeros(vocab_size, dtype=np.bool_)
    if params.allowed_tokens is not None:
        out[:] = True
        out[_token_ids("allowed_tokens", params.allowed_tokens, vocab_size)] = False
    out[_token_ids("banned_tokens", params.banned_tokens, vocab_size)] = True
    if out.all():
        raise InputError("allowed_tokens and banned_tokens leave no token to choose; allow at least one")
    return np.flatnonzero(out)


def _token_ids(name: str, ids: Iterable[int], vocab_size: int) -> npt.NDArray[np.int64]:
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token < vocab_size:
            raise InputError(f"{name} names {token!r}, which is no token: ids go from 0 to {vocab_size - 1}")
    return np.array(list(ids), dtype=np.int64)
