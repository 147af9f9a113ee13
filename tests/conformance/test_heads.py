"""Text drafted by heads is the target's: the same tokens as plain decoding writes, or the same
distribution."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.test_equal_to_plain import CONTEXT, check, params, prompts
from conformance.tiny_cpu import tiny_cpu_backend
from conformance.writing import write, write_plainly
from forerun.backends.cpu import CpuBackend
from forerun.backends.cpu.heads import CpuHead
from forerun.core.budget import FixedBudget
from forerun.core.protocols import Budget, Drafter
from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.heads import HeadDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.models.heads import frequent, open_head
from forerun.models.rows import Rows
from forerun.sampling.fused import core_settings
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from support.heads import Sizes, TinyHead

FAMILIES = ("eagle", "eagle3", "medusa", "vllm medusa", "hydra", "small hydra", "cascade")


def tiny_heads(vocab: int, outputs: int) -> dict[str, TinyHead]:
    def sizes() -> Sizes:
        return Sizes(vocab=vocab, outputs=outputs)

    return {
        "eagle": sizes().eagle(fc_bias=True),
        "eagle3": sizes().eagle3(),
        "medusa": sizes().medusa(),
        "vllm medusa": sizes().vllm_medusa(),
        "hydra": sizes().hydra(blocks=2),
        "small hydra": sizes().hydra(heads=4, small=True),
        "cascade": sizes().eagle3(embedding=True, reduced=False, taps=(2, 1, 0)),
    }


def head_drafter(
    loaded: CpuHead,
    vocab: int,
    params: SamplingParams,
    prompt: int,
    capacity: int,
    *,
    least: float = 0.02,
    cascades: bool = False,
) -> Drafter:
    choosing = core_settings(Pipeline(params, vocab, (vocab - 1,), prompt), params.seed or 0)
    head = HeadDrafter(loaded.drafter(choosing, capacity), loaded.taps, loaded.name, least)
    return CascadeDrafter([SuffixDrafter(), head]) if cascades else head


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("heads")
    for vocab, outputs in ((24, 15), (5, 4)):
        for name, head in tiny_heads(vocab, outputs).items():
            head.save(root / str(vocab) / name)
    return root


@pytest.fixture(scope="module", params=["bf16", "q8"])
def target(request: pytest.FixtureRequest) -> CpuBackend:
    backend = tiny_cpu_backend(dtype=request.param)
    assert isinstance(backend, CpuBackend)
    return backend


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=prompts, params=params, seed=st.integers(0, 2**32 - 1), nodes=st.integers(1, 24))
def test_every_parameter(
    target: CpuBackend,
    folder: Path,
    name: str,
    prompt: list[int],
    params: SamplingParams,
    seed: int,
    nodes: int,
) -> None:
    """With contexts of the head's own that end early, and almost no place for drafts at the end of the
    target's."""
    plain = write_plainly(target, prompt, params, context=CONTEXT)
    loaded = target.load_head(open_head(folder / "24" / name))
    capacity = 30 + seed % 60
    drafter = head_drafter(loaded, 24, params, len(prompt), capacity, cascades=name == "cascade")
    budget = FixedBudget(nodes, 1 + seed % 9)
    check(
        write(target, drafter, prompt, params, context=CONTEXT, slack=seed % 3, budget=budget), plain, prompt
    )


@pytest.mark.parametrize("text_tokens", [0, 3])
def test_guessing_from_the_frequent_tokens(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text_tokens: int
) -> None:
    """A head that uses its target's output layer is cut to low ids, the tokens that end a text, and those of
    its text; what is written stays."""
    monkeypatch.setattr(frequent, "LEAST", 9)
    backend = tiny_cpu_backend()
    assert isinstance(backend, CpuBackend)
    head = open_head(folder / "24" / "eagle")
    cut = frequent.frequent_part(head, replace(backend.config, eos_token_ids=(2, 20)))
    assert cut.tokens is not None
    assert cut.tokens.tolist() == [*range(9), 20]
    assert frequent.frequent_part(cut, backend.config) is cut
    loaded, accepted = backend.load_head(head, text_tokens=text_tokens), 0
    more = 0
    for seed in range(12):
        params = SamplingParams(temperature=0.8 * (seed % 2), seed=seed, max_tokens=40)
        drafter = head_drafter(loaded, 24, params, 3, 100, least=0.0)
        plain = write_plainly(backend, [1, 2, seed], params, context=CONTEXT)
        drafted = write(backend, drafter, [1, 2, seed], params, context=CONTEXT, budget=FixedBudget(8, 3))
        check(drafted, plain, [1, 2, seed])
        accepted += sum(count.accepted for count in drafted.report.depths)
        tree = drafter.propose(Budget(8, 3)).tokens[1:]
        own = {*range(9), *backend.config.eos_token_ids}
        assert isinstance(drafter, HeadDrafter)
        assert set(drafter._core.rare) <= {1, 2, seed, *drafted.tokens} - own
        assert set(tree.tolist()) <= own | set(drafter._core.rare)
        more += len(drafter._core.rare)
    assert accepted
    assert (more > 0) == (text_tokens > 0)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_texts_have_the_targets_distribution(folder: Path, name: str, acceptance: str) -> None:
    backend = tiny_cpu_backend(vocab_size=5, sharpness=1.0)
    assert isinstance(backend, CpuBackend)
    loaded = backend.load_head(open_head(folder / "5" / name))
    start, length, draws = [0, 1, 2], 3, 600
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(draws):
        params = SamplingParams(
            temperature=1.0,
            seed=seed,
            max_tokens=length,
            acceptance="coupled" if acceptance == "coupled" else "rejection",
        )
        drafter = head_drafter(loaded, 5, params, len(start), 40, least=0.0, cascades=name == "cascade")
        written = write(
            backend,
            drafter,
            start,
            params,
            context=16,
            budget=FixedBudget(7, 3),
            stop=lambda token: None,
        )
        counts[tuple(written.tokens)] += 1
    chances = {(): 1.0}
    for _ in range(length):
        chances = {
            (*text, token): chance * p
            for text, chance in chances.items()
            for token, p in enumerate(following(backend, [*start, *text]))
        }
    chi, freedom = 0.0, 5**length - 1
    for text in product(range(5), repeat=length):
        chi += (counts[text] - draws * chances[text]) ** 2 / (draws * chances[text])
    assert sum(chances.values()) == pytest.approx(1)
    assert chi < freedom + 4 * np.sqrt(2 * freedom)


def following(backend: CpuBackend, text: list[int]) -> list[float]:
    """The target's distribution of the next token."""
    last = np.array([len(text) - 1], dtype=np.int32)
    logits = backend.forward(Rows.chain(np.array(text, dtype=np.int32), backend.new_cache(32)), last).logits[
        0
    ]
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return (weights / weights.sum()).tolist()
