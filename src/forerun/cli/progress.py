"""A progress bar for what may take long."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class LateProgress:
    """A progress bar on standard error that shows up only on a terminal, and only after two seconds.

    Use it in a `with`; call it with (done, total). It is gone at the end.
    """

    patience = 2.0  # seconds

    def __init__(self, label: str) -> None:
        self._label = label
        self._start = monotonic()
        self._bar: tuple[Progress, TaskID] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if monotonic() - self._start < self.patience or not sys.stderr.isatty():
                return
            self._bar = self._open(total)
        bar, task = self._bar
        bar.update(task, completed=done)

    def _open(self, total: int) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import Progress

        bar = Progress(console=Console(stderr=True), transient=True)
        bar.start()
        return bar, bar.add_task(self._label, total=total)

    def __enter__(self) -> LateProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None
