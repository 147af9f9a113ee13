"""The heads that come with the package are whole, small, and made for the models they are named after."""

from __future__ import annotations

import pytest

from forerun.models.checkpoint import open_checkpoint
from forerun.models.heads import open_head
from forerun.models.heads.shipped import FOLDER, fitting_heads, shipped_head
from forerun.models.heads.size import read_head_size
from forerun.models.hub import resolve_model
from forerun.roster import best_drafter
from support.random_models import random_config

NAMES = sorted(str(path.parent.relative_to(FOLDER)) for path in FOLDER.glob("*/*/config.json"))


def test_names() -> None:
    assert "smollm2-135m/eagle3" in NAMES
    assert all(shipped_head(name) == FOLDER / name for name in NAMES)
    for other in ("smollm2-135m", "smollm2-135m/none", "../heads/smollm2-135m", "org/name"):
        assert shipped_head(other) is None


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_head_fits(name: str) -> None:
    head = open_head(FOLDER / name)
    head.check_fits(open_checkpoint(resolve_model(name.split("/")[0])).config)
    assert head.family == name.split("/")[1]
    assert sum(path.stat().st_size for path in (FOLDER / name).iterdir()) < 12_000_000
    assert (FOLDER / name / "MODEL_CARD.md").is_file()


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_head_is_what_auto_uses_for_its_model(name: str) -> None:
    config = open_checkpoint(resolve_model(name.split("/")[0])).config
    assert name in fitting_heads(config)
    assert best_drafter(config) == f"suffix,head:{fitting_heads(config)[0]}"
    assert 0 < read_head_size(name, config).weights < 12_000_000


def test_other_models_have_no_head() -> None:
    assert fitting_heads(random_config()) == []
    assert best_drafter(random_config()) == "suffix"
