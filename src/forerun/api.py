"""The front door: load a model, and let it write.

engine = forerun.load("smollm2-135m")
print(engine.generate("Write a haiku about rivers.", SamplingParams(max_tokens=60)).text)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from forerun.arguments import check_progress, check_whole, refuse
from forerun.engine import Engine
from forerun.errors import InputError
from forerun.models.memory import STAGED_ROWS
from forerun.planning import Allowance, Planner, keep_within, parse_size
from forerun.roster import best_drafter, check_names, join_cascade
from forerun.tuning import Choice, known_choice

if TYPE_CHECKING:
    from forerun.backends.cpu import CpuBackend
    from forerun.models.backend import Backend
    from forerun.models.checkpoint import Checkpoint
    from forerun.models.draft_vocabulary import DraftVocabulary
    from forerun.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]


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
        drafter: "auto" (what `forerun tune` chose, or else "suffix" with the head that comes with the package
            for this model), "none", "lookup", "suffix", "draft:MODEL", "skip:K", "head:DIR", or several with
            commas between.
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
    from forerun.backends.cpu import check_options
    from forerun.models.checkpoint import open_checkpoint
    from forerun.models.hub import DEFAULT_MODEL, resolve_model
    from forerun.models.outline import outline_of

    # what can be told to be wrong before a model is fetched and read is told before
    check_options(dtype=dtype, threads=threads, kv=kv, kernels=kernels)
    limit = _check_arguments(model, drafter, tuned, progress, context, draft_tokens, memory)
    checkpoint = open_checkpoint(resolve_model(DEFAULT_MODEL if model is None else os.fspath(model)))
    longest = checkpoint.config.context
    if isinstance(context, int) and context > longest:
        raise InputError(f"context is {context}; this model holds 2 to {longest} tokens")
    usual = Choice(best_drafter(checkpoint.config))
    choice = (known_choice(checkpoint.path) if tuned else None) or usual
    reader = _Reader(
        dtype=choice.dtype if dtype == "auto" else dtype,
        threads=choice.threads if threads is None else threads,
        kv=kv,
        kernels=kernels,
    )
    room = context if isinstance(context, int) else longest
    allowance = None
    if limit is not None:
        bare = Planner(outline_of(checkpoint), dtype=reader.dtype, kv=kv)
        if drafter == "auto":
            choice, planner = _plan_auto((choice, usual), bare, limit, room)
            usual = choice
        else:
            planner = bare.with_drafters(check_names(drafter))
        room = keep_within(planner, limit, None if context == "auto" else room)
        allowance = Allowance(bare, limit, room)
    tokenizer, backend = reader.target(checkpoint, progress)

    def engine(auto: Choice) -> Engine:
        return Engine(
            backend,
            tokenizer,
            context=room,
            drafter=drafter,
            load_draft=reader.draft,
            measure=lambda: reader.curve(checkpoint, backend),
            draft_tokens=draft_tokens,
            allowance=allowance,
            auto=auto,
        )

    try:
        return engine(choice)
    except InputError:
        if drafter != "auto" or choice == usual:
            raise
        return engine(usual)  # the drafter that was chosen is not there any more


def _check_arguments(
    model: object,
    drafter: str,
    tuned: object,
    progress: object,
    context: object,
    draft_tokens: object,
    memory: object,
) -> int | None:
    """Those of `load` that can be told to be wrong as they are. Returns `memory` in bytes.

    Raises:
        InputError: one is.
    """
    if not isinstance(model, str | os.PathLike | None):
        refuse("model", model, "a file, a folder, a hub id or a known name")
    check_names(drafter)
    if not isinstance(tuned, bool):
        refuse("tuned", tuned, "True or False")
    check_progress(progress)
    check_whole("context", None if isinstance(context, str) and context == "auto" else context, 2)
    check_whole("draft_tokens", draft_tokens, 0, STAGED_ROWS - 1)
    limit = parse_size(memory) if isinstance(memory, str) else memory
    check_whole("memory", limit, 1)
    return cast("int | None", limit)


@dataclass(frozen=True)
class _Reader:
    """How models are read and computed, the target and draft models alike; see `load`."""

    dtype: str
    threads: int | None
    kv: str
    kernels: str

    def target(self, checkpoint: Checkpoint, progress: Progress | None) -> tuple[Tokenizer, CpuBackend]:
        """The model that writes.

        Raises:
            InputError: it can only draft for another; or its weights cannot be used.
        """
        from forerun import text
        from forerun.models.shipped import short_name

        if _part(checkpoint):
            name = short_name(checkpoint.path)
            raise InputError(f"{checkpoint.path} only drafts for another model: drafter draft:{name}")
        return text.from_checkpoint(checkpoint), self._backend(checkpoint, progress)

    def draft(self, name: str) -> tuple[Backend, Tokenizer | DraftVocabulary]:
        """A draft model, with its tokenizer, or its part of the target's vocabulary."""
        from forerun import text
        from forerun.models.checkpoint import open_checkpoint
        from forerun.models.hub import Sought, resolve_model

        checkpoint = open_checkpoint(resolve_model(name, Sought.DRAFT))
        return self._backend(checkpoint), _part(checkpoint) or text.from_checkpoint(checkpoint)

    def curve(self, checkpoint: Checkpoint, backend: CpuBackend) -> dict[int, float]:
        """Seconds of a forward by its rows."""
        from forerun.backends.cpu import curve_key, remembered_curve

        key = curve_key(
            checkpoint.path,
            dtype=self.dtype,
            kv=backend.kv,
            threads=backend.threads,
            kernels=backend.kernels,
        )
        return remembered_curve(backend, key)

    def _backend(self, checkpoint: Checkpoint, progress: Progress | None = None) -> CpuBackend:
        from forerun.backends.cpu import load_backend

        return load_backend(
            checkpoint,
            dtype=self.dtype,
            threads=self.threads,
            kv=self.kv,
            kernels=self.kernels,
            progress=progress,
        )


def _part(checkpoint: Checkpoint) -> DraftVocabulary | None:
    """The part of a target's vocabulary that the model has, if it is no more than that."""
    from forerun.models.draft_vocabulary import draft_vocabulary

    return draft_vocabulary(checkpoint.metadata, checkpoint.config.vocab_size, checkpoint.path)


def _plan_auto(choices: Sequence[Choice], bare: Planner, limit: int, context: int) -> tuple[Choice, Planner]:
    """The first of the choices whose drafter is there, and its plan: without models where the context has no
    room beside them."""
    for place, choice in enumerate(choices):
        try:
            planner = bare.with_drafters(check_names(choice.drafter))
            break
        except InputError:
            if place == len(choices) - 1:
                raise
    within = planner.choosing(limit, context)
    if within is not planner:
        choice = Choice(join_cascade(within.drafters), threads=choice.threads, dtype=choice.dtype)
    return choice, within
