"""Several sequences in one forward choose, and keep, what each would alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.chaos import ChaosDrafter
from conformance.tiny_model import TinyBackend
from conformance.writing import rule_for
from forerun.core.accept import walk
from forerun.core.protocols import Budget
from forerun.models.sequence import Sequence, verify_together
from forerun.sampling.params import SamplingParams

BACKEND = TinyBackend()


@settings(max_examples=30, deadline=None)
@given(prompts=st.lists(st.lists(st.integers(0, 23), min_size=2, max_size=9), min_size=1, max_size=4),
       seed=st.integers(0, 999))  # fmt: skip
def test_together_is_as_alone(prompts: list[list[int]], seed: int) -> None:
    params = SamplingParams(temperature=0.8, seed=seed)
    trees, together, alone = [], [], []
    for place, prompt in enumerate(prompts):
        drafter = ChaosDrafter(seed + place, [], 0, 9, 24)
        drafter.begin(np.array(prompt, dtype=np.int32), None)
        trees.append(drafter.propose(Budget(9, 9)).fit(prompt[-1], nodes=9, depth=9, vocab_size=24))
        for group in (together, alone):
            sequence = Sequence(BACKEND, rule_for(params, BACKEND, prompt), context=64, taps=(1,))
            sequence.extend(np.array(prompt[:-1], dtype=np.int32))
            group.append(sequence)
    verdicts = verify_together(together, trees)
    for one, many, tree, verdict in zip(alone, together, trees, verdicts, strict=True):
        mine = one.verify(tree)
        assert (mine.logits == verdict.logits).all()
        assert mine.features is not None
        assert verdict.features is not None
        assert (mine.features == verdict.features).all()
        walked = walk(tree, mine)
        assert walk(tree, verdict) == walked
        for sequence in (one, many):
            sequence.commit(walked.path)
        assert one.tokens.tolist() == many.tokens.tolist()
