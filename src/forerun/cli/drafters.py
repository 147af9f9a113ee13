"""Lists of drafters that a command is given."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from forerun.errors import InputError
from forerun.roster import all_drafters

if TYPE_CHECKING:
    from forerun.engine import Engine


def drafters_for(engine: Engine, names: Sequence[str]) -> list[str]:
    """Each once and checked; "all" stands for every one that the engine can use.

    Raises:
        InputError: one cannot be used.
    """
    found: dict[str, None] = {}
    for name in names:
        if name != "all":
            engine.check_drafter(name)
            found[name] = None
            continue
        for drafter in all_drafters(engine.backend.config):
            with suppress(InputError):
                engine.check_drafter(drafter)
                found[drafter] = None
    return list(found)
