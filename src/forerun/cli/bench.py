"""`forerun bench`: this engine, its drafters and other engines on the same weights and prompts."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from forerun.cli.drafters import drafters_for
from forerun.cli.options import (
    FiniteRange,
    dtype_option,
    kv_option,
    load_engine,
    model_option,
    temperature_list,
    threads_option,
)
from forerun.cli.progress import LateProgress
from forerun.cli.streams import say
from forerun.errors import CheckFailed, InputError
from forerun.files import check_writable, write_whole
from forerun.lists import split_items
from forerun.roster import split_list
from forerun.sampling.params import SamplingParams
from forerun.words import counted

if TYPE_CHECKING:
    from forerun.backends.cpu import CpuBackend
    from forerun.bench.contest import Contestant, Peer, Sample
    from forerun.bench.summary import Run
    from forerun.bench.workloads import WorkloadPrompt
    from forerun.engine import Engine

PEER_SLACK = 64
"""Places in a peer's context for its guesses."""

COST_WIDTHS = (1, 2, 4, 8, 12, 16)


@click.command()
@model_option
@click.option(
    "--drafters",
    default="auto",
    metavar="NAME[,NAME]",
    help="Drafters to run besides plain decoding; + makes a cascade, such as suffix+skip:8; all: every one"
    " that the model can use.",
)
@click.option(
    "--workloads",
    default="code,json,extraction,summarise,creative",
    metavar="NAME[,NAME]",
    help="Kinds of prompts: built-in ones (also rag, chat), or files of JSON lines with prompts.",
)
@click.option(
    "--prompts", type=click.IntRange(1), metavar="N", help="Only the first N prompts of each workload."
)
@click.option("--max-tokens", type=click.IntRange(2), default=160, metavar="N", help="Tokens an answer.")
@click.option("--ignore-end", is_flag=True, help="Answers go on to --max-tokens, whatever the model says.")
@click.option("--temperature", default="0", metavar="T[,T]", help="Temperatures to run at.")
@click.option(
    "--rounds", type=click.IntRange(1), default=1, metavar="N", help="Run everything so many times."
)
@click.option(
    "--peers",
    metavar="NAME[,NAME]",
    help="Other engines to run too: llama.cpp, transformers, openvino; all: those that are installed.",
)
@click.option(
    "--peer-python", metavar="PATH", help="The Python that has the peers' packages, if it is another."
)
@click.option(
    "--simulate-acceptance",
    type=FiniteRange(0, 1),
    metavar="P",
    help="Also a simulated drafter that is told the answer and is right with probability P a token.",
)
@click.option(
    "--json",
    "json_out",
    is_flag=False,
    flag_value="-",
    metavar="[OUT]",
    help="Write the result as JSON to a file, or print it.",
)
@click.option("--html", "html_out", metavar="OUT", help="Write the result as a page.")
@dtype_option
@kv_option
@threads_option
def bench(
    model: str,
    drafters: str,
    workloads: str,
    prompts: int | None,
    max_tokens: int,
    ignore_end: bool,
    temperature: str,
    rounds: int,
    peers: str | None,
    peer_python: str | None,
    simulate_acceptance: float | None,
    json_out: str | None,
    html_out: str | None,
    dtype: str,
    kv: str,
    threads: int | None,
) -> None:
    """Compare the speed of drafters and engines.

    Plain decoding, drafters and other engines run in turns. Exits with 1 if a text of this engine differs
    from plain decoding.
    """
    from forerun.bench.contest import contest, encoded

    kinds = split_items("--workloads", workloads, there=os.path.isfile)
    chosen = _prompts(kinds, prompts)
    temperatures = temperature_list(temperature)
    for one in temperatures:  # told before a model is loaded
        SamplingParams(temperature=one)
    _check_outputs(json_out, html_out, kinds)
    engine = load_engine(model, drafter="none", dtype=dtype, kv=kv, context=None, threads=threads, kernels="")
    samples: list[Sample] = []
    with ExitStack() as stack:
        own = _own(engine, drafters, simulate_acceptance)
        fitting = _that_fit(engine, chosen, max_tokens)
        longest = max(len(encoded(engine, prompt)) for prompt in fitting) + max_tokens + PEER_SLACK
        others = _peers(stack, peers, peer_python, model, engine, min(longest, engine.context))
        if len(fitting) < len(chosen):
            count = len(chosen) - len(fitting)
            say(f"left out: {counted(count, 'prompt')} too long for the context")
        contestants: list[Contestant] = [*own, *others]
        total = rounds * len(fitting) * len(temperatures) * len(contestants)
        run = contest(
            engine,
            contestants,
            fitting,
            temperatures,
            max_tokens=max_tokens,
            rounds=rounds,
            ignore_end=ignore_end,
        )
        complete = _collect(samples, run, total)
        backend = cast("CpuBackend", engine.backend)
        result = BenchResult(model, engine, backend, max_tokens, dtype, samples, others, complete)
    for peer in others:
        if peer.fault:
            say(f"left out from then on: {peer.fault}")
    if samples:
        _write(result, json_out, html_out)
    if not complete:
        say(f"interrupted: {len(samples)} of {counted(total, 'answer')} written")
        raise KeyboardInterrupt
    _check_texts(samples)


def _collect(samples: list[Sample], run: Iterator[Sample], total: int) -> bool:
    """Add the answers as they come, about `total`; False where Ctrl-C came before the last."""
    try:
        with LateProgress("running") as progress:
            for sample in run:
                samples.append(sample)
                progress(len(samples), total)
    except KeyboardInterrupt:
        return False
    return True


def _check_texts(samples: list[Sample]) -> None:
    """CheckFailed where a text of this engine is not plain decoding's."""
    for sample in samples:
        if sample.engine == "forerun" and not sample.equal:
            raise CheckFailed(
                f"prompt {sample.prompt.name}: the text with drafter {sample.drafter} at temperature "
                f"{sample.temperature:g} is not plain decoding's (see forerun verify)"
            )


def _check_outputs(json_out: str | None, html_out: str | None, workloads: list[str]) -> None:
    """Each result has a file of its own, which is no file of prompts."""
    taken = [Path(name).resolve() for name in workloads]
    for path in [Path(name) for name in (json_out, html_out) if name not in (None, "-")]:
        check_writable(path)
        if path.resolve() in taken:
            raise InputError(f"{path} is named twice, and would be written over")
        taken.append(path.resolve())


def _prompts(workloads: list[str], most: int | None) -> list[WorkloadPrompt]:
    """The first `most` prompts of each workload."""
    from forerun.bench.prompts import read_prompts
    from forerun.bench.workloads import WORKLOADS, WorkloadPrompt, workload_prompts

    found: list[WorkloadPrompt] = []
    for name in workloads:
        if name in WORKLOADS:
            found += workload_prompts(name)[:most]
        elif Path(name).suffix or Path(name).exists():
            there: dict[str, list[WorkloadPrompt]] = {}
            for prompt in read_prompts(Path(name)):
                message = {"role": "user", "content": prompt.text}
                there.setdefault(prompt.category, []).append(
                    WorkloadPrompt(prompt.name, prompt.category, (message,))
                )
            found += [prompt for kind in there.values() for prompt in kind[:most]]
        else:
            raise InputError(f"there is no workload {name!r}: name {', '.join(WORKLOADS)}, or a file")
    return found


def _that_fit(engine: Engine, prompts: list[WorkloadPrompt], max_tokens: int) -> list[WorkloadPrompt]:
    """The prompts that leave room for an answer."""
    from forerun.bench.contest import encoded

    fitting = [p for p in prompts if len(encoded(engine, p)) + max_tokens <= engine.context]
    if not fitting:
        raise InputError(
            f"no prompt with {counted(max_tokens, 'token')} more fits a context of {engine.context}"
        )
    return fitting


def _own(engine: Engine, drafters: str, acceptance: float | None) -> list[Contestant]:
    from forerun.bench.contest import Own

    names = [name for name in drafters_for(engine, split_list("--drafters", drafters)) if name != "none"]
    found: list[Contestant] = [Own(engine, name) for name in ("none", *names)]
    if acceptance is not None:
        found.append(Own(engine, f"simulated:{acceptance:g}", acceptance))
    return found


def _peers(
    stack: ExitStack, peers: str | None, python: str | None, model: str, engine: Engine, context: int
) -> list[Peer]:
    """The other engines, each in both modes; they end with `stack`."""
    from forerun.bench.contest import Peer
    from forerun.bench.peer_process import MODES, PEERS, PeerProcess, installed
    from forerun.models.hub import resolve_model

    if peers is None:
        return []
    asked, there = split_items("--peers", peers), installed(python)
    names = dict.fromkeys(one for name in asked for one in (there if name == "all" else [name]))
    path, threads = resolve_model(model), cast("CpuBackend", engine.backend).threads
    found: list[Peer] = []
    for name in names:
        if name not in PEERS:
            raise InputError(f"there is no peer {name!r}; choose among {', '.join(PEERS)}, or all")
        if name not in there:
            raise InputError(
                f"the packages of {name} are not installed (see docs/bench.md, or --peer-python)"
            )
        for mode in MODES:
            try:
                process = PeerProcess(name, mode, path, threads, context, python)
            except InputError as error:
                if name in asked:
                    raise
                say(f"left out: {error}")
                continue
            stack.enter_context(closing(process))
            found.append(Peer(process, list(engine.end_tokens)))
    return found


def _write(result: BenchResult, json_out: str | None, html_out: str | None) -> None:
    if json_out != "-":
        print(result.as_text())
    if json_out is None and html_out is None:
        return
    found = result.as_dict()  # once: it measures the cost curve
    if json_out == "-":
        print(json.dumps(found))
    elif json_out is not None:
        write_whole(Path(json_out), json.dumps(found, indent=1) + "\n")
    if html_out is not None:
        from forerun.bench.report import html_report

        write_whole(Path(html_out), html_report(found))


@dataclass(frozen=True)
class BenchResult:
    """Everything that was found."""

    model: str
    engine: Engine
    backend: CpuBackend
    max_tokens: int
    dtype: str
    samples: list[Sample]
    peers: list[Peer]
    complete: bool

    def runs(self) -> list[Run]:
        from forerun.bench.summary import summarise

        return summarise(self.samples)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        import platform

        from forerun.bench.summary import against_peers
        from forerun.models.machine import machine
        from forerun.version import __version__

        runs = self.runs()
        versions = {"forerun": __version__, "python": platform.python_version()}
        return {
            "machine": {**machine(), "kernels": self.backend.kernels},
            "versions": {**versions, **{peer.engine: peer.process.version for peer in self.peers}},
            "model": Path(self.model).name,
            "runs": [run.as_dict() for run in runs],
            "against_peers": against_peers(runs),
            "threads": self.backend.threads,
            "dtype": self.dtype,
            "max_tokens": self.max_tokens,
            "complete": self.complete,
            "command": "forerun " + shlex.join(_without_folders(sys.argv[1:])),
            "cost": self._cost(),
            "memory": self._memory(),
        }

    def _cost(self) -> list[dict[str, float]]:
        """The cost curve, measured in a few seconds."""
        from forerun.bench.cost import Forerun, Measurement

        context = min(256, self.engine.context - max(COST_WIDTHS))
        own = Forerun(self.backend, context + max(COST_WIDTHS))
        measurement = Measurement([own], COST_WIDTHS, context=context)
        measurement.run(10, seconds=5.0)
        (curve,) = measurement.curves()
        return [{"n": point.n, "ms": round(point.ms, 4)} for point in curve.points]

    def _memory(self) -> list[dict[str, object]]:
        """The most memory that each engine's process had resident, where the system tells."""
        from forerun.bench.peer_worker import peak_bytes

        found = [("forerun", peak_bytes(), True)]
        found += [(f"{peer.engine} {peer.process.mode}", peer.peak_bytes, False) for peer in self.peers]
        return [{"name": name, "bytes": size, "own": own} for name, size, own in found if size]

    def as_text(self) -> str:
        """For people."""
        from forerun.bench.report import contestant
        from forerun.bench.summary import against_peers

        runs = self.runs()
        wide = 2 + max(len(contestant(run.as_dict())) for run in runs)
        lines = [
            f"{'workload':<14}{'':<{wide}}{'T':>5}{'tokens/s':>10}{'p10-p90':>12}{'speed-up':>10}"
            f"{'tokens a forward':>18}"
        ]
        for run in runs:
            length = f"{run.mean_accepted_length:.2f}" if run.mean_accepted_length else "-"
            lines.append(
                f"{run.workload:<14}{contestant(run.as_dict()):<{wide}}{run.temperature:>5g}"
                f"{run.tokens_per_second:>10.1f}{f'{run.low:.0f}-{run.high:.0f}':>12}{run.speedup:>9.2f}x"
                f"{length:>18}" + ("" if run.equal else "  differs from its plain text")
            )
        for found in against_peers(runs):
            lines.append(
                f"{found['workload']}: {found['speedup']:.2f}x {found['peer']}'s best"
                f" ({found['peer_drafter']})"
            )
        return "\n".join(lines)


def _without_folders(arguments: list[str]) -> list[str]:
    """Arguments without the folders of files: where somebody keeps them is nobody's business."""
    return [Path(part).name if "/" in part and Path(part).exists() else part for part in arguments]
