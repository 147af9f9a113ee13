"""Is the text the target's own? Speculative decoding next to plain decoding, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from forerun.answers import Stream
from forerun.bench.prompts import Prompt
from forerun.engine import Engine
from forerun.models.guide import Guide
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline


@dataclass(frozen=True)
class Difference:
    """Where a text first differs from plain decoding's.

    Attributes:
        position: in the answer, from 0.
        plain, found: the two tokens; None where one text has ended.
        margin: how much larger the plain token's logit is than the other's, or None where one text has ended.
    """

    position: int
    plain: int | None
    found: int | None
    margin: float | None


@dataclass(frozen=True)
class Comparison:
    """One prompt, decoded plainly and with a drafter.

    Attributes:
        tokens: compared.
        forwards: of the target, with the drafter.
        difference: the first one, or None.
    """

    prompt: Prompt
    drafter: str
    temperature: float
    tokens: int
    forwards: int
    difference: Difference | None


def compare(
    engine: Engine,
    prompt: Prompt,
    drafters: Sequence[str],
    temperatures: Sequence[float],
    *,
    max_tokens: int,
    seed: int,
    raw: bool = False,
) -> Iterator[Comparison]:
    """One prompt at every temperature with every drafter, under the coupled rule.

    The prompt is computed once, and each temperature's plain answer once.

    Raises:
        InputError: a prompt that does not fit, an unknown drafter, parameters out of range.
    """
    ids = engine.encode(prompt.text if raw else [{"role": "user", "content": prompt.text}])
    last = None
    for temperature in temperatures:
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
        last = _write(engine, ids, params, "none", last)
        plain = last.result.tokens
        for drafter in drafters:
            last = _write(engine, ids, params, drafter, last)
            found = last.result.tokens
            difference = _difference(engine, ids, plain, found)
            forwards = last.result.report.target_forwards
            yield Comparison(prompt, drafter, temperature, len(plain), forwards, difference)


def _write(
    engine: Engine, ids: list[int], params: SamplingParams, drafter: str, after: Stream | None = None
) -> Stream:
    """A finished answer."""
    with engine.stream_tokens(ids, params, drafter=drafter, after=after) as stream:
        for _ in stream:
            pass
    return stream


def _difference(engine: Engine, ids: list[int], plain: list[int], found: list[int]) -> Difference | None:
    if plain == found:
        return None
    same = next((i for i, (a, b) in enumerate(zip(plain, found, strict=False)) if a != b), None)
    if same is None:
        at = min(len(plain), len(found))
        ended, goes_on = (text[at] if at < len(text) else None for text in (plain, found))
        return Difference(at, ended, goes_on, None)
    logits = next_logits(engine, ids + plain[:same])
    return Difference(same, plain[same], found[same], float(logits[plain[same]] - logits[found[same]]))


def next_logits(engine: Engine, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """float32 [vocabulary]: the target's logits after these tokens, computed plainly."""
    guide = Guide(engine.backend, len(ids))
    found: npt.NDArray[np.float32] = guide.advance(np.array(ids, dtype=np.int32)).copy()
    return found


@dataclass(frozen=True)
class Distribution:
    """How often the answer's first tokens came, against the target's own probabilities.

    Attributes:
        place: 0 for the first token; 1 for the second, after the first one that came most often.
        draws: how many.
        drafted, accepted: guesses that were verified in all of the prompt's answers, and how many were right.
        statistic: Pearson's chi-square over tokens expected at least five times, the rest as one.
        p_value: how often a sample of the target itself is at least as far off.
    """

    prompt: Prompt
    drafter: str
    place: int
    draws: int
    drafted: int
    accepted: int
    statistic: float
    p_value: float


def distributions(
    engine: Engine,
    prompt: Prompt,
    drafter: str,
    params: SamplingParams,
    *,
    draws: int,
    raw: bool = False,
    drawn: Callable[[], None] = lambda: None,
) -> Iterator[Distribution]:
    """The first two tokens of `draws` answers, seeds params.seed, params.seed + 1, ...

    `params.max_tokens` must leave room for guesses at the second token: 3 or more. `drawn` is called after
    each answer.
    """
    ids = engine.encode(prompt.text if raw else [{"role": "user", "content": prompt.text}])
    first_seed = params.seed or 0
    pairs, last, drafted, accepted = [], None, 0, 0
    for draw in range(draws):
        each = replace(params, seed=first_seed + draw)
        last = _write(engine, ids, each, drafter, last)
        pairs.append(tuple(last.result.tokens[:2]))
        drawn()
        counts = last.result.report.drafters.values()
        drafted += sum(count.drafted for count in counts)
        accepted += sum(count.accepted for count in counts)

    def judged(place: int, prefix: list[int], tokens: npt.NDArray[np.int64]) -> Distribution:
        statistic, p_value = _judge(engine, place, prefix, tokens, params)
        return Distribution(prompt, drafter, place, len(tokens), drafted, accepted, statistic, p_value)

    firsts = np.array([pair[0] for pair in pairs])
    yield judged(0, ids, firsts)
    most = int(np.bincount(firsts).argmax())
    seconds = np.array([pair[1] for pair in pairs if len(pair) > 1 and pair[0] == most])
    if len(seconds) >= 100:
        yield judged(1, [*ids, most], seconds)


def _judge(
    engine: Engine, place: int, prefix: list[int], tokens: npt.NDArray[np.int64], params: SamplingParams
) -> tuple[float, float]:
    """Chi-square and p-value of tokens that came after `prefix`."""
    config = engine.backend.config
    pipeline = Pipeline(params, config.vocab_size, config.eos_token_ids, len(prefix) - place)
    history = np.array(prefix, dtype=np.int32)
    expected = pipeline.probabilities(next_logits(engine, prefix), history, [])
    counts = np.bincount(tokens, minlength=config.vocab_size)
    often = expected * len(tokens) >= 5
    chances = np.append(expected[often], max(expected[~often].sum(), 0.0))
    seen = np.append(counts[often], counts[~often].sum())
    off = (seen - chances * len(tokens)) ** 2 / np.maximum(chances * len(tokens), 1e-9)
    statistic = float(off[chances > 0].sum())
    impossible = bool(counts[expected == 0].sum())  # a token that the target never writes
    p_value = 0.0 if impossible else _upper_tail(statistic, int((chances > 0).sum()) - 1)
    return statistic, p_value


def _upper_tail(statistic: float, freedom: int) -> float:
    """P(chi-square >= statistic), by Wilson and Hilferty's cube-root approximation (PNAS 17, 1931)."""
    if freedom < 1:
        return 1.0
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2)) / 2
