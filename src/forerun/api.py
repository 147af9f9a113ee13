"""The front door: load a model, and let it write.

engine = forerun.load("smollm2-135m")
print(engine.generate("Write a haiku about rivers.", SamplingParams(max_tokens=60)).text)
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from forerun.answers import Answer, Result, Stream
from forerun.arguments import (
    check_list,
    check_params,
    check_prompt,
    check_text,
    check_tokens,
    check_whole,
    refuse,
)
from forerun.core.budget import FixedBudget
from forerun.core.cost_budget import CostBudget, Experience
from forerun.core.curve import CostCurve
from forerun.core.engine import Decoding, decode, decode_together
from forerun.core.protocols import Drafter, Policy, Stop
from forerun.core.report import Report
from forerun.drafters.guided import GuidedDrafter
from forerun.drafters.none import NoDrafter
from forerun.errors import InputError
from forerun.models.memory import SUFFIX_BYTES
from forerun.models.sequence import Rule, verify_together
from forerun.models.sequence import Sequence as TargetSequence
from forerun.planning import Allowance, Planner, keep_within, make_planner, parse_size
from forerun.roster import Circumstances, Roster, check_names
from forerun.sampling.constraint import ConstrainedEnd, ConstrainedRanker, ConstrainedRule, Constraint
from forerun.sampling.fused import (
    FusedCoupledRanker,
    FusedCoupledRule,
    FusedRejectionRule,
    new_head_ranking,
)
from forerun.sampling.grammar import Grammars
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.sampling.ranking import DrawingRanker
from forerun.text.detokenize import StreamDecoder
from forerun.text.stops import Ending
from forerun.tuning import Choice, known_choice

if TYPE_CHECKING:
    from forerun import _core
    from forerun.drafters.model import Ranker
    from forerun.models.backend import Backend
    from forerun.text.chat import Message
    from forerun.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]

STAGED_ROWS = 64
"""Place in a cache, beyond the text itself, for drafts that are being verified."""

MOST_DRAFTED = 16
"""Guesses that a step verifies at most, unless told otherwise."""

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


class Engine:
    """A loaded model with its drafters. Make one with `load`.

    Generations may be interleaved: each has its own cache.

    Args:
        backend: what computes the model.
        tokenizer: of the model.
        context: the most tokens prompt and answer may have together.
        drafter: the drafter used where a call names none; see `forerun.roster` for the names.
        load_draft: loads a draft model by name.
        measure: gives seconds of a forward by its rows, for the budget; asked once, when it is first needed.
            Without it every step verifies up to MOST_DRAFTED guesses.
        draft_tokens: guesses to verify a step, whatever they cost; None decides by cost.
        allowance: is asked before memory is taken for a text; None for no limit.
        auto: the drafter that "auto" stands for, and its draft tokens.

    Attributes:
        end_tokens: ids that end a text: the model's, and those that the tokenizer knows as ends.
        draft_tokens: guesses to verify a step, as above; may be changed between texts.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        context: int,
        drafter: str = "auto",
        load_draft: Callable[[str], tuple[Backend, Tokenizer]] | None = None,
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
        self._auto = auto or Choice()
        self._measure = measure
        self.draft_tokens = draft_tokens
        self._allowance = allowance
        self.check_drafter(self._auto.drafter if drafter == "auto" else drafter)
        self._curve: CostCurve | None = None
        self._experience: dict[tuple[str, float], Experience] = {}

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
            raise InputError(f"{len(each)} parameters for {len(asked)} prompts; give one, or one for each")
        tasks = [
            self._task(self.encode(prompt), one, drafter, continues=isinstance(prompt, str))
            for prompt, one in zip(asked, each, strict=True)
        ]
        runs = [
            Decoding(
                task.target,
                task.drafter,
                task.prompt,
                policy=task.policy,
                stop=task.stop,
                max_tokens=task.max_tokens,
                report=task.report,
            )
            for task in tasks
        ]
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
        task = self._task(prompt, params, drafter, continues, after)
        target, held = task.target, 0
        if target.length and not target.taps:
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
        if self._allowance is not None:
            self._allowance.admit(",".join(check_names(names)))
        self._roster.check(names)

    def _task(
        self,
        tokens: Sequence[int],
        given: SamplingParams | None,
        drafter: str | Drafter | None,
        continues: bool,
        after: Stream | None = None,
    ) -> Task:
        params = check_params(given)
        prompt = check_tokens(tokens, self.backend.config.vocab_size)
        self._check_length(prompt)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        end_tokens = () if params.ignore_end else self.end_tokens
        pipeline = self._pipeline(params, len(prompt))
        coupled = params.acceptance == "coupled"
        chosen_by = (FusedCoupledRule if coupled else FusedRejectionRule)(pipeline, seed)
        rule: Rule = chosen_by
        longest = self.context
        if params.max_tokens is not None:
            longest = min(longest, len(prompt) + params.max_tokens)

        constraint = self._constraint(params, end_tokens, len(prompt))

        def ranker() -> Ranker:
            own = self._pipeline(params, len(prompt))
            ranks = (FusedCoupledRanker if coupled else DrawingRanker)(
                own, seed, self.backend.config.vocab_size
            )
            return ranks if constraint is None else ConstrainedRanker(ranks, constraint)

        def head_ranking() -> _core.HeadRanking:
            return new_head_ranking(self._pipeline(params, len(prompt)), seed)

        chosen = drafter or self.drafter
        if not isinstance(chosen, str) and not hasattr(chosen, "propose"):
            refuse("drafter", chosen, "a name, several with commas between, or a drafter")
        draft_tokens = self.draft_tokens
        if chosen == "auto":
            chosen = self._auto.drafter
            draft_tokens = self._auto.draft_tokens if draft_tokens is None else draft_tokens
        names = chosen if isinstance(chosen, str) else "none"
        self.check_drafter(names)
        taken = 0
        if self._allowance is not None:
            taken = self._allowance.take_text(",".join(check_names(names)), longest)
        # a grammar knows what follows at any place, and looks there anyway: it must be asked every step
        rests = constraint is None
        plain = None if rests or draft_tokens is not None else self._plain_seconds()
        circumstances = Circumstances(longest + STAGED_ROWS, ranker, head_ranking, plain)
        guesser = self._roster.make(chosen, circumstances) if isinstance(chosen, str) else chosen
        ending = Ending(
            StreamDecoder(self.tokenizer, continues=continues or constraint is not None),
            params.stop,
            (*end_tokens, *params.stop_tokens),
            params.min_tokens,
        )
        stop: Stop = ending
        if constraint is not None:
            rule = ConstrainedRule(chosen_by, constraint, pipeline.forbidden)
            stop = ConstrainedEnd(ending, constraint, prompt, params.min_tokens)
            if not isinstance(guesser, NoDrafter):
                guesser = GuidedDrafter(guesser, constraint)
        capacity = longest + STAGED_ROWS
        if after is not None and after.target.cache.capacity >= capacity:
            target = after.target
            target.rule, target.taps = rule, guesser.taps
        else:
            target = TargetSequence(
                self.backend, rule, context=self.context, capacity=capacity, taps=guesser.taps
            )
        if self._allowance is not None:
            weakref.finalize(target, self._allowance.give, taken)
        report = Report(prompt_tokens=len(prompt))
        answer = Answer(ending, params.logprobs, seed, report)
        policy = self._policy(guesser, draft_tokens, rests, params.temperature)
        return Task(target, guesser, prompt, policy, stop, params.max_tokens, report, answer)

    def _plain_seconds(self) -> float | None:
        """What a plain step takes, if costs are measured."""
        if self._curve is None and self._measure is not None:
            self._curve = CostCurve(self._measure())
        return None if self._curve is None else self._curve(1)

    def _policy(self, drafter: Drafter, draft_tokens: int | None, rests: bool, temperature: float) -> Policy:
        """Decides how much of what is drafted is verified."""
        if isinstance(drafter, NoDrafter):
            return FixedBudget(0, 0)
        if draft_tokens is not None or self._measure is None:
            guesses = MOST_DRAFTED if draft_tokens is None else draft_tokens
            return FixedBudget(guesses, guesses)
        if self._curve is None:
            self._curve = CostCurve(self._measure())
        experience = self._experience.setdefault((drafter.name, temperature), Experience())
        return CostBudget(self._curve, MOST_DRAFTED, MOST_DRAFTED, rests=rests, experience=experience)

    def _pipeline(self, params: SamplingParams, prompt_length: int) -> Pipeline:
        end_tokens = () if params.ignore_end else self.end_tokens
        return Pipeline(params, self.backend.config.vocab_size, end_tokens, prompt_length)

    def _constraint(
        self, params: SamplingParams, end_tokens: Sequence[int], prompt_length: int
    ) -> Constraint | None:
        """The grammar asked for, along one answer."""
        grammar = self._grammars.of(params)
        if grammar is None:
            return None
        ends = {*end_tokens, *filter(self.tokenizer.is_special, params.stop_tokens)}
        return Constraint(grammar, self.backend.config.vocab_size, ends, prompt_length)

    def _check_length(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise InputError("the prompt is empty; give at least one token of text")
        if len(prompt) >= self.context:
            raise InputError(
                f"the prompt has {len(prompt)} tokens and leaves no room for an answer in a context of "
                f"{self.context}; shorten it or load the model with a larger context"
            )


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    drafter: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    context: int | Literal["auto"] | None = None,
    memory: int | str | None = None,
    kv: str = "auto",
    kernels: str = "",
    draft_tokens: int | None = None,
    tuned: bool = True,
    progress: Progress | None = None,
) -> Engine:
    """Load a model.

    Args:
        model: a GGUF file, a Hugging Face folder, a hub id, or a known name; None is the default model.
        drafter: "auto" (what `forerun tune` chose, or "suffix"), "none", "lookup", "suffix", "draft:MODEL",
            "skip:K", or several with commas between.
        dtype: how weights are executed: "auto", "f32", "bf16", ...
        threads: None uses the machine's cores.
        context: the most tokens prompt and answer may have together; None is the model's own, "auto" as many
            of these as `memory` allows.
        memory: the most that the process may take, in bytes or as "24GB": the model, the drafters, the texts.
            What would exceed it is refused before it is allocated.
        kv: how keys and values are stored.
        kernels: an instruction set by name; the machine's best by default.
        draft_tokens: guesses to verify a step; None verifies what pays, by the cost measured here.
        tuned: whether what `forerun tune` chose for this model counts, where drafter or dtype is "auto" or
            threads is None.
        progress: called with (done, total) while the weights are loaded.

    Raises:
        InputError: something that was given cannot be used; the message says what to do.
    """
    from forerun import text
    from forerun.backends.cpu import CpuBackend, check_options, curve_key, load_backend, remembered_curve
    from forerun.models.checkpoint import Checkpoint, open_checkpoint
    from forerun.models.hub import DEFAULT_MODEL, resolve_model
    from forerun.models.outline import outline_of

    def read(checkpoint: Checkpoint, progress: Progress | None = None) -> tuple[CpuBackend, Tokenizer]:
        gguf = checkpoint.format == "gguf"
        tokenizer = text.from_gguf(checkpoint.metadata) if gguf else text.from_folder(checkpoint.path)
        backend = load_backend(
            checkpoint, dtype=dtype, threads=threads, kv=kv, kernels=kernels, progress=progress
        )
        return backend, tokenizer

    def load_draft(name: str) -> tuple[Backend, Tokenizer]:
        return read(open_checkpoint(resolve_model(name)))

    # what can be told to be wrong before a model is fetched and read is told before
    if not isinstance(model, str | os.PathLike | None):
        refuse("model", model, "a file, a folder, a hub id or a known name")
    check_options(dtype=dtype, threads=threads, kv=kv, kernels=kernels)
    check_names(drafter)
    check_whole("context", None if context == "auto" else context, 2)
    check_whole("draft_tokens", draft_tokens, 0, STAGED_ROWS - 1)
    limit = parse_size(memory) if isinstance(memory, str) else memory
    check_whole("memory", limit, 1)
    checkpoint = open_checkpoint(resolve_model(DEFAULT_MODEL if model is None else os.fspath(model)))
    longest = checkpoint.config.context
    if isinstance(context, int) and context > longest:
        raise InputError(f"context is {context}; this model holds 2 to {longest} tokens")
    choice = (known_choice(checkpoint.path) if tuned else None) or Choice()
    names = choice.drafter if drafter == "auto" else drafter
    dtype = choice.dtype if dtype == "auto" else dtype
    threads = choice.threads if threads is None else threads
    asked = longest if context is None else context
    allowance = None
    if limit is not None:
        planner = make_planner(outline_of(checkpoint), ",".join(check_names(names)), dtype=dtype, kv=kv)
        asked = keep_within(planner, limit, None if asked == "auto" else asked)
        allowance = Allowance(Planner(planner.target, dtype=dtype, kv=kv), limit, asked)
    backend, tokenizer = read(checkpoint, progress)

    def measure() -> dict[int, float]:
        key = curve_key(
            checkpoint.path, dtype=dtype, kv=backend.kv, threads=backend.threads, kernels=backend.kernels
        )
        return remembered_curve(backend, key)

    def engine(auto: Choice) -> Engine:
        return Engine(
            backend,
            tokenizer,
            context=longest if asked == "auto" else asked,
            drafter=drafter,
            load_draft=load_draft,
            measure=measure,
            draft_tokens=draft_tokens,
            allowance=allowance,
            auto=auto,
        )

    try:
        return engine(choice)
    except InputError:
        if drafter != "auto" or choice == Choice():
            raise
        return engine(Choice())  # the drafter that was chosen is not there any more
