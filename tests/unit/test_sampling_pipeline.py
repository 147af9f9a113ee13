from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import ForerunError, InputError
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import FIRST_SORTED, Pipeline, first_best

VOCAB = 12
LOGITS = np.linspace(-2, 2, VOCAB).astype(np.float32)
NO_TEXT = np.zeros(0, dtype=np.int32)


def pipeline(
    params: SamplingParams, prompt: int = 0, ends: tuple[int, ...] = (11,), vocab: int = VOCAB
) -> Pipeline:
    return Pipeline(params, vocab, ends, prompt)


def kept(params: SamplingParams, logits: np.ndarray) -> list[int]:
    scores = pipeline(params, vocab=logits.size).scores(logits.astype(np.float32))
    return np.flatnonzero(np.isfinite(scores)).tolist()


def test_nothing_asked_nothing_done() -> None:
    assert pipeline(SamplingParams()).processed(LOGITS, NO_TEXT, [1]) is LOGITS


def test_logits_are_never_written_to() -> None:
    logits = LOGITS.copy()
    logits.setflags(write=False)
    params = SamplingParams(
        temperature=1, top_k=3, top_p=0.5, min_p=0.1, repetition_penalty=2, presence_penalty=1,
        frequency_penalty=1, logit_bias={1: 2}, banned_tokens=(2,), min_tokens=9,
    )  # fmt: skip
    made = pipeline(params)
    made.scores(made.processed(logits, NO_TEXT, [1, 2]))


def test_penalties_by_hand() -> None:
    """Prompt 1 1 3, answer 3 5 5 (the last two on the path)."""
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    logits = np.array([1, 1, 1, 1, -1, -1, 0], dtype=np.float32)
    got = pipeline(params, prompt=3, ends=(), vocab=7).processed(
        logits, np.array([1, 1, 3, 3], dtype=np.int32), [5, 5]
    )
    assert got.tolist() == [1, 0.5, 1, 0.5 - 0.75, -1, -2 - 1.0, 0]


def test_bias_comes_before_penalty() -> None:
    params = SamplingParams(repetition_penalty=2.0, logit_bias={0: -3.0})
    got = pipeline(params, vocab=2, ends=()).processed(np.array([1, 1], dtype=np.float32), NO_TEXT, [0])
    assert got.tolist() == [-4, 1]


@given(
    text=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 19), max_size=6),
    prompt=st.integers(0, 20),
)
def test_history_counts_the_same_however_it_grew(text: list[int], cuts: list[int], prompt: int) -> None:
    """Counts are kept from call to call; each call's answer must be the one a new pipeline gives."""
    params = SamplingParams(repetition_penalty=1.3, presence_penalty=0.3, frequency_penalty=0.7)
    kept_up = pipeline(params, prompt)
    for cut in cuts:  # shrinking too: truncated texts
        history = np.array(text[:cut], dtype=np.int32)
        got = kept_up.processed(LOGITS, history, text[cut:])
        anew = pipeline(params, prompt).processed(LOGITS, np.array(text, dtype=np.int32), [])
        assert got.tolist() == anew.tolist()


def test_min_tokens_forbids_every_end_token() -> None:
    params = SamplingParams(min_tokens=2, stop_tokens=(4,))
    made = pipeline(params, prompt=3)
    text = np.array([1, 2, 3], dtype=np.int32)
    for path, forbidden in (([], True), ([5], True), ([5, 6], False), ([5, 6, 7], False)):
        got = made.processed(LOGITS, text, path)
        assert np.isneginf(got[[4, 11]]).tolist() == [forbidden] * 2
        assert np.isfinite(np.delete(got, [4, 11])).all()


def test_allowed_and_banned() -> None:
    params = SamplingParams(allowed_tokens=(1, 2, 3), banned_tokens=(2,))
    got = pipeline(params).processed(LOGITS, NO_TEXT, [])
    assert np.flatnonzero(np.isfinite(got)).tolist() == [1, 3]


def test_top_k_keeps_ties() -> None:
    logits = np.array([0, 3, 2, 2, 1])
    assert kept(SamplingParams(temperature=1, top_k=2), logits) == [1, 2, 3]
    assert kept(SamplingParams(temperature=1, top_k=9), logits) == [0, 1, 2, 3, 4]
    assert kept(SamplingParams(temperature=1, top_k=1), logits) == [1]


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.0, [1]), (0.39, [1]), (0.5, [1, 3]), (0.75, [1, 3, 0]), (0.95, [1, 3, 0, 2]), (1.0, [0, 1, 2, 3])],
)
def test_top_p(top_p: float, expected: list[int]) -> None:
    logits = np.log(np.array([0.2, 0.4, 0.1, 0.3]))
    assert kept(SamplingParams(temperature=1, top_p=top_p), logits) == sorted(expected)


def test_top_p_of_equals_takes_the_lowest_ids() -> None:
    assert kept(SamplingParams(temperature=1, top_p=0.5), np.zeros(8)) == [0, 1, 2, 3]


@given(seed=st.integers(0, 999), top_p=st.floats(0.01, 1, exclude_max=True), width=st.floats(0, 8))
def test_top_p_sorts_no_more_than_it_must(seed: int, top_p: float, width: float) -> None:
    """Beyond FIRST_SORTED tokens, and with many ties, the set is the one that the definition gives."""
    draw = np.random.default_rng(seed)
    logits = np.round(draw.normal(size=3 * FIRST_SORTED) * width, 1).astype(np.float32)
    p = np.exp(logits.astype(np.float64) - logits.max())
    p /= p.sum()
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    before = np.concatenate([[0], np.cumsum(p[order])[:-1]])
    if np.abs(before - top_p).min() < 1e-9:  # rounding may decide
        return
    want = order[(before < top_p) | (np.arange(order.size) == 0)]
    assert kept(SamplingParams(temperature=1, top_p=top_p), logits) == sorted(want.tolist())


def test_min_p() -> None:
    logits = np.log(np.array([0.5, 0.26, 0.2, 0.04]))
    assert kept(SamplingParams(temperature=1, min_p=0.5), logits) == [0, 1]
    assert kept(SamplingParams(temperature=1, min_p=1.0), logits) == [0]
    assert kept(SamplingParams(temperature=2, min_p=0.5), logits) == [0, 1, 2]  # after temperature


def test_top_p_sees_only_what_top_k_left() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    assert kept(SamplingParams(temperature=1, top_k=2, top_p=0.56), logits) == [0]


@given(seed=st.integers(0, 999), temperature=st.floats(0.05, 5))
def test_probabilities(seed: int, temperature: float) -> None:
    logits = np.random.default_rng(seed).normal(size=30).astype(np.float32) * 4
    made = pipeline(SamplingParams(temperature=temperature), vocab=30)
    wide = np.exp((logits - logits.max()) / np.float64(temperature))
    assert np.allclose(made.probabilities(logits, NO_TEXT, []), wide / wide.sum(), rtol=1e-9)


def test_probabilities_at_temperature_zero() -> None:
    made = pipeline(SamplingParams(), vocab=3, ends=())
    assert made.probabilities(np.array([1, 5, 5], dtype=np.float32), NO_TEXT, []).tolist() == [0, 1, 0]


def test_broken_logits_and_dead_ends_are_named() -> None:
    with pytest.raises(ForerunError, match="not a number"):
        first_best(np.array([1, np.nan, 2]))
    with pytest.raises(ForerunError, match="forbidden"):
        first_best(np.full(4, -np.inf))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(logit_bias={VOCAB: 1.0}),
        SamplingParams(banned_tokens=(-1,)),
        SamplingParams(allowed_tokens=(VOCAB,)),
        SamplingParams(allowed_tokens=()),
        SamplingParams(allowed_tokens=(3,), banned_tokens=(3,)),
        SamplingParams(stop_tokens=(10**6,)),
        SamplingParams(banned_tokens=("x",)),  # type: ignore[arg-type]
    ],
)
def test_token_ids_are_checked(params: SamplingParams) -> None:
    with pytest.raises(InputError):
        pipeline(params)
