"""Several sequences verified in one forward: each writes what it would write alone."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.chaos import ChaosDrafter
from conformance.writing import end_token, rule_for, write_plainly
from forerun.core.budget import FixedBudget
from forerun.core.engine import Decoding, decode_together
from forerun.core.report import Report
from forerun.models.backend import Backend
from forerun.models.sequence import Sequence, verify_together
from forerun.sampling.params import SamplingParams


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(st.lists(st.integers(0, 23), min_size=1, max_size=9), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 25), min_size=4, max_size=4),
    seed=st.integers(0, 99),
    leave=st.none() | st.integers(0, 30),
)
def test_together_is_as_alone(
    backend: Backend, prompts: list[list[int]], lengths: list[int], seed: int, leave: int | None
) -> None:
    """Also when the caller leaves in the middle of a round."""
    runs, plain, written = [], [], [list(prompt) for prompt in prompts]
    for place, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=0.8, seed=seed + place, max_tokens=lengths[place], repetition_penalty=1.1
        )
        plain.append(write_plainly(backend, prompt, params).tokens)
        target = Sequence(backend, rule_for(params, backend, prompt), context=64, capacity=80, taps=(1,))
        drafter = ChaosDrafter(seed, prompt + plain[-1], 0.7, 9, 24, taps=(1,))
        runs.append(
            Decoding(
                target,
                drafter,
                prompt,
                policy=FixedBudget(),
                stop=end_token(backend, params),
                max_tokens=params.max_tokens,
                report=Report(),
            )
        )
        runs[-1].read()
    rounds = decode_together(runs, verify_together)
    for count, (place, step) in enumerate(rounds):
        written[place] += step.tokens
        if count == leave:
            rounds.close()
            break
    for run, prompt, text, tokens in zip(runs, prompts, written, plain, strict=True):
        assert text == (prompt + tokens)[: len(text)]
        assert run.text == text
        assert run.target.tokens.tolist() == text[:-1]
        if leave is None:
            assert text == prompt + tokens
            assert run.report.target_forwards <= len(tokens)
