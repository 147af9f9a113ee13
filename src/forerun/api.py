"""The front door: load a model, and let it write.

engine = forerun.load("smollm2-135m")
print(engine.generate("Write a haiku about rivers.", SamplingParams(max_tokens=60)).text)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from forerun.arguments import check_progress, check_whole, refuse
from forerun.engine import Engine
from forerun.errors import InputError
from forerun.models.memory import STAGED_ROWS
from forerun.planning import Allowance, Planner, keep_within, make_planner, parse_size
from forerun.roster import best_drafter, check_names
from forerun.tuning import Choice, known_choice

if TYPE_CHECKING:
    from forerun.models.backend import Backend
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
    from forerun import text
    from forerun.backends.cpu import CpuBackend, check_options, curve_key, load_backend, remembered_curve
    from forerun.models.checkpoint import Checkpoint, open_checkpoint
    from forerun.models.draft_vocabulary import draft_vocabulary
    from forerun.models.hub import DEFAULT_MODEL, resolve_model
    from forerun.models.outline import outline_of
    from forerun.models.shipped import short_name

    def read_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
        gguf = checkpoint.format == "gguf"
        return text.from_gguf(checkpoint.metadata) if gguf else text.from_folder(checkpoint.path)

    def read(checkpoint: Checkpoint, progress: Progress | None = None) -> CpuBackend:
        return load_backend(
            checkpoint, dtype=dtype, threads=threads, kv=kv, kernels=kernels, progress=progress
        )

    def load_draft(name: str) -> tuple[Backend, Tokenizer | DraftVocabulary]:
        draft = open_checkpoint(resolve_model(name))
        part = draft_vocabulary(draft.metadata, draft.config.vocab_size, draft.path)
        return read(draft), part or read_tokenizer(draft)

    # what can be told to be wrong before a model is fetched and read is told before
    if not isinstance(model, str | os.PathLike | None):
        refuse("model", model, "a file, a folder, a hub id or a known name")
    check_options(dtype=dtype, threads=threads, kv=kv, kernels=kernels)
    check_names(drafter)
    if not isinstance(tuned, bool):
        refuse("tuned", tuned, "True or False")
    check_progress(progress)
    check_whole("context", None if isinstance(context, str) and context == "auto" else context, 2)
    check_whole("draft_tokens", draft_tokens, 0, STAGED_ROWS - 1)
    limit = parse_size(memory) if isinstance(memory, str) else memory
    check_whole("memory", limit, 1)
    checkpoint = open_checkpoint(resolve_model(DEFAULT_MODEL if model is None else os.fspath(model)))
    longest = checkpoint.config.context
    if isinstance(context, int) and context > longest:
        raise InputError(f"context is {context}; this model holds 2 to {longest} tokens")
    usual = Choice(best_drafter(checkpoint.config))
    choice = (known_choice(checkpoint.path) if tuned else None) or usual
    dtype = choice.dtype if dtype == "auto" else dtype
    threads = choice.threads if threads is None else threads
    asked = longest if context is None else context
    allowance = None
    if limit is not None:
        outline, wanted = outline_of(checkpoint), longest if asked == "auto" else asked

        def plan(names: str) -> Planner:
            return make_planner(outline, ",".join(check_names(names)), dtype=dtype, kv=kv)

        if drafter == "auto":
            choice, planner = _plan_auto((choice, usual), plan, limit, wanted)
            usual = choice
        else:
            planner = plan(drafter)
        asked = keep_within(planner, limit, None if asked == "auto" else asked)
        allowance = Allowance(Planner(planner.target, dtype=dtype, kv=kv), limit, asked)
    if draft_vocabulary(checkpoint.metadata, checkpoint.config.vocab_size, checkpoint.path):
        name = short_name(checkpoint.path)
        raise InputError(f"{checkpoint.path} only drafts for another model: drafter draft:{name}")
    tokenizer, backend = read_tokenizer(checkpoint), read(checkpoint, progress)

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
        if drafter != "auto" or choice == usual:
            raise
        return engine(usual)  # the drafter that was chosen is not there any more


def _plan_auto(
    choices: Sequence[Choice], plan: Callable[[str], Planner], limit: int, context: int
) -> tuple[Choice, Planner]:
    """The first of the choices whose drafter is there, and its plan: without models where the context has no
    room beside them."""
    for place, choice in enumerate(choices):
        try:
            planner = plan(choice.drafter)
            break
        except InputError:
            if place == len(choices) - 1:
                raise
    within = planner.choosing(limit, context)
    if within is not planner:
        choice = replace(choice, drafter=",".join(within.drafters), draft_tokens=None, acceptance=None)
    return choice, within
