"""What happened while decoding: counts and seconds, each counted once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter


class Lap:
    """A stopwatch: each call gives the seconds since the one before."""

    def __init__(self) -> None:
        self._last = perf_counter()

    def __call__(self) -> float:
        last, self._last = self._last, perf_counter()
        return self._last - last


@dataclass(slots=True)
class DepthCount:
    """How guesses fared at one depth: `checked` steps reached a node that had guesses this deep, and in
    `accepted` of them one of these was what the target said."""

    checked: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        """The chance that a guess is right where its parent was; 0 where none was checked."""
        return self.accepted / self.checked if self.checked else 0.0


@dataclass(slots=True)
class DrafterCount:
    """How one drafter fared: nodes it put before the target, and emitted tokens that were its guesses."""

    drafted: int = 0
    accepted: int = 0


@dataclass
class Report:
    """Counts of one generation. Everything is known after every step.

    Attributes:
        prompt_tokens: tokens of the prompt; `prefilled` of them were computed (the others were in the cache,
            and the last is computed with the first step).
        tokens: emitted tokens.
        target_forwards: forwards of the target after the prompt.
        drafted: guesses put before the target.
        depths: depths[d - 1] counts guesses at depth d.
        drafters: by name.
        draft, verify, choose, other: seconds spent in the steps; `prompt` the seconds before the first step.
            Time during which the caller holds the generator is in none of them.
    """

    prompt_tokens: int = 0
    prefilled: int = 0
    tokens: int = 0
    target_forwards: int = 0
    drafted: int = 0
    depths: list[DepthCount] = field(default_factory=list)
    drafters: dict[str, DrafterCount] = field(default_factory=dict)
    prompt: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    choose: float = 0.0
    other: float = 0.0

    def step(self, origins: Sequence[str], checked: int = 0, drafted: Sequence[str] = ()) -> None:
        """Record one step.

        Args:
            origins: for each emitted token the drafter that guessed it, or "" for the target's own choice.
            checked: how many of these, the first ones, there were guesses for.
            drafted: for each guess of the tree who made it.
        """
        self.target_forwards += 1
        self.tokens += len(origins)
        if not drafted:
            return
        self.drafted += len(drafted)
        drafters, depths = self.drafters, self.depths
        for name in drafted:
            if name not in drafters:
                drafters[name] = DrafterCount()
            drafters[name].drafted += 1
        for depth in range(checked):
            if depth == len(depths):
                depths.append(DepthCount())
            depths[depth].checked += 1
            if origin := origins[depth]:
                depths[depth].accepted += 1
                drafters[origin].accepted += 1

    @property
    def seconds(self) -> float:
        """Seconds spent in the steps."""
        return self.draft + self.verify + self.choose + self.other

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens by the seconds of the steps; 0 when nothing was emitted."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prefilled tokens by the seconds before the first step; 0 when nothing had to be computed."""
        return self.prefilled / self.prompt if self.prompt and self.prefilled else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Emitted tokens by target forward (the literature's tau): 1 for plain decoding."""
        return self.tokens / self.target_forwards if self.target_forwards else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """accepted / checked at depth 1, 2, ...: the chance that a guess is right when its parent was."""
        return [count.rate for count in self.depths]

    def as_dict(self) -> dict[str, object]:
        """Plain numbers, for JSON."""
        return {
            "tokens_per_second": round(self.tokens_per_second, 3),
            "prompt_tokens_per_second": round(self.prompt_tokens_per_second, 3),
            "target_forwards": self.target_forwards,
            "mean_accepted_length": round(self.mean_accepted_length, 4),
            "acceptance_by_depth": [round(rate, 4) for rate in self.acceptance_by_depth],
            "seconds": {
                "prompt": round(self.prompt, 6),
                "draft": round(self.draft, 6),
                "verify": round(self.verify, 6),
                "choose": round(self.choose, 6),
                "other": round(self.other, 6),
            },
            "drafters": {
                name: {"drafted": count.drafted, "accepted": count.accepted}
                for name, count in self.drafters.items()
            },
        }


def depths_together(reports: Iterable[Report]) -> list[DepthCount]:
    """Of several generations, how guesses fared at depth 1, 2, ..."""
    together: list[DepthCount] = []
    for report in reports:
        together += [DepthCount() for _ in report.depths[len(together) :]]
        for total, count in zip(together, report.depths, strict=False):
            total.checked += count.checked
            total.accepted += count.accepted
    return together
