"""A draft model with a part of its target's vocabulary: what it reads and says, and files that are wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import forerun
from conformance.tiny_model import TinyBackend
from conformance.writing import write, write_plainly
from forerun.cli.app import run
from forerun.cli.inspect import inspect
from forerun.core.budget import FixedBudget
from forerun.drafters.model import ModelDrafter
from forerun.errors import InputError
from forerun.models.draft_vocabulary import PIECES, READS, TOKENS, DraftVocabulary, draft_vocabulary
from forerun.models.guide import Guide
from forerun.models.outline import read_outline
from forerun.planning import make_planner
from forerun.sampling.fused import FusedCoupledRanker, FusedDrawingRanker
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from support.tiny import Tiny, vocabulary, write_tiny_gguf

KNOWN = np.array([1, 2, 5, 7, 8, 11, 14, 15, 20, 23], dtype=np.int32)
PART = DraftVocabulary(
    KNOWN, np.searchsorted(KNOWN, np.arange(24)).astype(np.int32), [str(token) for token in KNOWN]
)
TARGET = TinyBackend(sharpness=4.0)
OWN = TinyBackend(vocab_size=10, sharpness=4.0, seed=6)


def test_what_is_read_and_said() -> None:
    assert PART.read(np.array([1, 2, 3, 23, 99], dtype=np.int32)).tolist() == [0, 1, 2, 9, 0]
    used = PART.spread(np.ones((3, 10), dtype=np.float32), PART.blank(3))
    wide = PART.spread(np.arange(20, dtype=np.float32).reshape(2, 10), used)
    assert wide.shape == (2, 24)
    assert wide[1, KNOWN].tolist() == list(range(10, 20))
    assert (np.delete(wide, KNOWN, axis=1) < -1e8).all()


@settings(max_examples=30, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 23), min_size=1, max_size=8),
    temperature=st.sampled_from([0.0, 0.9]),
    drawn=st.booleans(),
    seed=st.integers(0, 99),
    allowed=st.sampled_from([(), (3, 4, 6), (0, 1, 2, 3), (21,)]),
)
def test_text_is_the_targets(
    prompt: list[int], temperature: float, drawn: bool, seed: int, allowed: tuple[int, ...]
) -> None:
    """Whatever the draft model lacks; and all that it drafts is what it knows, but where others alone are
    allowed."""
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=30, allowed_tokens=allowed or None)
    ranker = (FusedDrawingRanker if drawn else FusedCoupledRanker)(
        Pipeline(params, 24, (23,), len(prompt)), seed, 24
    )
    drafter = ModelDrafter(Guide(OWN, 200, PART), ranker)
    written = write(TARGET, drafter, prompt, params, budget=FixedBudget(6, 3))
    assert written.tokens == write_plainly(TARGET, prompt, params).tokens
    drafted = {t for t, o in zip(written.tokens, written.origins, strict=True) if o == "draft"}
    assert drafted <= set(allowed or KNOWN.tolist())


def lists() -> dict[str, list[int] | list[str]]:
    """Of a draft model that has every third token of the tiny tokenizer's."""
    tokens = list(range(0, len(vocabulary()), 3))
    reads = [token // 3 for token in range(len(vocabulary()))]
    return {TOKENS: tokens, READS: reads, PIECES: [vocabulary()[token] for token in tokens]}


def write_draft(path: Path, **other: list[int] | list[str]) -> Path:
    names = {"tokens": TOKENS, "reads": READS, "pieces": PIECES}
    given = lists() | {names[key]: value for key, value in other.items()}
    tiny = Tiny(vocab=len(lists()[TOKENS]), hidden=64, inner=96, heads=4, head_dim=16, seed=1)
    return write_tiny_gguf(path, tiny, quant="Q4_1", tokenizer=False, lists=given)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("target") / "tiny.gguf", Tiny())


def test_from_a_file(target: Path, tmp_path: Path) -> None:
    """A file, or the folder that it is in; planned and inspected like other models."""
    path = write_draft(tmp_path / "draft.gguf")
    params = forerun.SamplingParams(max_tokens=20, ignore_end=True)
    texts = {
        forerun.load(target, drafter=drafter, threads=1, draft_tokens=4).generate("the rest", params).text
        for drafter in ("none", f"draft:{path}", f"suffix,draft:{tmp_path}")
    }
    assert len(texts) == 1
    plan = make_planner(read_outline(str(target)), [f"draft:{tmp_path}"]).at(100)
    assert plan.shares[1].weights > 0
    shown = CliRunner().invoke(inspect, [f"draft:{tmp_path}"])
    assert shown.exit_code == 0
    assert "97" in shown.output
    with pytest.raises(InputError, match="only drafts for another model"):
        forerun.load(path)


ALL = len(vocabulary())


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"tokens": [0] * 97}, "97 different ids, ascending, below 291"),
        ({"tokens": list(range(96))}, "97 different ids"),
        ({"tokens": [*range(0, 288, 3), ALL]}, "below 291"),
        ({"tokens": [-3, *range(0, 288, 3)]}, "below 291"),
        ({"tokens": ["a"] * 97}, "forerun.draft.tokens is not a list of token ids"),
        ({"reads": [97] * ALL}, "forerun.draft.reads does not lead"),
        ({"reads": [-1] * ALL}, "forerun.draft.reads does not lead"),
        ({"reads": [0] * ALL}, "forerun.draft.reads does not lead"),
        ({"reads": [token // 3 for token in range(ALL - 1)]}, "of 290 tokens; this has 291"),
        ({"pieces": ["a"] * 96}, "does not name the 97 tokens"),
        ({"pieces": ["?"] * 97}, "another vocabulary: 96 of 97 ids mean other tokens"),
    ],
)
def test_wrong_files(
    wrong: dict[str, list[int] | list[str]], problem: str, target: Path, tmp_path: Path
) -> None:
    path = write_draft(tmp_path / "draft.gguf", **wrong)
    with pytest.raises(InputError, match=problem):
        forerun.load(target, drafter=f"draft:{path}", threads=1)


def test_one_line_and_status_two(target: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_draft(tmp_path / "draft.gguf", reads=[0] * ALL)
    assert run(["generate", "-m", str(target), "--drafter", f"draft:{path}", "hi"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_other_models_have_no_part() -> None:
    assert draft_vocabulary({}, 10, Path("x")) is None
    with pytest.raises(InputError, match="reads is not a list"):
        draft_vocabulary({TOKENS: KNOWN, PIECES: PART.pieces}, 10, Path("x"))
