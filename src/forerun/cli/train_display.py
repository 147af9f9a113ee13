"""What `forerun train` shows while it runs, and says when it is broken off."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from forerun.cli.streams import note

if TYPE_CHECKING:
    from forerun.training.trainer import Figures, Progress

QUIET_SECONDS = 60.0
"""Between two lines where standard error is no terminal."""

AGAIN = "the same command goes on from there"


def expected(speed_up: float | None) -> str:
    """What there is to say of it after a comma."""
    return "" if speed_up is None else f", expected {speed_up:.2f}x"


class Display:
    """A progress bar on a terminal, a line a minute elsewhere; on standard error."""

    def __init__(self, label: str) -> None:
        self._label, self._last = label, monotonic()
        self._bar: Any = None

    def __call__(self, share: float, detail: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=share, detail=detail)
        elif monotonic() - self._last > QUIET_SECONDS:
            self.line(f"{self._label}: {share:.1%}, {detail}")
            self._last = monotonic()

    def line(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            note(text)

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"))
            self._bar = Progress(
                *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
            )
            self._task = self._bar.add_task(self._label, total=1.0, detail="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class TrainingDisplay(Display):
    """What a training shows."""

    def __init__(self) -> None:
        super().__init__("training")
        self._speed_up: float | None = None
        self._spent: float | None = None

    def far(self, folder: Path) -> str:
        """How far the training in this folder came."""
        if self._spent is None:
            return f"before the first batch of this run; {AGAIN}"
        return f"{self._spent:.0%} of the training is done and kept in {folder}; {AGAIN}"

    def begin(self, share: float) -> None:
        self(share, "solving for where it begins")

    def show(self, at: Progress, spent: float) -> None:
        self._spent = spent
        speed = at.tokens / max(at.seconds, 1e-9)
        self(spent, f"loss {at.loss:.3f}, {at.tokens:,} tokens, {speed:,.0f}/s" + expected(self._speed_up))

    def tell(self, at: Progress, figures: Figures) -> None:
        self._speed_up = figures.speed_up
        judged = "no text is held out to judge it by"
        if figures.by_depth:
            depths = " ".join(f"{share:.3f}" for share in figures.by_depth)
            judged = (
                f"held out: right to depth {depths}, "
                f"mean accepted length {figures.mean_accepted_length:.2f}, "
                f"among four {figures.among_four:.3f}, sampled {figures.sampled:.3f}"
            )
        self.line(f"after {at.tokens:,} tokens: loss {at.loss:.3f}, {judged}" + expected(figures.speed_up))

    def __enter__(self) -> TrainingDisplay:
        super().__enter__()
        return self
