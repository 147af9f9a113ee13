"""A loaded model that writes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forerun.answers import Answer, Result, Stream
from forerun.arguments import (
    check_list,
    check_params,
    check_progress,
    check_prompt,
    check_text,
    check_tokens,
    check_whole,
    refuse,
)
from forerun.budgets import Budgets
from forerun.core.cost_budget import CostBudget
from forerun.core.engine import Decoding, decode, decode_together
from forerun.core.protocols import Drafter, Policy, Stop
from forerun.core.report import Report
from forerun.drafters.paced import PacedDrafter
from forerun.errors import InputError
from forerun.models.memory import STAGED_ROWS, SUFFIX_BYTES
from forerun.models.sequence import Rule, verify_together
from forerun.models.sequence import Sequence as TargetSequence
from forerun.own import OwnDrafter
from forerun.planning import Allowance
from forerun.request import Request
from forerun.roster import Circumstances, DraftLoader, Roster, check_names
from forerun.sampling.grammar import Grammars
from forerun.sampling.params import SamplingParams
from forerun.tuning import Choice
from forerun.words import counted

if TYPE_CHECKING:
    from forerun.models.backend import Backend
    from forerun.text.chat import Message
    from forerun.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]

MOST_REMEMBERED = 2_000_000
"""Tokens of texts to remember: about 200 MB."""


@dataclass(frozen=True)
class Task:
    """One answer to be written, with all that its decoding needs."""

    target: TargetSequence
    drafter: Drafter
    prompt: list[int]
    policy: Policy
    stop: Stop
    max_tokens: int | None
    report: Report
    answer: Answer

    def decoding(self) -> Decoding[TargetSequence]:
        """To be read and stepped by itself, or together with others."""
        return Decoding(
            self.target,
            self.drafter,
            self.prompt,
            policy=self.policy,
            stop=self.stop,
            max_tokens=self.max_tokens,
            report=self.report,
        )


class Engine:
    """A loaded model with its drafters. Make one with `load`.

    Generations may be interleaved: each has its own cache.

    Args:
        backend: what computes the model.
        tokenizer: of the model.
        context: the most tokens prompt and answer may have together.
        drafter: the drafter used where a call names none; see `forerun.roster` for the names.
        load_draft: loads a draft model by name, with its tokenizer or its part of this model's vocabulary.
        measure: gives seconds of a forward by its rows, for the budget; asked once, when it is first needed.
            Without it every step verifies up to `budgets.MOST_DRAFTED` guesses.
        draft_tokens: guesses to verify a step, whatever they cost; None decides by cost.
        allowance: is asked before memory is taken for a text; None for no limit.
        auto: the drafter that "auto" stands for, and its draft tokens.

    Attributes:
        end_tokens: ids that end a text: the model's, and those that the tokenizer knows as ends.
        draft_tokens: as above; may be changed between texts.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        context: int,
        drafter: str = "auto",
        load_draft: DraftLoader | None = None,
        measure: Callable[[], Mapping[int, float]] | None = None,
        draft_tokens: int | None = None,
        allowance: Allowance | None = None,
        auto: Choice | None = None,
    ) -> None:
        check_whole("draft_tokens", draft_tokens, 0, STAGED_ROWS - 1)
        self.backend = backend
        self.tokenizer = tokenizer
        self.context = context
        self.drafter = drafter
        self.end_tokens = tuple(sorted({*backend.config.eos_token_ids, *tokenizer.eos_ids}))
        self._grammars = Grammars(tokenizer, self.end_tokens)
        self._roster = Roster(backend, tokenizer, load_draft)
        self.auto = auto or Choice()
        self._budgets = Budgets(measure)
        self.draft_tokens = draft_tokens
        self._allowance = allowance
        self.check_drafter(drafter)

    def generate(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        drafter: str | Drafter | None = None,
    ) -> Result:
        """The whole answer to `prompt`: a text that is continued, or chat messages that are answered.

        `drafter`: by name, or one of your own (`forerun.core.protocols.Drafter`), used for this text alone.

        Raises:
            InputError: an empty prompt, one that fills the context, an unknown drafter, bad parameters.
        """
        with self.stream(prompt, params, drafter=drafter) as stream:
            for _ in stream:
                pass
        return stream.result

    def generate_batch(
        self,
        prompts: Iterable[str | Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        drafter: str | None = None,
    ) -> list[Result]:
        """Answers to several prompts, written together: each forward reads the weights once for all of them.

        Each answer is the one that `generate` gives. `params`: for all, or one for each prompt.
        """
        asked = check_list("prompts", prompts, "prompts")
        if params is None or isinstance(params, SamplingParams):
            each = [params or SamplingParams()] * len(asked)
        else:
            each = [check_params(one) for one in check_list("params", params, "SamplingParams, or one")]
        if len(each) != len(asked):
            given = counted(len(each), "SamplingParams", "SamplingParams")
            raise InputError(f"{given} for {counted(len(asked), 'prompt')}; give one, or one for each")
        tasks = [
            self._task(self.encode(prompt), one, drafter, continues=isinstance(prompt, str))
            for prompt, one in zip(asked, each, strict=True)
        ]
        runs = [task.decoding() for task in tasks]
        for run in runs:
            run.read()
        for place, step in decode_together(runs, verify_together):
            tasks[place].answer.add(step)
        return [task.answer.result for task in tasks]

    def stream(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        drafter: str | Drafter | None = None,
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
        drafter: str | Drafter | None = None,
        continues: bool = True,
        progress: Progress | None = None,
        after: Stream | None = None,
    ) -> Stream:
        """As `stream`, from token ids.

        Args:
            continues: the answer's text goes on from the prompt's (only some tokenizers care: a text of its
                own loses its first space).
            after: an answer of this engine that has ended, and whose cache is taken over: what the two
                texts begin with in common is not computed again.
        """
        check_progress(progress)
        if after is not None and not self._may_follow(after):
            refuse("after", after, "an answer of this engine that has ended")
        task = self._task(prompt, params, drafter, continues, after)
        target, held = task.target, 0
        if target.length:
            shared = min(target.length, len(task.prompt))
            differ = np.flatnonzero(target.tokens[:shared] != np.array(task.prompt[:shared]))
            held = 1 + (int(differ[0]) if differ.size else shared)
        steps = decode(
            task.target,
            task.drafter,
            task.prompt,
            policy=task.policy,
            stop=task.stop,
            max_tokens=task.max_tokens,
            report=task.report,
            held=held,
            progress=progress,
            other_drafter=True,
        )
        return Stream(steps, task.answer, task.target)

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """Token ids of a text, or of chat messages under the model's template, the answer's turn opened."""
        check_prompt(prompt)
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True)
        from forerun.text.chat import render

        return self.tokenizer.encode(render(self.tokenizer, prompt), add_special=False)

    def remember(self, texts: Iterable[str]) -> None:
        """Let the suffix drafter look in these texts too: past answers, templates, code that answers may
        repeat.

        Costs memory for good, about 100 bytes a token; it changes no answer, only its speed.

        Raises:
            InputError: more than MOST_REMEMBERED tokens in all.
        """
        from forerun import _core

        past = self._roster.past or _core.SuffixIndex()
        for text in check_list("texts", texts, "texts"):
            check_text("a text to remember", text)
            tokens = self.tokenizer.encode(text, add_special=False)
            if past.tokens + len(tokens) > MOST_REMEMBERED:
                raise InputError(f"texts to remember have more than {MOST_REMEMBERED} tokens; give fewer")
            if self._allowance is not None:
                self._allowance.take(SUFFIX_BYTES * len(tokens), "a text to remember")
            past.add_text(np.array(tokens, dtype=np.int32))
        self._roster.past = past

    def check_drafter(self, names: str) -> None:
        """Load what these drafters need.

        Raises:
            InputError: a name stands for no drafter, or its model does not fit.
        """
        names = self.auto.drafter if isinstance(names, str) and names == "auto" else names
        if self._allowance is not None:
            self._allowance.admit(check_names(names))
        self._roster.check(names)

    def _task(
        self,
        tokens: Sequence[int],
        params: SamplingParams | None,
        drafter: str | Drafter | None,
        continues: bool,
        after: Stream | None = None,
    ) -> Task:
        """Everything that decoding one text needs."""
        prompt = check_tokens(tokens, self.backend.config.vocab_size)
        params = check_params(params)
        self._check_length(prompt)
        request = Request(
            prompt,
            params,
            tokenizer=self.tokenizer,
            vocab_size=self.backend.config.vocab_size,
            end_tokens=self.end_tokens,
            grammars=self._grammars,
            continues=continues,
        )
        longest = self.context
        if params.max_tokens is not None:
            longest = min(longest, len(prompt) + params.max_tokens)
        chosen, draft_tokens = self._chosen(drafter)
        names = chosen if isinstance(chosen, str) else "none"
        self.check_drafter(names)
        if after is not None and after.target.cache.capacity < longest + STAGED_ROWS:
            after = None
        keep = self._take_memory(request, names, longest, has_cache=after is not None)
        policy = self._budgets.policy(
            chosen if isinstance(chosen, str) else chosen.name, params.temperature, draft_tokens
        )
        pace = policy.pace if isinstance(policy, CostBudget) else None
        if isinstance(chosen, str):
            chosen = self._roster.make(
                chosen, Circumstances(longest + STAGED_ROWS, request.ranker, request.core_settings, pace)
            )
        elif pace is not None:
            chosen = PacedDrafter(chosen, pace(chosen.name))
        guesser = request.guided(chosen)
        target = self._target(request.rule(), guesser.taps, longest + STAGED_ROWS, after)
        keep(target)
        report = Report(prompt_tokens=len(prompt))
        answer = Answer(request.ending, params.logprobs, request.seed, report)
        return Task(target, guesser, prompt, policy, request.stop, params.max_tokens, report, answer)

    def _chosen(self, drafter: str | Drafter | None) -> tuple[str | Drafter, int | None]:
        """The drafter that a call means, and its guesses a step (None: as many as pay)."""
        chosen = self.drafter if drafter is None else drafter
        if not isinstance(chosen, str):
            config = self.backend.config
            return OwnDrafter(chosen, config.layers, config.vocab_size), self.draft_tokens
        if chosen != "auto":
            return chosen, self.draft_tokens
        guesses = self.auto.draft_tokens if self.draft_tokens is None else self.draft_tokens
        return self.auto.drafter, guesses

    def _take_memory(
        self, request: Request, names: str, tokens: int, *, has_cache: bool
    ) -> Callable[[TargetSequence], None]:
        """Ask for what a text takes. It is given back with the text, written or not, but its cache's part
        with the sequence that is told to what is returned: another text may take that over."""
        if self._allowance is None:
            return lambda target: None
        give = self._allowance.give
        cache, drafters = self._allowance.take_text(check_names(names), tokens, has_cache=has_cache)
        weakref.finalize(request.ending, give, drafters)
        unmade = weakref.finalize(request.ending, give, cache)

        def keep(target: TargetSequence) -> None:
            unmade.detach()
            weakref.finalize(target, give, cache)

        return keep

    def _target(
        self, rule: Rule, taps: tuple[int, ...], capacity: int, after: Stream | None
    ) -> TargetSequence:
        """A sequence of the model: a new one, or that of an ended answer."""
        if after is None:
            return TargetSequence(self.backend, rule, context=self.context, capacity=capacity, taps=taps)
        after.target.rule, after.target.taps = rule, taps
        return after.target

    def _may_follow(self, answer: object) -> bool:
        """Whether a text may take over the cache of `answer`."""
        return isinstance(answer, Stream) and answer.target.backend is self.backend and answer.ended

    def _check_length(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise InputError("the prompt is empty; give at least one token of text")
        if len(prompt) >= self.context:
            longer = self.context < self.backend.config.context
            raise InputError(
                f"the prompt has {counted(len(prompt), 'token')} and leaves no room for an answer in a "
                f"context of {self.context}{', the longest that the model has' * (not longer)}; shorten it"
                f"{' or load the model with a larger context' * longer}"
            )
