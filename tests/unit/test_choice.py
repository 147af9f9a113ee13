"""The core's choice of a token is the reference's, to the last tie and bit, whatever the parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun import _core
from forerun.errors import ForerunError
from forerun.sampling.fused import (
    FusedCoupledRanker,
    FusedCoupledRule,
    FusedDrawingRanker,
    FusedRejectionRule,
    fused_token_logprob,
    new_chooser,
)
from forerun.sampling.logprobs import token_logprob
from forerun.sampling.noise import gumbel
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.ranking import CoupledRanker, DrawingRanker
from forerun.sampling.rules import CoupledRule, RejectionRule

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # the reference computes inf - inf, and so on

KERNELS = _core.available_kernels()
SIZES = [1, 2, 17, 63, 64, 65, 130, 300, 1000, 5000]
NO_TEXT = np.zeros(0, dtype=np.int32)


def numbers(kind: str, size: int, draw: np.random.Generator) -> np.ndarray:
    """Logits of a kind, float32 [size]."""
    normal = draw.normal(size=size)
    wide: dict[str, Any] = {
        "usual": normal * 3,
        "peaked": normal * 12,
        "flat": normal * 1e-3,
        "ties": np.round(normal * 2),
        "near": np.round(normal * 2) + 1e-6 * draw.integers(0, 3, size),
        "equal": np.zeros(size),
        "signs": np.where(normal < 0, 0.0, -0.0),
        "huge": normal * 1e38,
        "large": normal * 1e9,
        "tiny": normal * 1e-42,
        "few": np.where(draw.random(size) < 0.9, -np.inf, normal),
        "holes": np.where(draw.random(size) < 0.2, -np.inf, np.round(normal, 1)),
        "out": np.full(size, -np.inf),
        "damaged": np.where(np.arange(size) == draw.integers(size), np.nan, normal),
        "infinite": np.where(draw.random(size) < 2 / size, np.inf, normal),
    }
    with np.errstate(all="ignore"):
        return np.asarray(wide[kind]).astype(np.float32)


KINDS = [
    "usual", "peaked", "flat", "ties", "near", "equal", "signs", "huge", "large", "tiny", "few", "holes",
    "out", "damaged", "infinite",
]  # fmt: skip


@st.composite
def asked(draw: st.DrawFn, size: int) -> SamplingParams:
    """Any parameters; most of them off most of the time."""

    def maybe(strategy: st.SearchStrategy[Any], off: Any) -> Any:
        return draw(st.one_of(st.just(off), strategy))

    token = st.integers(0, size - 1)
    banned = tuple(maybe(st.lists(token, max_size=20), ()))
    allowed = maybe(st.lists(token, min_size=1, max_size=20).map(tuple), None)
    if (
        len(set(range(size)).difference(banned).intersection(range(size) if allowed is None else allowed))
        == 0
    ):
        banned, allowed = (), None
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1e-4, 0.3, 1.0, 1.0, 1.7, 1e6]) | st.floats(0.05, 5)),
        top_k=maybe(st.sampled_from([1, 2, 7, 50, 200, 1000, 10**9]), 0),
        top_p=maybe(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1 - 1e-12]) | st.floats(0, 1), 1.0),
        min_p=maybe(st.sampled_from([1e-300, 0.02, 0.5, 1.0]) | st.floats(0, 1), 0.0),
        repetition_penalty=maybe(st.sampled_from([1.1, 0.5, 1e-6, 1e6]) | st.floats(0.1, 10), 1.0),
        presence_penalty=maybe(st.floats(-3, 3), 0.0),
        frequency_penalty=maybe(st.sampled_from([-1e6, 1e6]) | st.floats(-3, 3), 0.0),
        logit_bias=maybe(st.dictionaries(token, st.floats(-5, 5) | st.just(1e6), max_size=5), {}),
        banned_tokens=banned,
        allowed_tokens=allowed,
        min_tokens=maybe(st.integers(0, 12), 0),
        stop_tokens=tuple(maybe(st.lists(token, max_size=2), ())),
    )


def outcome(rule: Any, *call: Any) -> int | str:
    try:
        token: int = rule.choose(*call)
    except ForerunError as error:
        return str(error)
    return token


@settings(deadline=None, max_examples=400)
@given(data=st.data(), size=st.sampled_from(SIZES), seed=st.integers(0, 2**64 - 1))
def test_equal_to_the_reference(data: st.DataObject, size: int, seed: int) -> None:
    """Over a text that grows, now and then shrinks, and is looked beyond along changing paths."""
    params = data.draw(asked(size))
    ends = tuple(data.draw(st.lists(st.integers(0, size + 3), max_size=2)))
    prompt = data.draw(st.integers(0, 12))
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    reference = CoupledRule(Pipeline(params, size, ends, prompt), seed)
    fused = FusedCoupledRule(Pipeline(params, size, ends, prompt), seed, data.draw(st.sampled_from(KERNELS)))
    text = draw.integers(0, size, 40).astype(np.int32)
    for kind in kinds:
        at = int(draw.integers(0, 30))
        path = draw.integers(0, size, draw.integers(0, 6)).tolist()
        bits = draw.integers(0, 2**32, -(-size // 32), dtype=np.uint32) if draw.random() < 0.3 else None
        logits = numbers(kind, size, draw)
        logits.setflags(write=False)
        call = (logits, text[:at], path, [], None, bits)
        assert outcome(fused, *call) == outcome(reference, *call), kind


def ranked(ranker: Any, *call: Any) -> tuple[list[int], list[float], list[float] | None] | str:
    try:
        found = ranker.rank(*call)
    except ForerunError as error:
        return str(error)
    return found.tokens, found.chances, None if found.proposal is None else found.proposal.tolist()


@pytest.mark.parametrize(
    ("fused", "reference"), [(FusedCoupledRanker, CoupledRanker), (FusedDrawingRanker, DrawingRanker)]
)
@settings(deadline=None, max_examples=300)
@given(data=st.data(), size=st.sampled_from(SIZES), seed=st.integers(0, 2**64 - 1))
def test_ranking_equal_to_the_reference(
    fused: Any, reference: Any, data: st.DataObject, size: int, seed: int
) -> None:
    """Tokens, and bits of chances and of what is drawn from, call after call: for draft models of the same
    vocabulary and of others."""
    params = data.draw(asked(size))
    prompt, count = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 9) | st.just(80))
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kernels = data.draw(st.sampled_from(KERNELS))
    rankers = (
        fused(Pipeline(params, size, (0,), prompt), seed, size, kernels),
        reference(Pipeline(params, size, (0,), prompt), seed, size),
    )
    text = draw.integers(0, size, 40).astype(np.int32)
    for kind in kinds:
        at = int(draw.integers(0, 30))
        path = draw.integers(0, size, draw.integers(0, 6)).tolist()
        bits = draw.integers(0, 2**32, -(-size // 32), dtype=np.uint32) if draw.random() < 0.3 else None
        logits = numbers(kind, max(size + int(draw.integers(-2, 3)), 1), draw)
        call = (logits, text[:at], path, count, bits)
        assert ranked(rankers[0], *call) == ranked(rankers[1], *call), kind


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 3.0])
def test_the_first_candidate_is_what_the_rule_would_choose(temperature: float, kernels: str) -> None:
    """So a draft model that is the target is always right."""
    size, draw = 49_157, np.random.default_rng(8)
    params = SamplingParams(temperature=temperature, top_p=0.95)
    rule = FusedCoupledRule(Pipeline(params, size, (0,), 5), 6, kernels)
    ranker = FusedCoupledRanker(Pipeline(params, size, (0,), 5), 6, size, kernels)
    reference = CoupledRanker(Pipeline(params, size, (0,), 5), 6, size)
    for place in range(8):
        logits = (draw.normal(size=size) * (2 + place % 3)).astype(np.float32)
        text = (logits, NO_TEXT, [7] * place)
        assert rule.choose(*text, [], None) == ranker.rank(*text, 1).tokens[0]
        assert ranked(ranker, *text, 64) == ranked(reference, *text, 64)


@settings(deadline=None, max_examples=100)
@given(
    data=st.data(),
    size=st.sampled_from(SIZES),
    kind=st.sampled_from([k for k in KINDS if k not in ("out", "damaged")]),
    seed=st.integers(0, 2**32),
)
def test_probabilities_to_the_bit(data: st.DataObject, size: int, kind: str, seed: int) -> None:
    params = data.draw(asked(size))
    logits = numbers(kind, size, np.random.default_rng(seed))
    path = [0, size - 1, 0]
    made = Pipeline(params, size, (), 0)
    wrong, got = new_chooser(made, 1, data.draw(st.sampled_from(KERNELS))).probabilities(
        logits, NO_TEXT, path
    )
    try:
        want = made.probabilities(logits, NO_TEXT, path)
    except ForerunError:
        assert wrong < 0
        return
    assert wrong == 0
    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.3),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, top_p=0.3),
        SamplingParams(temperature=1.0, top_k=50, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.2),
        SamplingParams(temperature=1.3, top_k=5000, top_p=0.95, min_p=0.01),
        SamplingParams(temperature=1.0, min_p=0.1),
    ],
)
def test_equal_at_full_size(params: SamplingParams, kernels: str) -> None:
    size, draw = 49_157, np.random.default_rng(3)
    history = draw.integers(0, size, 300).astype(np.int32)
    reference = CoupledRule(Pipeline(params, size, (0,), 100), 5)
    fused = FusedCoupledRule(Pipeline(params, size, (0,), 100), 5, kernels)
    for place in range(12):
        logits = (draw.normal(size=size) * (2 + place % 3)).astype(np.float32)
        call = (logits, history, list(range(place)), [], None)
        assert fused.choose(*call) == reference.choose(*call)


def test_bounds_give_way_where_they_must() -> None:
    """Equal weights: what is before a token is a multiple of 1 / 64, and top-p is that or next to it."""
    logits = np.zeros(64, dtype=np.float32)
    for share in (0.25, 0.5, np.nextafter(0.5, 0), np.nextafter(0.5, 1), 0.5 + 1e-7):
        params = SamplingParams(temperature=1.0, top_p=float(share))
        rules = [rule(Pipeline(params, 64, (), 0), 9) for rule in (CoupledRule, FusedCoupledRule)]
        for position in range(200):
            call = (logits, NO_TEXT, [0] * position, [], None)
            assert rules[0].choose(*call) == rules[1].choose(*call)


def test_generations_share_nothing() -> None:
    """A rule made after others have been used chooses as the first did."""
    draw = np.random.default_rng(0)
    params = SamplingParams(temperature=1.0, repetition_penalty=2.0, frequency_penalty=1.0, top_k=20)
    logits = draw.normal(size=200).astype(np.float32)

    def texts() -> list[int]:
        rule = FusedCoupledRule(Pipeline(params, 200, (), 0), 3)
        text = NO_TEXT
        for _ in range(30):
            text = np.append(text, np.int32(rule.choose(logits, text[:-1], text[-1:].tolist(), [], None)))
        return text.tolist()

    first = texts()
    other = FusedCoupledRule(Pipeline(params, 200, (), 0), 4)
    other.choose(logits, np.arange(100, dtype=np.int32), [1, 2, 3], [], None)
    assert texts() == first


@settings(deadline=None, max_examples=200)
@given(
    data=st.data(),
    size=st.sampled_from(SIZES),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**64 - 1),
    drawn=st.booleans(),
)
def test_rejection_equal_to_the_reference(
    data: st.DataObject, size: int, kind: str, seed: int, drawn: bool
) -> None:
    params = data.draw(asked(size))
    draw = np.random.default_rng(seed)
    rules = (
        RejectionRule(Pipeline(params, size, (), 0), seed),
        FusedRejectionRule(Pipeline(params, size, (), 0), seed, data.draw(st.sampled_from(KERNELS))),
    )
    for place in range(3):
        logits = numbers(kind, size, draw)
        proposal = draw.dirichlet(np.full(size, 0.1)) if drawn else None
        candidates = np.argsort(-draw.random(size) - logits)[: data.draw(st.integers(0, 4))].tolist()
        call = (logits, NO_TEXT, [0] * place, candidates + candidates[:1], proposal)
        assert outcome(rules[1], *call) == outcome(rules[0], *call)


@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**32 - 1),
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=20),
)
def test_noise_to_the_bit(seed: int, position: int, tokens: list[int]) -> None:
    got = _core.gumbel(seed, position, np.array(tokens, dtype=np.int32))
    assert got.tolist() == gumbel(seed, position, np.array(tokens, dtype=np.int64)).tolist()


@settings(deadline=None, max_examples=200)
@given(
    kind=st.sampled_from(KINDS),
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 2**32),
    top=st.sampled_from([0, 1, 5, 20, 10**6]),
    kernels=st.sampled_from(KERNELS),
)
def test_logprobs_to_the_bit(kind: str, size: int, seed: int, top: int, kernels: str) -> None:
    draw = np.random.default_rng(seed)
    logits = numbers(kind, size, draw)
    token = int(draw.integers(size))
    got, want = fused_token_logprob(logits, token, top, kernels), token_logprob(logits, token, top)
    assert repr(got) == repr(want)  # NaN is NaN


def test_mistakes_are_refused() -> None:
    made = new_chooser(Pipeline(SamplingParams(temperature=1, presence_penalty=1), 100, (), 0), 1)
    logits = np.zeros(100, dtype=np.float32)
    with pytest.raises(ValueError, match="vocabulary"):
        made.choose(logits[:99], NO_TEXT, [])
    with pytest.raises(ValueError, match="vocabulary"):
        made.choose(logits, NO_TEXT, [100])
    with pytest.raises(ValueError, match="vocabulary"):
        made.choose(logits, np.array([-1], dtype=np.int32), [])
    with pytest.raises(ValueError, match="bits"):
        made.choose(logits, NO_TEXT, [], np.zeros(3, dtype=np.uint32))
    with pytest.raises(ValueError, match="count"):
        made.rank(logits, NO_TEXT, [], -1)
    with pytest.raises(ValueError, match="count"):
        made.draw(logits, NO_TEXT, [], -1, 1)
    assert made.choose(logits, NO_TEXT, [99]) >= 0
