"""The front door: load a model, and let it write.

engine = forerun.load("smollm2-135m")
print(engine.generate("Write a haiku about rivers.", SamplingParams(max_tokens=60)).text)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.core.budget import FixedBudget
from forerun.core.engine import Step, decode
from forerun.core.protocols import Drafter, Stop
from forerun.core.report import Report
from forerun.drafters.guided import GuidedDrafter
from forerun.drafters.lookup import LookupDrafter
from forerun.drafters.none import NoDrafter
from forerun.errors import InputError
from forerun.models.sequence import NodeChoices, Rule
from forerun.models.sequence import Sequence as TargetSequence
from forerun.sampling.constraint import ConstrainedEnd, ConstrainedRule, Constraint
from forerun.sampling.grammar import Grammars
from forerun.sampling.logprobs import TokenLogprob, token_logprob
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.rules import CoupledRule, RejectionRule
from forerun.text.detokenize import StreamDecoder
from forerun.text.stops import Ending

if TYPE_CHECKING:
    from forerun.models.backend import Backend
    from forerun.text.chat import Message
    from forerun.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]

STAGED_ROWS = 64
"""Place in a cache, beyond the text itself, for drafts that are being verified."""

DRAFTERS = ("none", "lookup")


@dataclass(frozen=True)
class Increment:
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


class Stream:
    """An answer being written: iterate for its increments. Close it, or leave its `with`, to stop early."""

    def __init__(
        self, steps: Iterator[Step], ending: Ending, logprobs: int | None, seed: int, report: Report
    ) -> None:
        self._steps = steps
        self._ending = ending
        self._top = logprobs
        self._seed = seed
        self._report = report
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._origins: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._shown = 0
        self._finish: str | None = None

    def __iter__(self) -> Iterator[Increment]:
        return self

    def __next__(self) -> Increment:
        step = next(self._steps)
        self._tokens += step.tokens
        self._origins += [origin or "target" for origin in step.origins]
        if self._top is not None and isinstance(step.verdict, NodeChoices):
            rows = step.verdict.logits[step.nodes]
            self._logprobs += [token_logprob(r, t, self._top) for r, t in zip(rows, step.tokens, strict=True)]
        self._finish = step.finish
        if step.finish is not None:
            self._ending.end()
        text, count = self._ending.take()
        new = slice(self._shown, self._shown + count)
        self._shown += count
        self._text.append(text)
        return Increment(text, self._tokens[new], self._origins[new], self._logprobs[new])

    def close(self) -> None:
        """Stop writing. What was shown stays in `result`."""
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def result(self) -> Result:
        """The answer as far as it has been shown."""
        return Result(
            "".join(self._text),
            self._tokens[: self._shown],
            self._origins[: self._shown],
            self._logprobs[: self._shown],
            self._finish,
            self._report.prompt_tokens,
            self._seed,
            self._report,
        )


class Engine:
    """A loaded model with its drafters. Make one with `load`.

    Generations may be interleaved: each has its own cache.

    Attributes:
        backend: what computes the model.
        tokenizer: of the model.
        context: the most tokens prompt and answer may have together.
        drafter: the drafter used where a call names none.
        end_tokens: ids that end a text: the model's, and those that the tokenizer knows as ends.
    """

    def __init__(
        self, backend: Backend, tokenizer: Tokenizer, *, context: int, drafter: str = "auto"
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.context = context
        self.drafter = drafter
        self.end_tokens = tuple(sorted({*backend.config.eos_token_ids, *tokenizer.eos_ids}))
        self._grammars = Grammars(tokenizer, self.end_tokens)
        self.new_drafter(drafter)

    def generate(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        drafter: str | None = None,
    ) -> Result:
        """The whole answer to `prompt`: a text that is continued, or chat messages that are answered.

        Raises:
            InputError: an empty prompt, one that fills the context, an unknown drafter, bad parameters.
        """
        with self.stream(prompt, params, drafter=drafter) as stream:
            for _ in stream:
                pass
        return stream.result

    def stream(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        drafter: str | None = None,
        progress: Progress | None = None,
    ) -> Stream:
        """The answer as it is written. Joined, the increments are `generate`'s text and tokens.

        `progress` is called with (done, total) while the prompt is read.
        """
        text = isinstance(prompt, str)
        return self.stream_tokens(
            self.encode(prompt), params, drafter=drafter, continues=text, progress=progress
        )

    def stream_tokens(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        *,
        drafter: str | None = None,
        continues: bool = True,
        progress: Progress | None = None,
    ) -> Stream:
        """As `stream`, from token ids. `continues`: the answer's text goes on from the prompt's (only some
        tokenizers care: a text of its own loses its first space)."""
        params = params or SamplingParams()
        self._check(prompt)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        end_tokens = () if params.ignore_end else self.end_tokens
        vocab_size = self.backend.config.vocab_size
        pipeline = Pipeline(params, vocab_size, end_tokens, len(prompt))
        chosen_by = (CoupledRule if params.acceptance == "coupled" else RejectionRule)(pipeline, seed)
        rule: Rule = chosen_by
        guesser = self.new_drafter(drafter or self.drafter)
        constraint = self._constraint(params, end_tokens, len(prompt))
        if constraint is not None:
            rule = ConstrainedRule(chosen_by, constraint, pipeline.forbidden)
            if not isinstance(guesser, NoDrafter):
                guesser = GuidedDrafter(guesser, constraint)
        longest = self.context if params.max_tokens is None else len(prompt) + params.max_tokens
        target = TargetSequence(
            self.backend,
            rule,
            context=self.context,
            capacity=min(self.context, longest) + STAGED_ROWS,
            taps=guesser.taps,
        )
        ending = Ending(
            StreamDecoder(self.tokenizer, continues=continues or constraint is not None),
            params.stop,
            (*end_tokens, *params.stop_tokens),
            params.min_tokens,
        )
        stop: Stop = ending
        if constraint is not None:
            stop = ConstrainedEnd(ending, constraint, prompt, params.min_tokens)
        report = Report(prompt_tokens=len(prompt))
        steps = decode(
            target,
            guesser,
            prompt,
            policy=FixedBudget(),
            stop=stop,
            max_tokens=params.max_tokens,
            report=report,
            progress=progress,
        )
        return Stream(steps, ending, params.logprobs, seed, report)

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """Token ids of a text, or of chat messages under the model's template, the answer's turn opened."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True)
        from forerun.text.chat import render

        return self.tokenizer.encode(render(self.tokenizer, prompt), add_special=False)

    def new_drafter(self, name: str) -> Drafter:
        """A fresh drafter by name.

        Raises:
            InputError: no drafter has this name.
        """
        if name in ("lookup", "auto"):
            return LookupDrafter()
        if name == "none":
            return NoDrafter()
        raise InputError(f"there is no drafter {name!r}; choose among auto, {', '.join(DRAFTERS)}")

    def _constraint(
        self, params: SamplingParams, end_tokens: Sequence[int], prompt_length: int
    ) -> Constraint | None:
        """The grammar asked for, along one answer."""
        grammar = self._grammars.of(params)
        if grammar is None:
            return None
        ends = {*end_tokens, *filter(self.tokenizer.is_special, params.stop_tokens)}
        return Constraint(grammar, self.backend.config.vocab_size, ends, prompt_length)

    def _check(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise InputError("the prompt is empty; give at least one token of text")
        if len(prompt) >= self.context:
            raise InputError(
                f"the prompt has {len(prompt)} tokens and leaves no room for an answer in a context of "
                f"{self.context}; shorten it or load the model with a larger context"
            )
        vocab_size = self.backend.config.vocab_size
        if not all(0 <= token < vocab_size for token in prompt):
            raise InputError(f"the prompt has token ids outside the model's vocabulary of {vocab_size}")


def load(
    model: str | None = None,
    *,
    drafter: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    kv: str = "auto",
    kernels: str = "",
    progress: Progress | None = None,
) -> Engine:
    """Load a model.

    Args:
        model: a GGUF file, a Hugging Face folder, a hub id, or a known name; None is the default model.
        drafter: "auto", "none", or a drafter's name.
        dtype: how weights are executed: "auto", "f32", "bf16", ...
        threads: None uses the machine's cores.
        context: the most tokens prompt and answer may have together; None is the model's own.
        kv: how keys and values are stored.
        kernels: an instruction set by name; the machine's best by default.
        progress: called with (done, total) while the weights are loaded.

    Raises:
        InputError: something that was given cannot be used; the message says what to do.
    """
    from forerun import text
    from forerun.backends.cpu import load_backend
    from forerun.models.checkpoint import open_checkpoint
    from forerun.models.hub import DEFAULT_MODEL, resolve_model

    checkpoint = open_checkpoint(resolve_model(DEFAULT_MODEL if model is None else model))
    config = checkpoint.config
    if context is not None and not 2 <= context <= config.context:
        raise InputError(f"context is {context}; this model holds 2 to {config.context} tokens")
    if checkpoint.format == "gguf":
        tokenizer = text.from_gguf(checkpoint.metadata)
    else:
        tokenizer = text.from_folder(checkpoint.path)
    backend = load_backend(
        checkpoint, dtype=dtype, threads=threads, kv=kv, kernels=kernels, progress=progress
    )
    return Engine(backend, tokenizer, context=context or config.context, drafter=drafter)
