"""The logits pipeline against the processors that transformers' `generate` builds for the same request."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB = 300
END = 7


@pytest.mark.parametrize("case", range(200))
def test_same_tokens_left_same_probabilities(case: int) -> None:
    draw = np.random.default_rng(case)
    logits = (draw.normal(size=VOCAB) * draw.uniform(0.5, 6)).astype(np.float32)
    prompt = draw.integers(0, VOCAB, 6).tolist()
    answer = draw.integers(0, VOCAB, int(draw.integers(0, 8))).tolist()

    def some(*values: float) -> float:
        return float(draw.choice(values))

    params = SamplingParams(
        temperature=some(0.3, 0.7, 1.0, 1.4),
        top_k=int(some(0, 1, 5, 40, 1000)),
        top_p=some(1.0, 0.95, 0.6, 0.1),
        min_p=some(0.0, 0.02, 0.3),
        repetition_penalty=some(1.0, 1.2, 0.7),
        logit_bias={int(token): float(draw.normal()) for token in draw.integers(0, VOCAB, int(some(0, 4)))},
        min_tokens=int(some(0, 4)),
        banned_tokens=tuple(draw.integers(0, VOCAB, int(some(0, 5))).tolist()),
    )
    import transformers.generation.logits_process as process

    text = torch.tensor([prompt + answer])
    chain = []
    if params.logit_bias:
        bias = [[[token], value] for token, value in params.logit_bias.items()]
        chain.append(process.SequenceBiasLogitsProcessor(bias))
    chain.append(process.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    chain.append(process.MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, END))
    if params.banned_tokens:
        chain.append(process.SuppressTokensLogitsProcessor(params.banned_tokens))
    chain.append(process.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        chain.append(process.TopKLogitsWarper(params.top_k))
    chain.append(process.TopPLogitsWarper(params.top_p))
    chain.append(process.MinPLogitsWarper(params.min_p))
    scores = torch.tensor(logits)[None]
    for processor in chain:
        scores = processor(text, scores)
    want = torch.softmax(scores[0].double(), dim=0).numpy()

    pipeline = Pipeline(params, VOCAB, [END], len(prompt))
    split = int(draw.integers(len(answer) + 1))
    history = np.array(prompt + answer[:split], dtype=np.int32)
    got = pipeline.probabilities(logits, history, answer[split:])
    assert (got > 0).tolist() == (want > 0).tolist()
    assert np.allclose(got, want, rtol=1e-4, atol=1e-9)
