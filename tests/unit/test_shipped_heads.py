"""The heads that come with the package are whole, small, and made for the models they are named after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import forerun
from forerun.cli.inspect import inspect
from forerun.models.checkpoint import open_checkpoint
from forerun.models.heads import open_head
from forerun.models.heads.fitting import fitting_heads
from forerun.models.heads.size import read_head_size
from forerun.models.hub import Sought, resolve_model
from forerun.models.shipped import FOLDER, shipped, short_name
from forerun.roster import best_drafter
from support.random_models import random_config

NAMES = sorted(str(path.parent.relative_to(FOLDER)) for path in FOLDER.glob("*/*/MODEL_CARD.md"))
HEADS = [name for name in NAMES if not name.endswith("/draft")]


def test_names() -> None:
    assert {f"smollm2-135m/{name}" for name in ("eagle3", "medusa", "hydra", "draft")} == set(NAMES)
    assert all(shipped(name) == FOLDER / name for name in NAMES)
    for other in ("smollm2-135m", "smollm2-135m/none", "../heads/smollm2-135m", "org/name"):
        assert shipped(other) is None


@pytest.mark.parametrize(
    ("sought", "what", "there"),
    [
        (Sought.HEAD, "drafting head", HEADS),
        (Sought.DRAFT, "draft model", ["smollm2-135m/draft"]),
        (Sought.MODEL, "drafter", NAMES),
    ],
)
def test_another_name_is_answered_with_those_there_are(sought: Sought, what: str, there: list[str]) -> None:
    with pytest.raises(forerun.InputError) as caught:
        resolve_model("smollm2-135m/none", sought)
    said = f"the package has no {what} 'smollm2-135m/none'; it has {', '.join(there)}"
    assert str(caught.value) == said


def test_a_draft_model_is_no_head() -> None:
    with pytest.raises(forerun.InputError, match=r"not a drafting head; write draft:smollm2-135m/draft$"):
        open_head(resolve_model("smollm2-135m/draft", Sought.HEAD))


@pytest.mark.parametrize("name", NAMES)
def test_inspect_knows_it_by_the_drafters_name_too(name: str) -> None:
    kind = "head" if name in HEADS else "draft"
    shown = [CliRunner().invoke(inspect, [x]).output for x in (name, f"{kind}:{name}")]
    assert shown[0] == shown[1]
    assert str(FOLDER / name) in shown[0]
    assert f"--drafter {kind}:{name}\n" in shown[0]


def test_a_folder_of_the_users_goes_before_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is named, that is: "auto" stays with the package's."""
    name = "smollm2-135m/eagle3"
    assert resolve_model(name) == FOLDER / name
    assert short_name(FOLDER / name) == name
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir(parents=True)
    assert resolve_model(name) == Path(name)
    assert short_name(FOLDER / name) == str(FOLDER / name)
    assert short_name(tmp_path / name) == str(tmp_path / name)
    assert short_name(Path(name)) == name
    config = replace(random_config(), hidden_size=576, layers=30, vocab_size=49152)
    assert best_drafter(config) == f"suffix,head:{FOLDER / name}"


@pytest.mark.model
@pytest.mark.parametrize("name", HEADS)
def test_a_shipped_head_fits(name: str) -> None:
    head = open_head(FOLDER / name)
    head.check_fits(open_checkpoint(resolve_model(name.split("/")[0])).config)
    assert head.family == name.split("/")[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_drafter_is_small_and_says_how_it_was_made(name: str) -> None:
    assert sum(path.stat().st_size for path in (FOLDER / name).iterdir()) < 12_000_000
    assert "forerun train" in (FOLDER / name / "MODEL_CARD.md").read_text()


@pytest.mark.model
def test_the_shipped_draft_model_drafts() -> None:
    engine = forerun.load("smollm2-135m", drafter="draft:smollm2-135m/draft", draft_tokens=4)
    greedy = forerun.SamplingParams(max_tokens=48)
    found = engine.generate("def fibonacci(n):", greedy)
    assert found.text == engine.generate("def fibonacci(n):", greedy, drafter="none").text
    assert found.report.mean_accepted_length > 1.5


@pytest.mark.model
@pytest.mark.parametrize("name", HEADS)
def test_a_shipped_head_is_what_auto_uses_for_its_model(name: str) -> None:
    config = open_checkpoint(resolve_model(name.split("/")[0])).config
    assert name in fitting_heads(config)
    assert best_drafter(config) == f"suffix,head:{fitting_heads(config)[0]}"
    assert 0 < read_head_size(name, config).weights < 12_000_000


def test_other_models_have_no_head() -> None:
    assert fitting_heads(random_config()) == []
    assert best_drafter(random_config()) == "suffix"
