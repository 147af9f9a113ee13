"""`forerun tune`: find the fastest settings for a model on this machine, and use them from then on."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from forerun.arguments import whole_number
from forerun.cli.drafters import drafters_for
from forerun.cli.failures import told_if_interrupted
from forerun.cli.options import FiniteRange, json_option, kv_option, load_engine, model_option, prompts_option
from forerun.cli.progress import LateProgress
from forerun.errors import InputError
from forerun.lists import split_items
from forerun.roster import split_list
from forerun.words import counted

if TYPE_CHECKING:
    from forerun.bench.tuner import Arm, Clock
    from forerun.bench.workloads import WorkloadPrompt
    from forerun.engine import Engine
    from forerun.tuning import Choice

WORKLOADS = ("code", "json", "extraction", "summarise", "rag", "chat", "creative")


@click.command()
@model_option
@click.option(
    "--drafters",
    default="auto,suffix,lookup",
    metavar="NAME[,NAME]",
    help="Drafters to try besides plain decoding; + makes a cascade, such as suffix+draft:MODEL. auto is what"
    " is used where nothing was tuned.",
)
@click.option(
    "--draft-tokens",
    default="auto,4,8",
    metavar="LIST",
    help="Sizes of drafts to try: numbers, and auto, which decides every step by cost.",
)
@click.option(
    "--dtypes",
    default="auto",
    metavar="LIST",
    help="Ways to execute weights; others than auto change the model, and its text.",
)
@click.option(
    "--threads",
    metavar="LIST",
    help="Numbers of threads to try; by default a few.",
)
@prompts_option
@click.option("--max-tokens", type=click.IntRange(8), default=64, metavar="N", help="Tokens an answer.")
@click.option("--seconds", type=FiniteRange(5), default=150.0, metavar="S", help="Take about so long.")
@click.option("--reset", is_flag=True, help="Forget what was chosen, and end.")
@kv_option
@json_option
def tune(
    model: str,
    drafters: str,
    draft_tokens: str,
    dtypes: str,
    threads: str | None,
    prompts: Path | None,
    max_tokens: int,
    seconds: float,
    reset: bool,
    kv: str,
    as_json: bool,
) -> None:
    """Find the fastest settings for a model here.

    Measures drafters, sizes of drafts and threads, and keeps the fastest for later runs. None of these
    changes a text; only --dtypes does, which is why it stays as in the file unless asked for.
    """
    from forerun.models.hub import resolve_model
    from forerun.tuning import forget_choice, keep_choice

    path = resolve_model(model)
    if reset:
        forget_choice(path)
        return
    search = Search(
        model,
        _drafters(drafters),
        [
            None if size == "auto" else _number(size, "--draft-tokens", 63)
            for size in split_items("--draft-tokens", draft_tokens)
        ],
        _dtypes(dtypes, kv),
        _some_threads() if threads is None else _threads(threads),
        _tuning_prompts(prompts),
        max_tokens,
        kv,
        seconds,
    )
    with told_if_interrupted(lambda: "nothing is kept"):
        try:
            with LateProgress("tuning") as progress:
                choice = search.run(progress)
        except KeyboardInterrupt:
            if not as_json:
                print(search.table())
            raise
    if choice is None:
        print(json.dumps(search.as_dict(None)) if as_json else search.table())
        raise InputError(f"too little was measured to choose, and nothing is kept: {search.too_little()}")
    place = keep_choice(path, choice)
    if as_json:
        print(json.dumps(search.as_dict(choice)))
        return
    print(search.table())
    print(f"\nchosen: {search.describe(choice)}" + ("" if place else " (not kept: no cache to write to)"))


def _drafters(text: str) -> list[str]:
    found = [name for name in split_list("--drafters", text) if name != "none"]
    if not found:
        raise InputError("--drafters names none but plain decoding, which takes part anyway; name another")
    return found


def _dtypes(text: str, kv: str) -> list[str]:
    from forerun.backends.cpu import check_options

    found = split_items("--dtypes", text)
    for dtype in found:  # told before the first is measured
        check_options(dtype=dtype, threads=None, kv=kv)
    return found


def _threads(text: str) -> list[int]:
    return [_number(threads, "--threads", 1024) for threads in split_items("--threads", text)]


def _number(text: str, option: str, most: int) -> int:
    number = whole_number(text)
    if not 1 <= number <= most:
        raise InputError(f"{option}: {text!r} is no number from 1 to {most}")
    return number


def _some_threads() -> list[int]:
    """All cores, one fewer, and half of them."""
    from forerun.backends.cpu import usable_cores

    cores = usable_cores()
    return sorted({cores, max(1, cores - 1), max(1, cores // 2)}, reverse=True)


def _tuning_prompts(file: Path | None) -> list[WorkloadPrompt]:
    """Prompts of all kinds in turns: the first few must stand for all."""
    from forerun.bench.prompts import read_prompts
    from forerun.bench.workloads import WorkloadPrompt, workload_prompts

    if file is not None:
        return [
            WorkloadPrompt(f"{p.category}-{p.name}", p.category, ({"role": "user", "content": p.text},))
            for p in read_prompts(file)
        ]
    kinds = [workload_prompts(workload) for workload in WORKLOADS]
    return [kind[i] for i in range(min(map(len, kinds))) for kind in kinds]


@dataclass(frozen=True)
class Setting:
    """A way of computing, and what a forward over 1 and over 8 rows takes, in seconds."""

    dtype: str
    threads: int
    one: float
    eight: float


class Search:
    """What is tried, and what came of it."""

    def __init__(
        self,
        model: str,
        drafters: list[str],
        sizes: list[int | None],
        dtypes: list[str],
        threads: list[int],
        prompts: list[WorkloadPrompt],
        max_tokens: int,
        kv: str,
        seconds: float,
    ) -> None:
        self._model = model
        self._drafters = drafters
        self._sizes = sizes
        self._dtypes = dtypes
        self._threads = threads
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._kv = kv
        self._seconds = seconds
        self._end = monotonic() + seconds
        self._settings: list[Setting] = []
        self._arms: list[Arm] = []
        self._clock: Clock | None = None

    def too_little(self) -> str:
        """What there was too little of, and how much it takes."""
        from forerun.bench.tuner import LEAST_PROMPTS

        assert self._clock is not None
        if len(self._prompts) < LEAST_PROMPTS:
            return f"{counted(len(self._prompts), 'prompt')} of the {LEAST_PROMPTS} that it takes; give more"
        return (
            f"it takes {LEAST_PROMPTS} prompts, and there was no time for as many; give --seconds "
            f"{math.ceil(self._seconds + max(1.0, self._clock.lacking()))}"
        )

    def run(self, progress: LateProgress) -> Choice | None:
        """Search; the fastest choice, or None where too little was measured."""
        from forerun.bench.contest import encoded
        from forerun.bench.tuner import Clock, make_arms, tune
        from forerun.tuning import Choice

        for done, (dtype, threads) in enumerate((d, t) for d in self._dtypes for t in self._threads):
            self._settings.append(self._measure(dtype, threads))
            progress(done, 1000)
        # a busy moment must not choose for good: a second look, in the other order
        if len(self._settings) > 1:
            self._settings = [self._again(setting) for setting in reversed(self._settings)][::-1]
        best = min(self._settings, key=lambda setting: setting.one + setting.eight)
        engine = self._load(best.dtype, best.threads)
        named = drafters_for(engine, self._drafters)
        named = [engine.auto.drafter if name == "auto" else name for name in named]
        self._drafters = list(dict.fromkeys(named))
        self._prompts = [
            p for p in self._prompts if len(encoded(engine, p)) + self._max_tokens <= engine.context
        ]
        if not self._prompts:
            raise InputError(f"no prompt with {self._max_tokens} tokens more fits the model's context")
        self._arms = make_arms(self._drafters, self._sizes)
        self._clock = Clock(max(1.0, self._end - monotonic()))
        arm = tune(
            engine,
            self._arms,
            self._prompts,
            max_tokens=self._max_tokens,
            clock=self._clock,
            progress=progress,
        )
        if arm is None:
            return None
        return Choice(arm.drafter, arm.draft_tokens, best.threads, best.dtype, arm.acceptance, arm.share)

    def _measure(self, dtype: str, threads: int) -> Setting:
        from forerun.backends.cpu import measure_curve

        curve = measure_curve(self._load(dtype, threads).backend, 0.5)
        return Setting(dtype, threads, curve[1], curve.get(8, curve[max(curve)]))

    def _again(self, setting: Setting) -> Setting:
        """The faster of this and another measurement."""
        new = self._measure(setting.dtype, setting.threads)
        return Setting(new.dtype, new.threads, min(new.one, setting.one), min(new.eight, setting.eight))

    def _load(self, dtype: str, threads: int) -> Engine:
        return load_engine(
            self._model,
            drafter="none",
            dtype=dtype,
            kv=self._kv,
            context=None,
            threads=threads,
            kernels="",
            tuned=False,
        )

    def describe(self, choice: Choice) -> str:
        """For people."""
        size = "by cost" if choice.draft_tokens is None else f"of {choice.draft_tokens}"
        drafts = "plain decoding" if choice.drafter == "none" else f"{choice.drafter}, drafts {size}"
        threads = "all cores" if choice.threads is None else counted(choice.threads, "thread")
        return f"{drafts}, {threads}, dtype {choice.dtype}"

    def table(self) -> str:
        """What was measured."""
        lines = [f"{'dtype':<8}{'threads':>8}{'t(1) ms':>10}{'t(8) ms':>10}"]
        lines += [
            f"{s.dtype:<8}{s.threads:>8}{1000 * s.one:>10.2f}{1000 * s.eight:>10.2f}" for s in self._settings
        ]
        wide = 2 + max((len(arm.drafter) for arm in self._arms), default=0)
        if self._arms:
            lines += ["", f"{'drafter':<{wide}}{'drafts':>8}{'prompts':>9}{'tokens/s':>10}{'speed-up':>10}"]
        for row in self._rows():
            lines.append(
                f"{row['drafter']:<{wide}}{row['draft_tokens'] or '':>8}{row['prompts']:>9}"
                f"{row['tokens_per_second']:>10.1f}{row['speedup']:>9.2f}x"
            )
        return "\n".join(lines)

    def as_dict(self, choice: Choice | None) -> dict[str, object]:
        """For JSON."""
        from dataclasses import asdict

        return {
            "model": self._model,
            "choice": None if choice is None else asdict(choice),
            "settings": [
                {"dtype": s.dtype, "threads": s.threads, "ms_1": 1000 * s.one, "ms_8": 1000 * s.eight}
                for s in self._settings
            ],
            "drafters": self._rows(),
        }

    def _rows(self) -> list[dict[str, object]]:
        """The ways of drafting that wrote something, those that went furthest first."""
        plain = self._arms[:1]
        wrote = [arm for arm in self._arms if arm.written]
        order = sorted(wrote, key=lambda arm: (-len(arm.written), -arm.gain(plain[0])))
        return [
            {
                "drafter": arm.drafter,
                "draft_tokens": None if arm.plain else arm.draft_tokens or "auto",
                "prompts": len(arm.written),
                "tokens_per_second": round(arm.tokens_per_second, 2),
                "speedup": round(math.exp(arm.gain(plain[0])), 4),
            }
            for arm in order
        ]
