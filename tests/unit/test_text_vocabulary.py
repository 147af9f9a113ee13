"""Heads that say the tokens of their text beside their own: as a head would that had them all along."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.tiny_cpu import tiny_cpu_backend, tiny_weights
from forerun import _core
from forerun.backends.cpu import CpuBackend
from forerun.backends.cpu.heads import CpuHead, HeadCore
from forerun.core.tree import DraftTree
from forerun.models.heads import open_head
from forerun.models.heads.head import Head
from forerun.models.rows import Rows
from forerun.sampling.fused import core_settings
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from support.heads import Sizes, TinyHead

VOCAB = 200
FAMILIES = ("eagle", "eagle3", "medusa", "hydra")
WARM = SamplingParams(temperature=0.9, seed=4)
PROCESSED = SamplingParams(temperature=0.9, seed=4, repetition_penalty=1.3, banned_tokens=(7,), top_p=0.9)


def made_target() -> CpuBackend:
    backend = tiny_cpu_backend(VOCAB)
    assert isinstance(backend, CpuBackend)
    return backend


TARGET = made_target()
DRAW = np.random.default_rng(8)
ORDER = DRAW.permutation(VOCAB).astype(np.int32)  # tokens of the heads, the first so many
TEXTS = [DRAW.integers(0, VOCAB, size).tolist() for size in (90, 40, 60)]


def head_of(folder: Path, family: str, tokens: np.ndarray) -> Head:
    """A head by the target's output layer that says these tokens; the same one for any."""
    if family != "medusa":
        sizes = Sizes(vocab=VOCAB)
        tiny = sizes.eagle() if family == "eagle" else sizes.eagle3(head=False, reduced=False)
        tiny = sizes.hydra(small=True) if family == "hydra" else tiny
        head = open_head(tiny.save(folder / family))
        return replace(head, tokens=tokens, outputs=tokens.size)
    tiny = Sizes(vocab=VOCAB).vllm_medusa(shared=True)
    rows = tiny_weights(TARGET.config)["lm_head.weight"][tokens]
    arrays = {**tiny.arrays, "token_map": tokens.astype(np.int64), "lm_heads.0.weight": rows}
    return open_head(
        TinyHead({**tiny.config, "truncated_vocab_size": tokens.size}, arrays).save(folder / family)
    )


def new_core(loaded: CpuHead, params: SamplingParams = WARM) -> HeadCore:
    settings = core_settings(Pipeline(params, VOCAB, (VOCAB - 1,), 1), params.seed or 0)
    return loaded.drafter(settings, 200)


def tell(core: HeadCore, text: list[int], taps: tuple[int, ...]) -> None:
    """What follows the part of the text that the drafter knows."""
    known = core.length
    if known == 0:
        core.observe(text[:1], None)
        known = 1
    if len(text) > known:
        ids = np.array(text[:-1], dtype=np.int32)
        states = TARGET.forward(Rows.chain(ids, TARGET.new_cache(200)), ids[:0], taps).features
        core.observe(text[known:], states[known - 1 :].reshape(len(text) - known, -1).copy())


def told(loaded: CpuHead, text: list[int], params: SamplingParams = WARM) -> HeadCore:
    """A drafter that has read the whole text at once."""
    core = new_core(loaded, params)
    tell(core, text, loaded.taps)
    return core


def same(one: DraftTree, two: DraftTree, rounding: float = 0.0) -> None:
    assert one.ids == two.ids
    assert one.parents.tolist() == two.parents.tolist()
    assert one.chances is not None
    assert two.chances is not None
    np.testing.assert_allclose(one.chances, two.chances, rtol=rounding)


def rare(text: list[int], own: int) -> list[int]:
    """Its tokens that a head of so many lacks, in the order in which they come."""
    return [token for token in dict.fromkeys(text) if token not in ORDER[:own]]


@pytest.mark.parametrize("family", ["eagle", "eagle3"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8", "q4"])
@pytest.mark.parametrize("own", [48, 37])
def test_logits_are_those_of_a_head_that_had_the_tokens(
    family: str, dtype: str, own: int, tmp_path: Path
) -> None:
    """Bit for bit, where the head's outputs fill their last tile and where they do not."""
    more = rare(TEXTS[0], own)
    small = TARGET.load_head(head_of(tmp_path, family, ORDER[:own]), dtype=dtype)
    large = TARGET.load_head(
        head_of(tmp_path, family, np.concatenate([ORDER[:own], more]).astype(np.int32)),
        dtype=dtype,
        text_tokens=0,
    )
    logits = []
    for loaded in (small, large):
        core = told(loaded, TEXTS[0])
        core.propose(8, 3, 0.0)
        assert isinstance(core, _core.EagleDrafter)
        assert core.rare == (more if loaded is small else [])
        logits.append(core.logits)
    assert logits[0].size == own + len(more) > own + 30
    assert (logits[0] == logits[1]).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("own", [48, 37])
@pytest.mark.parametrize(
    "params",
    [SamplingParams(), WARM, PROCESSED, replace(WARM, acceptance="rejection")],
    ids=["greedy", "coupled", "processed", "rejection"],
)
def test_drafts_are_those_of_a_head_that_had_the_tokens(
    family: str, own: int, params: SamplingParams, tmp_path: Path
) -> None:
    """The trees, with the target's noise among the new tokens too. Chances are sums over the outputs, in the
    order in which they lie."""
    small = TARGET.load_head(head_of(tmp_path, family, ORDER[:own]))
    said = 0
    for text in TEXTS:
        more = rare(text, own)
        both = np.concatenate([ORDER[:own], more]).astype(np.int32)
        large = TARGET.load_head(head_of(tmp_path, family, both), text_tokens=0)
        tree = told(small, text, params).propose(20, 3, 0.0)
        same(tree, told(large, text, params).propose(20, 3, 0.0), 0.0 if own == 48 else 1e-5)
        said += sum(token in more for token in tree.ids[1:])
    assert said > 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_of_the_text_is_guessed_and_not_without(family: str, tmp_path: Path) -> None:
    own, all_tokens = 48, np.arange(VOCAB, dtype=np.int32)
    head = head_of(tmp_path, family, ORDER[:own])
    following, fixed = TARGET.load_head(head), TARGET.load_head(head, text_tokens=0)
    whole = TARGET.load_head(head_of(tmp_path, family, all_tokens))
    cases = 0
    for text in (TEXTS[0][:end] for end in range(40, 90)):
        best = told(whole, text).propose(1, 1, 0.0).ids[1]
        if best in rare(text, own):
            cases += 1
            assert told(following, text).propose(1, 1, 0.0).ids[1] == best
            assert best not in told(fixed, text).propose(40, 1, 0.0).ids[1:]
    assert cases > 3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("most", [1024, 20, 3])
def test_drafts_depend_on_the_text_alone(family: str, most: int, tmp_path: Path) -> None:
    """However it came, what was taken back, and whatever other text the drafter or the head had before."""
    loaded = TARGET.load_head(head_of(tmp_path, family, ORDER[:37]), text_tokens=most)
    one, two = new_core(loaded), new_core(loaded)
    for text in TEXTS:
        one.begin()
        for length in (1, 2, 30, 31, 36, 40):
            tell(one, text[:length], loaded.taps)
            one.propose(6, 2, 0.0)
            tell(two, TEXTS[0][: two.length + 3], loaded.taps)
            two.propose(6, 2, 0.0)
        one.truncate(33)
        tell(one, [*text[:33], 5, 6, 7], loaded.taps)
        other = told(loaded, [*text[:33], 5, 6, 7])
        same(one.propose(6, 3, 0.0), other.propose(6, 3, 0.0))
        assert one.rare == other.rare


def test_where_a_text_has_more_the_last_count(tmp_path: Path) -> None:
    loaded = TARGET.load_head(head_of(tmp_path, "eagle3", ORDER[:37]), text_tokens=20)
    core = told(loaded, TEXTS[0])
    core.propose(6, 2, 0.0)
    last = rare(TEXTS[0][::-1], 37)[:20]
    assert len(rare(TEXTS[0], 37)) > 20
    assert sorted(core.rare) == sorted(last)


def test_a_head_with_an_output_layer_of_its_own_says_its_tokens_only(tmp_path: Path) -> None:
    for name, made in (("eagle3", Sizes().eagle3()), ("medusa", Sizes().vllm_medusa())):
        head = open_head(made.save(tmp_path / name))
        assert head.tokens is not None
        assert not head.borrows_rows
