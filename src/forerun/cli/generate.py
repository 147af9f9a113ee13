"""`forerun generate`: a prompt in, the model's text out as it comes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from forerun.cli.options import (
    argument_text,
    context_option,
    dtype_option,
    json_option,
    kernels_option,
    kv_option,
    load_engine,
    memory_option,
    model_option,
    threads_option,
)
from forerun.cli.pictures import TreeWatcher, as_svg, as_text
from forerun.cli.progress import LateProgress
from forerun.cli.streams import read_stdin, say
from forerun.errors import ForerunError, InputError
from forerun.files import check_writable, write_whole
from forerun.sampling.grammar import check_grammar
from forerun.sampling.params import SamplingParams
from forerun.words import counted

if TYPE_CHECKING:
    from forerun.answers import Result, Stream
    from forerun.text.tokenizer import Tokenizer

TERMINAL = "-"
"""--show-tree without a file."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def number(name: str, kind: type, default: float | None, metavar: str, help: str) -> Decorator:
    """An option with a number."""
    return click.option(name, type=kind, default=default, metavar=metavar, help=help)


def several(name: str, kind: type, metavar: str, help: str) -> Decorator:
    """An option that may be given several times."""
    return click.option(name, type=kind, multiple=True, metavar=metavar, help=f"{help} Repeatable.")


def flag(name: str, help: str) -> Decorator:
    """An option without a value."""
    return click.option(name, is_flag=True, help=help)


@click.command()
@click.argument("prompt", default="")
@model_option
@click.option(
    "--drafter",
    default="auto",
    metavar="NAME[,NAME]",
    help="Who guesses ahead: auto, none, lookup, suffix, draft:MODEL, skip:K, head:DIR, or several. It"
    " changes no text.",
)
@number(
    "--draft-tokens", int, None, "N", "Guesses to verify in a step; by default what pays on this machine."
)
@number("--max-tokens", int, None, "N", "End after so many tokens; by default where the context is full.")
@number("--min-tokens", int, 0, "N", "Do not end before so many tokens.")
@number("--temperature", float, 0.0, "T", "0 takes the most probable token.")
@number("--top-k", int, 0, "K", "Keep the K most probable tokens; 0: all.")
@number("--top-p", float, 1.0, "P", "Keep the most probable tokens that together have P; 1: all.")
@number("--min-p", float, 0.0, "P", "Keep tokens at least P times as probable as the best; 0: all.")
@number("--seed", int, None, "S", "The same seed gives the same text; by default a random one.")
@number("--repetition-penalty", float, 1.0, "X", "Above 1: tokens of prompt and answer are less likely.")
@number("--presence-penalty", float, 0.0, "X", "Taken off the logits of tokens in the answer.")
@number("--frequency-penalty", float, 0.0, "X", "Taken off once for every time a token is in the answer.")
@several("--logit-bias", str, "ID=X", "Add X to the logit of token ID.")
@several("--banned-token", int, "ID", "Never choose this token.")
@several("--allowed-token", int, "ID", "Choose no token but these.")
@several("--stop", str, "TEXT", "End before this text.")
@several("--stop-token", int, "ID", "End after this token.")
@flag("--ignore-end", "The model's own end tokens do not end the text.")
@click.option("--json-schema", metavar="TEXT", help="The answer is JSON of this schema; @FILE reads it.")
@click.option("--regex", metavar="TEXT", help="The whole answer matches this regular expression.")
@click.option(
    "--grammar", metavar="TEXT", help="The answer follows this grammar, Lark or GBNF; @FILE reads it."
)
@click.option(
    "--acceptance", default="coupled", metavar="RULE", help="coupled (the seed alone decides) or rejection."
)
@number("--logprobs", int, None, "N", "With --json: log-probabilities, also of the N best tokens.")
@context_option
@memory_option
@dtype_option
@kv_option
@threads_option
@kernels_option
@click.option(
    "--show-tree",
    is_flag=False,
    flag_value=TERMINAL,
    metavar="[FILE.svg]",
    help="Show a draft tree of the run with its accepted path; in a picture if a file is named.",
)
@flag("--raw", "Continue the prompt itself, without the chat template.")
@json_option
def generate(
    prompt: str,
    model: str,
    drafter: str,
    draft_tokens: int | None,
    max_tokens: int | None,
    min_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int | None,
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    logit_bias: tuple[str, ...],
    banned_token: tuple[int, ...],
    allowed_token: tuple[int, ...],
    stop: tuple[str, ...],
    stop_token: tuple[int, ...],
    ignore_end: bool,
    json_schema: str | None,
    regex: str | None,
    grammar: str | None,
    acceptance: Literal["coupled", "rejection"],
    logprobs: int | None,
    context: int | Literal["auto"] | None,
    memory: str | None,
    dtype: str,
    kv: str,
    threads: int | None,
    kernels: str,
    show_tree: str | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Answer PROMPT, or what standard input holds if PROMPT is -.

    The text streams to standard output; a line about it goes to standard error at the end.
    """
    if show_tree is not None and show_tree != TERMINAL and not show_tree.endswith(".svg"):
        raise InputError(
            f"--show-tree {show_tree!r}: name a file that ends in .svg, or put the option after PROMPT"
        )
    if show_tree is not None and show_tree != TERMINAL:
        check_writable(Path(show_tree))
    text = _read_prompt(prompt, raw)
    if logprobs is not None and not as_json:
        raise InputError("--logprobs needs --json, which has a place for them")
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=_biases(logit_bias),
        banned_tokens=banned_token,
        allowed_tokens=allowed_token or None,
        stop=tuple(_stop(text) for text in stop),
        stop_tokens=stop_token,
        ignore_end=ignore_end,
        json_schema=_text_or_file("--json-schema", json_schema),
        regex=None if regex is None else argument_text("--regex", regex),
        grammar=_text_or_file("--grammar", grammar),
        acceptance=acceptance,
        logprobs=logprobs,
    )
    _check_early(params, model)
    engine = load_engine(
        model,
        drafter=drafter,
        dtype=dtype,
        kv=kv,
        context=context,
        threads=threads,
        kernels=kernels,
        draft_tokens=draft_tokens,
        memory=memory,
    )
    continued = raw or engine.tokenizer.chat_template is None
    with LateProgress("reading the prompt") as progress:
        stream = engine.stream(
            text if continued else [{"role": "user", "content": text}], params, progress=progress
        )
        if continued and not raw:
            say("this model has no chat template: it continues the prompt")
        watcher = TreeWatcher()
        if show_tree is not None:
            stream.watch = watcher
        interrupted = _write(stream, quiet=as_json)
    if as_json:
        print(json.dumps(_as_dict(stream.result), ensure_ascii=False))
    else:
        _summarise(stream.result)
    if show_tree is not None:
        _show_tree(watcher, show_tree, engine.tokenizer)
    if interrupted:
        raise KeyboardInterrupt


def _read_prompt(prompt: str, raw: bool) -> str:
    """The text to answer, from the command line or standard input."""
    if prompt == "-":
        from forerun.text.reading import read_text

        text = read_text(read_stdin())
    else:
        text = argument_text("the prompt", prompt)
    if not (text if raw else text.strip()):
        raise InputError("the prompt is empty; give a text as PROMPT, or - to read standard input")
    return text


def _check_early(params: SamplingParams, model: str) -> None:
    """Refuse a grammar that cannot be read, and ids that are no tokens, before weights are read."""
    check_grammar(params)
    if params.logit_bias or params.banned_tokens or params.allowed_tokens or params.stop_tokens:
        from forerun.models.checkpoint import open_checkpoint
        from forerun.models.hub import resolve_model
        from forerun.sampling.pipeline import Pipeline

        Pipeline(params, open_checkpoint(resolve_model(model)).config.vocab_size, (), 0)


def _text_or_file(option: str, value: str | None) -> str | None:
    """An option's value; behind an @ it is the name of a file that holds it."""
    if value is None:
        return None
    if not value.startswith("@"):
        return argument_text(option, value)
    if value == "@":
        raise InputError(f"{option} @ names no file; write {option} @FILE")
    from forerun.text.reading import read_some, read_text

    try:
        with open(value[1:], "rb") as file:
            return read_text(read_some(file))
    except OSError as error:
        raise InputError(f"{option}: cannot read {value[1:]}: {error.strerror or error}") from error
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


def _stop(text: str) -> str:
    if not text:
        raise InputError("--stop is empty: every answer would end at once; give the text to end before")
    return argument_text("--stop", text)


def _biases(pairs: tuple[str, ...]) -> dict[int, float]:
    """What ID=X says, by token id."""
    biases = {}
    for pair in pairs:
        token, _, bias = pair.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise InputError(f"--logit-bias {pair!r} is not ID=X, such as 42=-1.5") from None
    return biases


def _write(stream: Stream, quiet: bool) -> bool:
    """Write the answer as it comes (unless `quiet`); whether it was interrupted."""
    out = sys.stdout
    with stream:
        try:
            for increment in stream:
                if increment.text and not quiet:
                    out.write(increment.text)
                    out.flush()
        except KeyboardInterrupt:
            return True
        except ForerunError:
            if not quiet:
                _end_line(stream.result.text)
            raise
    return False


def _end_line(text: str) -> None:
    """What is said after this text begins on a line of its own, where both are read in one place."""
    if not text or text.endswith("\n"):
        return
    if sys.stderr.isatty() or _one_file(sys.stdout, sys.stderr):
        print(file=sys.stderr, flush=True)
    elif sys.stdout.isatty():
        print(flush=True)


def _one_file(one: TextIO, other: TextIO) -> bool:
    """Whether both are redirected to the same file or pipe."""
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError):
        return False


def _summarise(result: Result) -> None:
    """The last line: what the answer took."""
    _end_line(result.text)
    report = result.report
    facts = [
        counted(report.tokens, "token"),
        f"{report.tokens_per_second:.1f} tokens/s",
        f"mean accepted length {report.mean_accepted_length:.2f}",
        f"drafter {', '.join(report.drafters)}" if report.drafters else "none drafted",
        f"prompt {counted(report.prompt_tokens, 'token')} at {report.prompt_tokens_per_second:.0f} tokens/s",
        f"finish: {result.finish_reason or 'interrupted'}",
    ]
    say(", ".join(facts))


def _show_tree(watcher: TreeWatcher, where: str, tokenizer: Tokenizer) -> None:
    """The run's most telling tree, on the terminal or in a file."""
    if watcher.best is None or len(watcher.best.tree) == 1:
        say("no tree was drafted")
        return

    def spell(token: int) -> str:
        return tokenizer.token_bytes(token).decode("utf-8", "replace")

    if where == TERMINAL:
        print(as_text(watcher.best, spell), file=sys.stderr)
        return
    write_whole(Path(where), as_svg(watcher.best, spell))
    say(f"a tree of this run is in {where}")


def _as_dict(result: Result) -> dict[str, object]:
    """The answer for JSON."""
    found: dict[str, object] = {
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "seed": result.seed,
        "report": result.report.as_dict(),
    }
    if result.logprobs:
        found["logprobs"] = [
            {
                "token": chosen.token,
                "logprob": chosen.logprob,
                "top": [{"token": token, "logprob": logprob} for token, logprob in chosen.top],
            }
            for chosen in result.logprobs
        ]
    return found
