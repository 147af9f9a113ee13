"""A trained drafter tried where it serves: the engine answers held-out requests with it.

Training judges its own arithmetic; this judges what was written to the folder, read again and drafted with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forerun.core.report import Report, depths_together
from forerun.engine import Engine
from forerun.sampling.params import SamplingParams
from forerun.training.batches import Conversations

MOST_ANSWERS = 16
LONGEST = 96
"""Tokens of an answer."""


@dataclass(frozen=True)
class Served:
    """What came of it.

    Attributes:
        answers: how many were written, at temperature 0.
        guesses: verified a step at most.
        mean_accepted_length: tokens a forward of the target.
        by_depth: how often a guess was right where those before it were.
    """

    answers: int
    guesses: int
    mean_accepted_length: float
    by_depth: list[float]

    def line(self) -> str:
        """For the model card."""
        depths = " ".join(f"{share:.0%}" for share in self.by_depth)
        return (
            f"- Where it serves: answers to {self.answers} held-out requests, at temperature 0, in trees of\n"
            f"  {self.guesses} guesses at most: {self.mean_accepted_length:.2f} tokens a forward; guesses\n"
            f"  at depth 1, 2, ... are right where those before them were: {depths}.\n"
        )


def serve(
    engine: Engine, drafter: str, guesses: int, data: Conversations, progress: Callable[[float, str], None]
) -> Served | None:
    """Write answers to requests that nothing was trained on; None if there are none.

    Args:
        engine: the target, which verifies `guesses` a step.
        drafter: that was trained.
        progress: called with the share that is done, and how many answers there are.
    """
    places = data.greedy_held_out[:MOST_ANSWERS]
    params = SamplingParams(max_tokens=LONGEST)
    reports: list[Report] = []
    for done, place in enumerate(places):
        one = data.stores[place.store].conversation(place.place)
        with engine.stream_tokens(one.tokens[: one.answer].tolist(), params, drafter=drafter) as stream:
            for _ in stream:
                pass
        reports.append(stream.result.report)
        progress((done + 1) / len(places), f"{done + 1} of {len(places)} answers")
    forwards = sum(report.target_forwards for report in reports)
    if not forwards:
        return None
    tokens = sum(report.tokens for report in reports)
    by_depth = [count.rate for count in depths_together(reports) if count.checked]
    return Served(len(places), guesses, tokens / forwards, by_depth)
