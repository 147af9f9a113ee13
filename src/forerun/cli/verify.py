"""`forerun verify`: proof, on the user's own prompts, that speculation changes nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun.cli.failures import told_if_interrupted
from forerun.cli.options import (
    dtype_option,
    json_option,
    kernels_option,
    kv_option,
    load_engine,
    model_option,
    prompts_option,
    temperature_list,
    threads_option,
)
from forerun.cli.progress import LateProgress
from forerun.cli.streams import say
from forerun.errors import CheckFailed, InputError
from forerun.lists import quoted
from forerun.roster import check_names, split_cascade, split_list
from forerun.sampling.params import SamplingParams
from forerun.words import counted

if TYPE_CHECKING:
    from forerun.bench.prompts import Prompt
    from forerun.bench.record import Record
    from forerun.bench.verify import Comparison, Distribution
    from forerun.engine import Engine

LEAST_P = 1e-3
SEVERAL = 4
"""Guesses a step where the rejection rule is put to the test: whether they pay does not matter there."""


@click.command()
@model_option
@click.option(
    "--drafter",
    default="auto,lookup",
    metavar="NAME[,NAME]",
    help="Drafters to check, each by itself; a cascade is NAME+NAME.",
)
@prompts_option
@click.option("--temperature", default="0,1", metavar="T[,T]", help="Temperatures to check at.")
@click.option("--max-tokens", type=click.IntRange(1), default=128, metavar="N", help="Tokens an answer.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N prompts.")
@click.option("--seed", type=int, default=0, metavar="S", help="The seed of every answer.")
@click.option(
    "--distribution",
    is_flag=True,
    help="Check the rejection rule instead: first tokens of many answers against the target's probabilities.",
)
@click.option(
    "--draws", type=click.IntRange(200), default=1000, metavar="N", help="Answers a prompt, for that."
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(0),
    metavar="N",
    help="Verify N guesses a step whatever they cost, so that every step is put to the test.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Note each prompt that is done here, and go on behind those noted.",
)
@dtype_option
@kv_option
@threads_option
@kernels_option
@click.option("--raw", is_flag=True, help="Continue the prompts, without the chat template.")
@json_option
def verify(
    model: str,
    drafter: str,
    prompts: Path | None,
    temperature: str,
    max_tokens: int,
    limit: int | None,
    seed: int,
    distribution: bool,
    draws: int,
    draft_tokens: int | None,
    record: Path | None,
    dtype: str,
    kv: str,
    threads: int | None,
    kernels: str,
    raw: bool,
    as_json: bool,
) -> None:
    """Check that drafters change no text.

    Decodes plainly and with drafters, side by side; exits with 1 at the first token that differs.
    """
    from forerun.bench.prompts import own_prompts, read_prompts
    from forerun.bench.record import Record

    chosen = (own_prompts() if prompts is None else read_prompts(prompts))[:limit]
    temperatures = temperature_list(temperature)
    names = _names(drafter)
    # bad values are told before a model is loaded
    asked = [SamplingParams(max_tokens=max_tokens, temperature=t, seed=seed) for t in temperatures]
    if distribution and max(params.temperature for params in asked) <= 0:
        raise InputError("--distribution needs a temperature above 0, such as --temperature 1")
    engine = load_engine(
        model,
        drafter="none",
        dtype=dtype,
        kv=kv,
        context=None,
        threads=threads,
        kernels=kernels,
        draft_tokens=SEVERAL if distribution and draft_tokens is None else draft_tokens,
    )
    for name in names:
        engine.check_drafter(name)
    raw = raw or engine.tokenizer.chat_template is None
    if distribution:
        _check_distributions(engine, chosen, names, max(temperatures), seed, draws, raw, as_json)
        return
    work = Work(chosen, names, temperatures, max_tokens, seed, raw)
    settings = {
        "model": model,
        "drafters": names,
        "temperatures": temperatures,
        "max_tokens": max_tokens,
        "seed": seed,
        "draft_tokens": draft_tokens,
        "weights": dtype,
        "kv": kv,
        "raw": raw,
    }
    _check_texts(engine, work, None if record is None else Record(record, settings), as_json)


def _names(text: str) -> list[str]:
    """Drafters as the engine names them: 'suffix,lookup+skip:4' -> ['suffix', 'lookup,skip:4']."""
    names = split_list("--drafter", text)
    for name in names:
        check_names(name)
    return names


def _shown(names: str) -> str:
    """As they are asked for here: 'lookup,skip:4' -> 'lookup+skip:4'."""
    return "+".join(map(quoted, split_cascade(names)))


@dataclass(frozen=True)
class Work:
    """What is to be compared."""

    prompts: list[Prompt]
    drafters: list[str]
    temperatures: list[float]
    max_tokens: int
    seed: int
    raw: bool


def _check_texts(engine: Engine, work: Work, record: Record | None, as_json: bool) -> None:
    done: list[Comparison] = []
    each = len(work.drafters) * len(work.temperatures)

    def far() -> str:
        prompts = f"{len(done) // each} of {counted(len(work.prompts), 'prompt')} compared"
        told = f"{prompts}, none differs" if done else prompts
        return told if record is None else f"{told}; noted in {record.path}"

    with told_if_interrupted(far):
        done += _comparisons(engine, work, record)
    failed = [comparison for comparison in done if comparison.difference is not None]
    if as_json:
        print(json.dumps(_as_dict(done, failed)))
    elif not failed:
        for drafter in work.drafters:
            for temperature in work.temperatures:
                print(_line([c for c in done if c.drafter == drafter and c.temperature == temperature]))
    if failed:
        raise CheckFailed(_difference_line(engine, failed[0]))


def _comparisons(engine: Engine, work: Work, record: Record | None) -> Iterator[Comparison]:
    """All of them, up to the first difference, the prompts on record first of all."""
    from forerun.bench.verify import compare

    total = len(work.prompts)
    with LateProgress("comparing") as progress:
        for place, prompt in enumerate(work.prompts):
            found = None if record is None else record.found(place, prompt)
            if found is None:
                found = []
                for comparison in compare(
                    engine,
                    prompt,
                    work.drafters,
                    work.temperatures,
                    max_tokens=work.max_tokens,
                    seed=work.seed,
                    raw=work.raw,
                ):
                    found.append(comparison)
                    if comparison.difference is not None:
                        yield from found
                        return
                if record is not None:
                    record.add(place, prompt, found)
            yield from found
            progress(place + 1, total)


def _line(same: list[Comparison]) -> str:
    tokens, forwards = sum(c.tokens for c in same), sum(c.forwards for c in same)
    return (
        f"drafter {_shown(same[0].drafter)}, temperature {same[0].temperature:g}:"
        f" {counted(len(same), 'prompt')}, {counted(tokens, 'token')}, none differs from plain decoding"
        f" ({tokens / max(forwards, 1):.2f} tokens a forward)"
    )


def _difference_line(engine: Engine, comparison: Comparison) -> str:
    difference = comparison.difference
    assert difference is not None

    def named(token: int | None) -> str:
        return "the end" if token is None else f"{token} {engine.tokenizer.token_text(token)!r}"

    margin = "" if difference.margin is None else f", logit margin {difference.margin:.3g}"
    return (
        f"prompt {comparison.prompt.name}, drafter {_shown(comparison.drafter)}, temperature"
        f" {comparison.temperature:g}: token {difference.position} of the answer is {named(difference.found)}"
        f" where plain decoding has {named(difference.plain)}{margin}"
    )


def _as_dict(done: list[Comparison], failed: list[Comparison]) -> dict[str, object]:
    return {
        "compared": len(done),
        "tokens": sum(c.tokens for c in done),
        "equal": not failed,
        "comparisons": [
            {
                "prompt": c.prompt.name,
                "category": c.prompt.category,
                "drafter": _shown(c.drafter),
                "temperature": c.temperature,
                "tokens": c.tokens,
                "target_forwards": c.forwards,
                "equal": c.difference is None,
                "difference": None
                if c.difference is None
                else {
                    "position": c.difference.position,
                    "plain": c.difference.plain,
                    "found": c.difference.found,
                    "logit_margin": c.difference.margin,
                },
            }
            for c in done
        ],
    }


def _check_distributions(
    engine: Engine,
    prompts: list[Prompt],
    drafters: list[str],
    temperature: float,
    seed: int,
    draws: int,
    raw: bool,
    as_json: bool,
) -> None:
    from forerun.bench.verify import distributions

    params = SamplingParams(max_tokens=3, temperature=temperature, seed=seed, acceptance="rejection")
    found: list[Distribution] = []
    made, total = 0, len(prompts) * len(drafters) * draws
    with told_if_interrupted(lambda: f"{made} of {total} answers drawn"):
        try:
            with LateProgress("drawing") as progress:

                def drawn() -> None:
                    nonlocal made
                    made += 1
                    progress(made, total)

                for prompt, drafter in itertools.product(prompts, drafters):
                    found += distributions(engine, prompt, drafter, params, draws=draws, raw=raw, drawn=drawn)
        finally:  # what is done is told after Ctrl-C too
            if not as_json:
                for one in found:
                    print(_distribution_line(one))
    least = LEAST_P / len(found)
    if as_json:
        rows = [_distribution_dict(one) for one in found]
        print(json.dumps({"temperature": temperature, "least_p_value": least, "distributions": rows}))
    for drafter in drafters:
        if not any(one.accepted for one in found if one.drafter == drafter):
            say(f"drafter {_shown(drafter)}: none of its guesses was right, so only refusals were tested")
    worst = min(found, key=lambda d: d.p_value)
    if worst.p_value < least:
        raise CheckFailed(
            f"prompt {worst.prompt.name}, drafter {_shown(worst.drafter)}: token {worst.place + 1} is not"
            " drawn from the target's distribution"
            f" (chi-square {worst.statistic:.1f}, p = {worst.p_value:.2g})"
        )


def _distribution_line(one: Distribution) -> str:
    return (
        f"prompt {one.prompt.name}, drafter {_shown(one.drafter)}, token {one.place + 1}: {one.draws} draws,"
        f" chi-square {one.statistic:.1f}, p = {one.p_value:.3g};"
        f" {one.accepted} of {one.drafted} guesses right"
    )


def _distribution_dict(one: Distribution) -> dict[str, object]:
    return {
        "prompt": one.prompt.name,
        "drafter": _shown(one.drafter),
        "place": one.place,
        "draws": one.draws,
        "drafted": one.drafted,
        "accepted": one.accepted,
        "chi_square": one.statistic,
        "p_value": one.p_value,
    }
