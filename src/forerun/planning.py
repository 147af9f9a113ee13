"""What a model and its drafters take of the machine's memory, and what fits.

Everything comes from metadata (`models.outline`); nothing is loaded. The engine is held to the same numbers:
see `Allowance`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from forerun.errors import InputError
from forerun.models.config import layers_to_run
from forerun.models.heads.head import DRAFTER_NAMES
from forerun.models.heads.size import HeadSize, read_head_size, usual_head_size
from forerun.models.hub import Sought
from forerun.models.memory import (
    BYTES_A_TOKEN,
    STAGED_ROWS,
    SUFFIX_BYTES,
    VERIFIED_ROWS,
    Memory,
    model_memory,
    program_bytes,
)
from forerun.models.outline import Outline, read_outline
from forerun.words import counted

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BINARY_UNITS = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
MARGIN = 1.03
"""What is predicted is up to 3 % off; a limit is kept by that much."""

SMALLEST_CONTEXT = 64
LIGHT = ("lookup", "suffix")
"""Drafters that need no model."""

GPU_PROGRAM = 700_000_000
"""A CUDA context, its libraries and their workspaces, in bytes."""


@dataclass(frozen=True)
class Share:
    """What one part of the engine takes, in bytes."""

    name: str
    weights: int = 0
    kv: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations


@dataclass(frozen=True)
class Plan:
    """The engine's memory with a text that fills `context`: the model, its drafters, the program."""

    context: int
    shares: tuple[Share, ...]

    @property
    def total(self) -> int:
        return sum(share.total for share in self.shares)


@dataclass(frozen=True)
class Planner:
    """Works out plans.

    Attributes:
        target: the model.
        drafters: names as for `forerun.roster`, "auto" and folders resolved; `eagle`, `eagle3`,
            `medusa` and `hydra` alone are heads of their usual shapes.
        drafts, heads: the draft models and the heads among them, by the drafter's name.
        dtype, kv: as for `forerun.load`.
        gpu: the model lives in a GPU's memory: the program there is another.
    """

    target: Outline
    drafters: tuple[str, ...] = ()
    drafts: Mapping[str, Outline] = field(default_factory=dict)
    heads: Mapping[str, HeadSize] = field(default_factory=dict)
    dtype: str = "auto"
    kv: str = "auto"
    gpu: bool = False

    def at(self, context: int) -> Plan:
        """What is resident when a text fills `context` tokens."""
        taps = sum(self.heads[name].taps for name in self.drafters if name in self.heads)
        model = _share("model", self._memory(self.target, context, taps))
        program = GPU_PROGRAM if self.gpu else program_bytes(self.target.config.vocab_size)
        drafters = [self._drafter(name, context) for name in self.drafters]
        return Plan(context, (model, *drafters, Share("program", activations=program)))

    def knowing(self, name: str) -> Planner:
        """The same, with the metadata of a drafter that is a model or a head.

        Raises:
            InputError: there is no such model or head, or it has not so many layers.
        """
        kind, _, where = name.partition(":")
        if kind == "draft":
            return replace(self, drafts={**self.drafts, name: read_outline(where, Sought.DRAFT)})
        if kind in DRAFTER_NAMES:
            config = self.target.config
            size = read_head_size(where, config, kind) if where else usual_head_size(kind, config)
            return replace(self, heads={**self.heads, name: size})
        if kind == "skip":
            layers_to_run(where, self.target.config.layers)
        return self

    def with_drafters(self, drafters: Sequence[str]) -> Planner:
        """The same with the drafters of a cascade, by name.

        Raises:
            InputError: one that cannot be found.
        """
        planner = replace(self, drafters=taking_part(drafters))
        for name in planner.drafters:
            planner = planner.knowing(name)
        return planner

    def without_models(self) -> Planner:
        """The same with suffix matching alone, which takes next to nothing, in place of models and heads."""
        if all(name in LIGHT for name in self.drafters):
            return self
        return replace(self, drafters=("suffix",), drafts={}, heads={})

    def choosing(self, limit: int, context: int) -> Planner:
        """What "auto" comes to within `limit` bytes: these drafters, or where the context has no room beside
        them, as `without_models`."""
        return self if self.largest_context(limit) >= context else self.without_models()

    def largest_context(self, limit: int) -> int:
        """The longest context, at most the model's own, whose plan keeps `limit` bytes; 0 if none does."""
        low, high = 0, self.target.config.context
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(self.at(middle), limit) else (low, middle - 1)
        return low

    def _memory(self, outline: Outline, context: int, taps: int = 0) -> Memory:
        return model_memory(
            outline.config, outline.kinds, dtype=self.dtype, kv=self.kv, context=context, taps=taps
        )

    def _drafter(self, name: str, context: int) -> Share:
        kind, _, detail = name.partition(":")
        config = self.target.config
        if kind == "draft":
            draft = self.drafts[name]
            own = _share(name, self._memory(draft, min(context, draft.config.context)))
            tokens = BYTES_A_TOKEN * draft.config.vocab_size
            spread = 4 * VERIFIED_ROWS * config.vocab_size  # logits of a part of the vocabulary
            return replace(own, activations=own.activations + tokens + spread)
        if kind == "suffix":
            return Share(name, kv=SUFFIX_BYTES * context)
        if kind == "skip":
            memory = self._memory(self.target, context)
            kv = memory.kv * layers_to_run(detail, config.layers) // config.layers
            return Share(name, kv=kv, activations=memory.activations)
        if name in self.heads:
            head = self.heads[name]
            text = head.kv_per_token * (context + STAGED_ROWS) + head.text_rows
            return Share(name, head.weights, text, head.activations)
        return Share(name)


class Allowance:
    """Keeps an engine within a limit: whatever takes memory asks first.

    Args:
        planner: of the model, without drafters.
        limit: bytes.
        context: the longest text.

    Raises:
        InputError: from every method, if what is asked for is more than what is left; says the numbers.
    """

    def __init__(self, planner: Planner, limit: int, context: int) -> None:
        self._planner = planner
        self._limit = limit
        self._context = context
        self._used = 0
        self._admitted: set[str] = set()
        self.take(sum(share.total - share.kv for share in planner.at(context).shares), "the model")

    def admit(self, drafters: Sequence[str]) -> None:
        """These drafters are about to be loaded, those that are not already."""
        for name in taking_part(drafters):
            if name in self._admitted:
                continue
            planner = self._planner.knowing(name)
            share = replace(planner, drafters=(name,)).at(self._context).shares[1]
            self.take(share.total - share.kv, f"drafter {name}")
            self._admitted.add(name)
            self._planner = planner

    def take_text(self, drafters: Sequence[str], tokens: int, *, has_cache: bool = False) -> tuple[int, int]:
        """A text of so many tokens is about to be written. Returns the bytes of its cache (0 if it has one
        already) and of its drafters, to be given back at the end of each."""
        plan = replace(self._planner, drafters=taking_part(drafters)).at(tokens)
        cache, *others = (share.kv for share in plan.shares)
        cache = 0 if has_cache else cache
        self.take(cache + sum(others), f"a text of {counted(tokens, 'token')}")
        return cache, sum(others)

    def take(self, size: int, what: str) -> None:
        """Promise `size` bytes to `what`."""
        if (self._used + size) * MARGIN > self._limit:
            raise InputError(
                f"{what} needs {megabytes(size)} more, and {megabytes(self._used)} of the "
                f"{megabytes(self._limit)} allowed are taken; allow {enough(self._used + size)}, or use a "
                "shorter context or fewer texts at once"
            )
        self._used += size

    def give(self, size: int) -> None:
        """Bytes that are free again."""
        self._used -= size


def make_planner(
    target: Outline, drafters: Sequence[str], *, dtype: str = "auto", kv: str = "auto", gpu: bool = False
) -> Planner:
    """A planner for a model with drafters by name.

    Raises:
        InputError: a draft model that cannot be found.
    """
    return Planner(target, dtype=dtype, kv=kv, gpu=gpu).with_drafters(drafters)


def taking_part(drafters: Sequence[str]) -> tuple[str, ...]:
    """The drafters that there are to plan for; what their names stand for is checked elsewhere."""
    return tuple("suffix" if name == "auto" else name for name in drafters if name != "none")


def fits(plan: Plan, limit: int) -> bool:
    """Whether a plan keeps a limit, with the margin."""
    return plan.total * MARGIN <= limit


def keep_within(planner: Planner, limit: int, context: int | None) -> int:
    """The context to use within `limit` bytes: `context` if it fits, or for None the longest that does.

    Raises:
        InputError: it does not fit; says what would be needed and what would fit.
    """
    largest = planner.largest_context(limit)
    if context is not None and largest >= context:
        return context
    if context is None and largest >= SMALLEST_CONTEXT:
        return largest
    plan = planner.at(context or SMALLEST_CONTEXT)
    parts = [f"{share.name} {megabytes(share.total)}" for share in plan.shares if share.total >= 500_000]
    if largest >= SMALLEST_CONTEXT:
        advice = f"allow {enough(plan.total)}, or take a context of {largest} or auto"
    elif plan.context > SMALLEST_CONTEXT:
        least = enough(planner.at(SMALLEST_CONTEXT).total)
        advice = f"no context fits; allow {least} with the context auto, or use a smaller dtype or model"
    else:
        advice = f"no context fits; allow {enough(plan.total)}, or use a smaller dtype or model"
    raise InputError(
        f"a context of {plan.context} needs {enough(plan.total)} ({', '.join(parts)}, 3 % to spare), more "
        f"than the {megabytes(limit)} allowed; {advice}"
    )


def enough(total: int) -> str:
    """The least limit that lets `total` bytes be taken, as `parse_size` reads it."""
    return f"{math.ceil(total * MARGIN / 1e6)}MB"


def parse_size(text: str) -> int:
    """Bytes of '24GB', '1.5GiB', '800MB' or a plain number.

    Raises:
        InputError: no such size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?\s*", text.upper(), re.ASCII)
    if match is None or len(text) > 40:
        raise InputError(f"{text!r} is no amount of memory, such as 24GB, 1.5GiB or 800MB")
    return int(float(match[1]) * {**UNITS, **BINARY_UNITS}[match[2] or ""])


def megabytes(size: int) -> str:
    """For messages."""
    return f"{size / 1e9:,.2f} GB" if size >= 10**9 else f"{size / 1e6:,.0f} MB"


def _share(name: str, memory: Memory) -> Share:
    return Share(name, memory.weights, memory.kv, memory.activations)
