"""`forerun cost`: what a forward over n tokens costs on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from forerun.arguments import whole_number
from forerun.cli.failures import told_if_interrupted
from forerun.cli.options import (
    dtype_option,
    json_option,
    kernels_option,
    kv_option,
    model_option,
    threads_option,
)
from forerun.cli.progress import LateProgress
from forerun.errors import InputError
from forerun.lists import split_items
from forerun.words import counted

if TYPE_CHECKING:
    from forerun.backends.cpu import CpuBackend
    from forerun.bench.cost import Curve, Measurement, Point, Shape
    from forerun.bench.peers import LlamaCpp
    from forerun.models.checkpoint import Checkpoint

WIDEST = 4096
CONTEXT, PREFILL = 256, 512


@click.command()
@model_option
@click.option(
    "--widths",
    metavar="LIST",
    default="1,2,4,8,12,16",
    help="Tokens a forward, such as 1,2,4 or 1-16,24,32; 1 is always measured.",
)
@click.option(
    "--context",
    type=click.IntRange(0),
    metavar="N",
    help="Tokens in the cache before them; by default 256, or what a smaller model holds.",
)
@click.option(
    "--prefill",
    type=click.IntRange(0),
    metavar="N",
    help="Also time a prompt of N tokens, by default 512, or what a smaller model holds; 0: none.",
)
@click.option(
    "--shape",
    type=click.Choice(["chain", "tree"]),
    default="chain",
    help="How the tokens hang together; in a tree every one has two children.",
)
@click.option(
    "--rounds", type=click.IntRange(1), default=30, metavar="N", help="Measure everything so many times."
)
@click.option(
    "--compare", type=click.Choice(["llama.cpp"]), help="Run the same GGUF file there too, in turns."
)
@dtype_option
@kv_option
@threads_option
@kernels_option
@json_option
def cost(
    model: str,
    widths: str,
    context: int | None,
    prefill: int | None,
    shape: Shape,
    rounds: int,
    compare: str | None,
    dtype: str,
    kv: str,
    threads: int | None,
    kernels: str,
    as_json: bool,
) -> None:
    """Measure what a forward over several tokens costs.

    Shows the cost curve t(n), milliseconds of a forward over n tokens, next to what memory allows.
    """
    from forerun.backends.cpu import check_options, load_backend
    from forerun.bench.cost import Forerun, Measurement, read_bandwidth
    from forerun.models.checkpoint import open_checkpoint
    from forerun.models.hub import resolve_model

    ns = sorted({1, *_widths(widths)})
    check_options(dtype=dtype, threads=threads, kv=kv, kernels=kernels)
    checkpoint = open_checkpoint(resolve_model(model))
    longest = checkpoint.config.context
    context = max(0, min(CONTEXT, longest - max(ns))) if context is None else context
    prefill = min(PREFILL, longest) if prefill is None else prefill
    capacity = _capacity(checkpoint, context, max(ns), prefill)
    with LateProgress("loading") as progress:
        backend = load_backend(
            checkpoint, dtype=dtype, threads=threads, kv=kv, kernels=kernels, progress=progress
        )
    own = Forerun(backend, capacity, shape)
    with _peers(compare, checkpoint, backend, capacity) as peers:
        measurement = Measurement([own, *peers], ns, context=context, prompt=prefill)
        result = CostResult(
            model=model,
            dtype=dtype,
            backend=backend,
            context=context,
            kv_bytes=own.cache.bytes_per_token * context,
            bandwidth=read_bandwidth(backend.threads),
            shape=shape,
            measurement=measurement,
            versions=[peer.version for peer in peers],
        )
        with told_if_interrupted(lambda: f"{measurement.rounds} of {counted(rounds, 'round')} measured"):
            try:
                with LateProgress("measuring") as progress:
                    measurement.run(rounds, progress=progress)
                result = replace(result, bandwidth=max(result.bandwidth, read_bandwidth(backend.threads)))
            finally:  # what is measured is told after Ctrl-C too
                if measurement.rounds:
                    print(json.dumps(result.as_dict()) if as_json else result.as_text())


def _widths(text: str) -> list[int]:
    """'1,2,4-6' -> [1, 2, 4, 5, 6]."""
    found: list[int] = []
    for part in split_items("--widths", text):
        first, _, last = part.partition("-")
        low, high = whole_number(first), whole_number(last or first)
        if low < 0 or high < 0:
            raise InputError(f"--widths {text!r} is no list of numbers and ranges, such as 1,2,4 or 1-16,24")
        if not 1 <= low <= high <= WIDEST:
            raise InputError(f"--widths has {part!r}; a forward here has 1 to {WIDEST} tokens")
        found += range(low, high + 1)
    return found


def _capacity(checkpoint: Checkpoint, context: int, widest: int, prompt: int) -> int:
    """Tokens that a cache must hold."""
    capacity, most = max(context + widest, prompt), checkpoint.config.context
    if capacity > most:
        need = counted(capacity, "token")
        raise InputError(f"this needs {need} of context, the model has {most}; use fewer")
    return capacity


@contextmanager
def _peers(
    engine: str | None, checkpoint: Checkpoint, backend: CpuBackend, capacity: int
) -> Iterator[list[LlamaCpp]]:
    """The engines to compare with, freed afterwards."""
    if not engine:
        yield []
        return
    from forerun.bench.peers import LlamaCpp

    if checkpoint.format != "gguf":
        raise InputError("llama.cpp reads GGUF files; name one, or leave out --compare")
    with closing(LlamaCpp(checkpoint.path, capacity, backend.threads, backend.kv)) as peer:
        yield [peer]


@dataclass(frozen=True)
class CostResult:
    """Everything that was measured.

    Attributes:
        kv_bytes: that a forward of one row reads of keys and values.
        bandwidth: bytes per second.
        measurement: of this engine first, then of those compared with.
        versions: of these.
    """

    model: str
    dtype: str
    backend: CpuBackend
    context: int
    kv_bytes: int
    bandwidth: float
    shape: str
    measurement: Measurement
    versions: list[str]

    @property
    def curves(self) -> list[Curve]:
        return self.measurement.curves()

    @property
    def bytes_per_forward(self) -> int:
        return self.backend.bytes_per_forward + self.kv_bytes

    @property
    def fraction_of_bandwidth(self) -> float:
        """Of the memory's speed, what a forward of one row reaches."""
        return self.bytes_per_forward / (self.curves[0].points[0].ms / 1000) / self.bandwidth

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        own, *others = self.curves
        return {
            "model": self.model,
            "dtype": self.dtype,
            "threads": self.backend.threads,
            "context": self.context,
            "bytes_per_forward": self.bytes_per_forward,
            "bandwidth_gb_s": round(self.bandwidth / 1e9, 2),
            "fraction_of_bandwidth": round(self.fraction_of_bandwidth, 4),
            **_curve_dict(own),
            "weight_bytes": dict(self.backend.formats),
            "kv": self.backend.kv,
            "kv_bytes": self.kv_bytes,
            "kernels": self.backend.kernels,
            "shape": self.shape,
            "rounds": self.measurement.rounds,
            "compare": {
                curve.name: {"version": version, **_curve_dict(curve)}
                for curve, version in zip(others, self.versions, strict=True)
            },
        }

    def as_text(self) -> str:
        """For people."""
        backend, (own, *others) = self.backend, self.curves
        formats = ", ".join(f"{name} {count / 1e6:.1f} MB" for name, count in backend.formats.items())
        lines = [
            f"{self.model}: {formats}; {backend.kernels}, {counted(backend.threads, 'thread')}; "
            f"a {self.shape} after {counted(self.context, 'token')} in {backend.kv}",
            f"a forward reads {self.bytes_per_forward / 1e6:.1f} MB; memory gives"
            f" {self.bandwidth / 1e9:.1f} GB/s, of which one token reaches {self.fraction_of_bandwidth:.0%}",
            "",
            *_table(own),
        ]
        for curve, version in zip(others, self.versions, strict=True):
            lines += ["", f"{curve.name} ({version}):", *_table(curve, own)]
        return "\n".join(lines)


def _curve_dict(curve: Curve) -> dict[str, object]:
    found: dict[str, object] = {"curve": [_point_dict(point) for point in curve.points]}
    if curve.prompt is not None:
        found["prefill"] = {**_point_dict(curve.prompt), "tokens_per_second": round(_speed(curve.prompt), 1)}
    return found


def _point_dict(point: Point) -> dict[str, object]:
    found: dict[str, object] = {
        "n": point.n,
        "ms": round(point.ms, 4),
        "ms_p10": round(point.ms_p10, 4),
        "ms_p90": round(point.ms_p90, 4),
    }
    if point.stages:
        found["stages"] = {name: round(ms, 4) for name, ms in point.stages.items()}
    return found


def _table(curve: Curve, against: Curve | None = None) -> list[str]:
    """A line a width: milliseconds, times t(1), times what `against` takes, and the stages' milliseconds."""
    first = curve.points[0]
    header = f"{'n':>4}{'ms':>9}{'p10':>9}{'p90':>9}{'x t(1)':>8}"
    if against:
        header += f"{'x forerun':>11}"
    lines = [header + "".join(f"{name:>11}" for name in first.stages)]
    for i, point in enumerate(curve.points):
        line = (
            f"{point.n:>4}{point.ms:>9.3f}{point.ms_p10:>9.3f}{point.ms_p90:>9.3f}{point.ms / first.ms:>8.2f}"
        )
        if against:
            line += f"{point.ms / against.points[i].ms:>11.2f}"
        lines.append(line + "".join(f"{ms:>11.3f}" for ms in point.stages.values()))
    if curve.prompt is not None:
        prompt = curve.prompt
        lines.append(
            f"a prompt of {counted(prompt.n, 'token')}: {prompt.ms:.1f} ms, {_speed(prompt):.0f} tokens/s"
        )
    return lines


def _speed(point: Point) -> float:
    """Tokens per second."""
    return point.n / point.ms * 1000
