"""Answers: steps of token ids become text, tokens, origins and log-probabilities that belong together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from forerun.core.engine import Step
from forerun.core.report import Report
from forerun.errors import InputError
from forerun.models.sequence import NodeChoices
from forerun.models.sequence import Sequence as TargetSequence
from forerun.sampling.fused import fused_token_logprob
from forerun.sampling.logprobs import TokenLogprob
from forerun.text.stops import Ending


class Increment(NamedTuple):
    """What a step added to an answer.

    Attributes:
        text: may be empty where characters are held back (half a character, the beginning of a stop string).
        tokens: ids that `text` completes.
        origins: for each token the drafter that guessed it, or "target".
        logprobs: for each token, if asked for.
    """

    text: str
    tokens: list[int]
    origins: list[str]
    logprobs: list[TokenLogprob]


@dataclass(frozen=True)
class Result:
    """An answer.

    Attributes:
        text: the answer, without end token and stop string.
        tokens: its ids, a final end token included; tokens inside a stop string are gone with it.
        origins: for each token the drafter that guessed it, or "target".
        logprobs: for each token, if asked for.
        finish_reason: "stop" (an end token or a stop string), "length" (max_tokens), "context" (no room
            left), or None while the answer is not finished.
        prompt_tokens: how many.
        seed: that was used; with it the same text comes again.
        report: counts and seconds.
    """

    text: str
    tokens: list[int]
    origins: list[str]
    logprobs: list[TokenLogprob]
    finish_reason: str | None
    prompt_tokens: int
    seed: int
    report: Report


class Answer:
    """Collects the steps of one answer.

    Args:
        ending: has heard the steps' tokens, and knows what of their text may be shown.
        logprobs: how many log-probabilities beside each token's own, or None for none at all.
        seed: of the answer.
        report: of the answer.
    """

    def __init__(self, ending: Ending, logprobs: int | None, seed: int, report: Report) -> None:
        self._ending = ending
        self._top = logprobs
        self._seed = seed
        self.report = report
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._origins: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._shown = 0
        self._finish: str | None = None

    def add(self, step: Step) -> Increment:
        """What of the answer may be shown with this step."""
        self._tokens += step.tokens
        self._origins += [origin or "target" for origin in step.origins]
        if self._top is not None and isinstance(step.verdict, NodeChoices):
            for node, token in zip(step.nodes, step.tokens, strict=True):
                self._logprobs.append(fused_token_logprob(step.verdict.logits[node], token, self._top))
        self._finish = step.finish
        if step.finish is not None:
            self._ending.end()
        text, count = self._ending.take()
        new = slice(self._shown, self._shown + count)
        self._shown += count
        self._text.append(text)
        return Increment(text, self._tokens[new], self._origins[new], self._logprobs[new])

    @property
    def result(self) -> Result:
        """The answer as far as it may be shown."""
        return Result(
            "".join(self._text),
            self._tokens[: self._shown],
            self._origins[: self._shown],
            self._logprobs[: self._shown],
            self._finish,
            self.report.prompt_tokens,
            self._seed,
            self.report,
        )


class Stream:
    """An answer being written: iterate for its increments. Close it, or leave its `with`, to stop early."""

    def __init__(self, steps: Generator[Step, None, None], answer: Answer, target: TargetSequence) -> None:
        self._steps = steps
        self._answer = answer
        self.target = target
        """Holds the prompt and the answer but its last token, once that has ended."""
        self.watch: Callable[[Step], None] | None = None
        """Is told every step before it is shown."""

    def __iter__(self) -> Iterator[Increment]:
        return self

    def __next__(self) -> Increment:
        try:
            step = next(self._steps)
        except ValueError as error:
            if "already executing" not in str(error):
                raise
            raise InputError("this stream is being read already; read it in one thread at a time") from error
        if self.watch is not None:
            self.watch(step)
        return self._answer.add(step)

    def close(self) -> None:
        """Stop writing. What was shown stays in `result`."""
        self._steps.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """Whether no more is written, since the answer is whole or was stopped."""
        return inspect.getgeneratorstate(self._steps) == inspect.GEN_CLOSED

    @property
    def report(self) -> Report:
        """Counts and seconds so far."""
        return self._answer.report

    @property
    def result(self) -> Result:
        """The answer as far as it has been shown."""
        return self._answer.result
