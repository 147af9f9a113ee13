"""`forerun plan`: what a model needs and how fast it would be, from metadata alone."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from forerun.cli.options import (
    FiniteRange,
    dtype_option,
    json_option,
    kv_option,
    model_option,
    threads_option,
)
from forerun.errors import CheckFailed, InputError
from forerun.words import counted

if TYPE_CHECKING:
    from forerun.bench.forecast import Forecast, Guessing
    from forerun.models.outline import Outline
    from forerun.planning import Plan, Planner
    from forerun.tuning import Choice

CONTEXTS = (512, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@click.command()
@model_option
@click.option(
    "--memory", metavar="SIZE", help="The memory there is, such as 24GB; by default this machine's."
)
@click.option(
    "--context", type=click.IntRange(1), metavar="N", help="Only this context; exit 1 if it is too long."
)
@click.option(
    "--drafter",
    default="auto",
    metavar="NAME[,NAME]",
    help="As for generate; eagle, eagle3, medusa and hydra alone are heads of the usual shape.",
)
@click.option(
    "--bandwidth",
    type=FiniteRange(0, 1e6, min_open=True),
    metavar="GB/S",
    help="Of the memory; measured by default, on a CPU.",
)
@click.option(
    "--acceptance",
    type=FiniteRange(0, 1),
    metavar="P",
    help="The chance that a guess is right; by default what `tune` measured, or 0.7.",
)
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", help="Whose memory it is.")
@dtype_option
@kv_option
@threads_option
@json_option
def plan(
    model: str,
    memory: str | None,
    context: int | None,
    drafter: str,
    bandwidth: float | None,
    acceptance: float | None,
    device: str,
    dtype: str,
    kv: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Tell what fits into memory, and how fast.

    Works out from metadata alone what a model and its drafters need, which contexts fit, and how fast
    decoding would be.
    """
    from forerun.backends.cpu import check_options
    from forerun.bench.forecast import Forecaster, expected_guessing
    from forerun.models.outline import read_outline
    from forerun.tuning import known_choice

    check_options(dtype=dtype, threads=threads, kv=kv)
    limit = _limit(memory)
    outline = read_outline(model)
    tuned, gpu = known_choice(outline.path), device == "gpu"
    if gpu and (memory is None or bandwidth is None):
        raise InputError(
            "a GPU's memory cannot be looked up here; give --memory and --bandwidth, both of the GPU"
        )
    if tuned is not None and not gpu:  # what was tuned was tuned on this machine
        dtype = tuned.dtype if dtype == "auto" else dtype
        threads = tuned.threads if threads is None else threads
        check_options(dtype=dtype, threads=threads, kv=kv)
    planner = _make_planner(outline, drafter, None if gpu else tuned, dtype=dtype, kv=kv, gpu=gpu)
    longest = planner.target.config.context
    if context is not None and context > longest:
        raise InputError(f"context is {context}; this model holds at most {counted(longest, 'token')}")
    curve = None if gpu or bandwidth is not None else _known_curve(planner, threads)
    speed = bandwidth * 1e9 if bandwidth is not None else _measure_bandwidth(threads)

    def within(context: int) -> Planner:
        """What the engine would use for this context, held to this memory."""
        return planner.choosing(limit, context) if drafter == "auto" and memory is not None else planner

    def row(context: int) -> Row:
        chosen = within(context)
        guessing = expected_guessing(acceptance, tuned, chosen.drafters)
        forecast = Forecaster(chosen, speed, guessing, curve).at(context)
        return Row(chosen.drafters, chosen.at(context), forecast, context <= fitting)

    used = within(context or longest)
    fitting = used.largest_context(limit)
    contexts = (
        [context] if context else sorted({*(n for n in CONTEXTS if n < longest), longest, fitting} - {0})
    )
    result = PlanResult(
        model=model,
        planner=used,
        wanted=planner.drafters,
        limit=limit,
        fitting=fitting,
        bandwidth=speed,
        guessing=expected_guessing(acceptance, tuned, used.drafters),
        measured=curve is not None,
        rows=[row(n) for n in contexts],
    )
    print(json.dumps(result.as_dict()) if as_json else result.as_text())
    if context is not None and context > fitting:
        raise CheckFailed(f"a context of {context} does not fit; {result.advice()}")


def _limit(memory: str | None) -> int:
    """Bytes that there are: as given, or this machine's."""
    from forerun.arguments import check_whole
    from forerun.models.machine import memory_bytes
    from forerun.planning import parse_size

    given = None if memory is None else parse_size(memory)
    check_whole("memory", given, 1)
    limit = memory_bytes() if given is None else given
    if not limit:
        raise InputError("this system does not tell how much memory it has; give --memory")
    return limit


def _make_planner(
    outline: Outline, drafter: str, tuned: Choice | None, *, dtype: str, kv: str, gpu: bool
) -> Planner:
    """A planner with what `drafter` stands for: "auto" as for `forerun.load`, and heads of usual shapes."""
    from forerun.models.heads.size import USUAL
    from forerun.planning import make_planner
    from forerun.roster import best_drafter, check_names, join_cascade, split_cascade

    def named(drafters: str) -> Planner:
        given = split_cascade(drafters)
        names = check_names(join_cascade([name for name in given if name not in USUAL] or ["none"]))
        names += [name for name in given if name in USUAL]
        return make_planner(outline, names, dtype=dtype, kv=kv, gpu=gpu)

    if drafter != "auto":
        return named(drafter)
    if tuned is not None:
        with suppress(InputError):  # the drafter that was chosen may not be there any more
            return named(tuned.drafter)
    return named(best_drafter(outline.config))


def _measure_bandwidth(threads: int | None) -> float:
    """Bytes a second that this machine reads."""
    from forerun.backends.cpu import usable_cores
    from forerun.bench.cost import read_bandwidth

    return read_bandwidth(threads or usable_cores())


def _known_curve(planner: Planner, threads: int | None) -> dict[int, float] | None:
    """The model's cost curve, if it has run on this machine."""
    from forerun import _core
    from forerun.backends.cpu import curve_key, known_curve, usable_cores
    from forerun.models.memory import kv_type

    key = curve_key(
        planner.target.path,
        dtype=planner.dtype,
        kv=kv_type(planner.kv, planner.dtype),
        threads=threads or usable_cores(),
        kernels=_core.available_kernels()[0],
    )
    return known_curve(key)


@dataclass(frozen=True)
class Row:
    """One context, and who would draft in it."""

    drafters: tuple[str, ...]
    plan: Plan
    forecast: Forecast
    fits: bool


@dataclass(frozen=True)
class PlanResult:
    """Everything that is told.

    Attributes:
        planner: of what is used where no other context than the one asked for, or the model's own, is named.
        wanted: drafters that are used where there is room.
        limit: bytes of memory.
        fitting: the longest context that fits, 0 for none.
        bandwidth: bytes a second.
        guessing: that speeds are predicted with.
        measured: whether the cost curve was measured.
    """

    model: str
    planner: Planner
    wanted: tuple[str, ...]
    limit: int
    fitting: int
    bandwidth: float
    guessing: Guessing
    measured: bool
    rows: list[Row]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "model": self.model,
            "drafters": list(self.planner.drafters),
            "dtype": self.planner.dtype,
            "device": "gpu" if self.planner.gpu else "cpu",
            "memory_bytes": self.limit,
            "largest_context": self.fitting,
            "bandwidth_gb_s": round(self.bandwidth / 1e9, 2),
            "acceptance": self.guessing.acceptance,
            "acceptance_from": self.guessing.source,
            "share_with_guesses": self.guessing.share,
            "share_from": self.guessing.share_source,
            "cost_curve": "measured" if self.measured else "bandwidth",
            "contexts": [
                {
                    "context": row.plan.context,
                    "fits": row.fits,
                    "drafters": list(row.drafters),
                    "total_bytes": row.plan.total,
                    "parts": [
                        {
                            "name": share.name,
                            "weights": share.weights,
                            "kv": share.kv,
                            "activations": share.activations,
                        }
                        for share in row.plan.shares
                    ],
                    "plain_tokens_per_second": round(row.forecast.plain, 2),
                    "speculative_tokens_per_second": round(row.forecast.speculative.tokens_per_second, 2),
                    "guesses": row.forecast.speculative.guesses,
                }
                for row in self.rows
            ],
        }

    def advice(self) -> str:
        """What would fit."""
        if self.fitting:
            return f"the longest context that does is {self.fitting}"
        without = ", no draft model" if self.planner.drafts else ""
        without += ", no head" if self.planner.heads else ""
        return f"none does: use a smaller --dtype or --kv{without}, or a smaller model"

    def _guesses(self) -> str:
        """How well is guessed."""
        found = self.guessing
        acceptance = f"acceptance {found.acceptance:.2f} ({found.source})"
        if found.share == 1:
            return acceptance
        return f"{acceptance}, guesses in {found.share:.0%} of the steps ({found.share_source})"

    def _left_out(self) -> list[str]:
        """A line if there is no room for a drafter beside some contexts."""
        without = [row for row in self.rows if row.drafters != self.wanted]
        if not without:
            return []
        missing = ", ".join(name for name in self.wanted if name not in without[0].drafters)
        return [
            f"from a context of {without[0].plan.context:,} on there is no room for {missing}: "
            f"{', '.join(without[0].drafters)} drafts alone, as for generate"
        ]

    def as_text(self) -> str:
        """For people."""
        from forerun.models.memory import STAGED_ROWS
        from forerun.planning import megabytes

        drafters = self.planner.drafters
        model, *others = self.rows[0].plan.shares
        lines = [
            f"{self.model}: weights {megabytes(model.weights)}, "
            f"keys and values {model.kv / (self.rows[0].plan.context + STAGED_ROWS) / 1e3:,.1f} kB a token",
            *(f"{share.name}: weights {megabytes(share.weights)}" for share in others if share.weights),
            f"memory {megabytes(self.limit)}, of which 3 % are kept back; "
            + (f"the longest context that fits is {self.fitting:,}" if self.fitting else "no context fits"),
            f"speeds: {self.bandwidth / 1e9:.1f} GB/s, "
            + ("cost curve measured here" if self.measured else "at best: as if memory were the only limit")
            + (f", {self._guesses()}" if drafters else ""),
            *self._left_out(),
            "",
            f"{'context':>8}{'model KV':>11}{'drafters':>11}{'work':>10}{'total':>11}{'':>7}"
            f"{'plain tok/s':>13}{'speculative':>13}",
        ]
        for row in self.rows:
            model, *drafting, program = row.plan.shares
            speculative = row.forecast.speculative
            guesses = counted(speculative.guesses, "guess", "guesses")
            lines.append(
                f"{row.plan.context:>8}{megabytes(model.kv):>11}"
                f"{megabytes(sum(share.total for share in drafting)):>11}"
                f"{megabytes(model.activations + program.activations):>10}"
                f"{megabytes(row.plan.total):>11}{'fits' if row.fits else 'no':>7}"
                f"{row.forecast.plain:>13.1f}"
                + (f"{speculative.tokens_per_second:>13.1f} with {guesses}" if drafters else "")
            )
        return "\n".join(lines)
