"""A record of what has been verified, a line a prompt: a long run can be broken off and gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from forerun.bench.prompts import Prompt
from forerun.bench.verify import Comparison, Difference
from forerun.errors import InputError
from forerun.files import explained, write_whole
from forerun.text.reading import LONGEST


class Record:
    """Comparisons in a file: a line of settings, then a line for each prompt that is done.

    A last line that was only begun when the program was killed is dropped.

    Args:
        path: the file; is made if it is not there.
        settings: of the run, JSON values by name; a file of other settings is refused.

    Raises:
        InputError: a file that cannot be used.
    """

    def __init__(self, path: Path, settings: dict[str, object]) -> None:
        self.path = path
        try:
            whole = list(_lines(path)) if path.exists() else []
            if whole and whole[0] != settings:
                raise InputError(f"{path} is the record of a run with other settings; name another file")
            self._done = {row["place"]: row for row in whole[1:]}
            text = "".join(json.dumps(row) + "\n" for row in [settings, *whole[1:]])
            write_whole(path, text)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"{path} cannot be used as a record: {error}") from error

    def found(self, place: int, prompt: Prompt) -> list[Comparison] | None:
        """What was compared of the prompt at this place in its file, or None."""
        row = self._done.get(place)
        try:
            if row is None or row["prompt"] != asdict(prompt):
                return None
            return [
                Comparison(
                    **{
                        **one,
                        "prompt": prompt,
                        "difference": one["difference"] and Difference(**one["difference"]),
                    }
                )
                for one in row["comparisons"]
            ]
        except (KeyError, TypeError) as error:
            raise InputError(f"{self.path} cannot be used as a record: {error}") from error

    def add(self, place: int, prompt: Prompt, comparisons: Sequence[Comparison]) -> None:
        """A prompt is done."""
        rows = []
        for comparison in comparisons:
            row = asdict(comparison)
            del row["prompt"]
            rows.append(row)
        line = json.dumps({"place": place, "prompt": asdict(prompt), "comparisons": rows})
        with explained(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _lines(path: Path) -> Iterator[Any]:
    """What the whole lines of a file hold. Where the first one is not whole, it is somebody else's file."""
    if not path.is_file():  # a device may go on and on
        raise InputError(f"{path} cannot be used as a record: it is no file")
    with path.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, LONGEST), b"")):
            if line.endswith(b"\n"):
                yield json.loads(line)
            elif number == 0:
                raise InputError(f"{path} cannot be used as a record: it holds something else")
