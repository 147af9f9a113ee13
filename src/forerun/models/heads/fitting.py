"""Which of the package's heads a model can use."""

from __future__ import annotations

from forerun.errors import InputError
from forerun.models.config import ModelConfig
from forerun.models.heads.opening import open_head
from forerun.models.shipped import FOLDER, short_name

BEST_FIRST = ("eagle3", "eagle", "hydra", "medusa")


def fitting_heads(target: ModelConfig) -> list[str]:
    """The package's heads that were made for a model of this shape, by what they are called, the best family
    first. One that was made for another model of the same shape only guesses badly."""
    found = []
    for family in BEST_FIRST:
        for folder in sorted(FOLDER.glob(f"*/{family}")):
            try:
                open_head(folder).check_fits(target)
            except InputError:
                continue
            found.append(short_name(folder))
    return found
