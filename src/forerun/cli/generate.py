"""`forerun generate`: a prompt in, the model's text out as it comes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import AsJson, Dtype, Kernels, Kv, Model, Threads, load_engine
from forerun.cli.progress import LateProgress
from forerun.errors import InputError
from forerun.models.hub import DEFAULT_MODEL
from forerun.sampling.params import SamplingParams

if TYPE_CHECKING:
    from forerun.api import Engine, Result, Stream
    from forerun.text.chat import Message

Whole = int | None


def generate(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="A text; - reads it from standard input.")
    ] = "",
    model: Model = DEFAULT_MODEL,
    drafter: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME]", help="Who guesses ahead: auto, none, lookup. It changes no text."
        ),
    ] = "auto",
    max_tokens: Annotated[
        Whole,
        typer.Option(metavar="N", help="End after so many tokens; by default where the context is full."),
    ] = None,
    min_tokens: Annotated[int, typer.Option(metavar="N", help="Do not end before so many tokens.")] = 0,
    temperature: Annotated[float, typer.Option(metavar="T", help="0 takes the most probable token.")] = 0.0,
    top_k: Annotated[int, typer.Option(metavar="K", help="Keep the K most probable tokens; 0: all.")] = 0,
    top_p: Annotated[
        float,
        typer.Option(metavar="P", help="Keep the most probable tokens that together have P; 1: all."),
    ] = 1.0,
    min_p: Annotated[
        float,
        typer.Option(metavar="P", help="Keep tokens at least P times as probable as the best; 0: all."),
    ] = 0.0,
    seed: Annotated[Whole, typer.Option(metavar="S", help="The same seed gives the same text.")] = None,
    repetition_penalty: Annotated[
        float, typer.Option(metavar="X", help="Above 1 makes tokens of prompt and answer less likely.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(metavar="X", help="Taken off the logits of tokens that are in the answer.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(metavar="X", help="Taken off once for every time a token is in the answer.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=X", help="Add X to the logit of token ID. Repeatable.")
    ] = None,
    banned_token: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="Never choose this token. Repeatable.")
    ] = None,
    allowed_token: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="Choose no token but these. Repeatable.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text. Repeatable.")
    ] = None,
    stop_token: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="End after this token. Repeatable.")
    ] = None,
    ignore_end: Annotated[
        bool, typer.Option("--ignore-end", help="The model's own end tokens do not end the text.")
    ] = False,
    acceptance: Annotated[
        str, typer.Option(metavar="RULE", help="coupled (the seed alone decides the text) or rejection.")
    ] = "coupled",
    logprobs: Annotated[
        Whole,
        typer.Option(metavar="N", help="With --json: log-probabilities, also of the N best tokens."),
    ] = None,
    context: Annotated[
        Whole,
        typer.Option(metavar="N", help="Most tokens of prompt and answer; by default the model's own."),
    ] = None,
    dtype: Dtype = "auto",
    kv: Kv = "auto",
    threads: Threads = None,
    kernels: Kernels = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt itself, without the chat template.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer a prompt.

    The text streams to standard output, a line about it goes to standard error at the end.
    """
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
        logit_bias=_biases(logit_bias or []),
        banned_tokens=tuple(banned_token or ()),
        allowed_tokens=None if allowed_token is None else tuple(allowed_token),
        stop=tuple(stop or ()),
        stop_tokens=tuple(stop_token or ()),
        ignore_end=ignore_end,
        acceptance=acceptance,  # type: ignore[arg-type]  # SamplingParams checks it
        logprobs=logprobs,
    )
    engine = load_engine(
        model, drafter=drafter, dtype=dtype, kv=kv, context=context, threads=threads, kernels=kernels
    )
    with LateProgress("reading the prompt") as progress:
        stream = engine.stream(_as_asked(engine, text, raw), params, progress=progress)
        interrupted = _write(stream, quiet=as_json)
    if as_json:
        print(json.dumps(_as_dict(stream.result), ensure_ascii=False))
    else:
        _summarise(stream.result, drafter)
    if interrupted:
        raise KeyboardInterrupt


def _read_prompt(prompt: str, raw: bool) -> str:
    """The text to answer, from the command line or standard input."""
    if prompt == "-":
        from forerun.text.reading import read_text

        text = read_text(sys.stdin.buffer.read())
    else:
        text = prompt
        if any(
            "\udc80" <= c <= "\udcff" for c in text
        ):  # what Python makes of an argument's undecodable bytes
            raise InputError("the prompt is not valid UTF-8; convert it to UTF-8")
    if not (text if raw else text.strip()):
        raise InputError("the prompt is empty; give a text as PROMPT, or - to read standard input")
    return text


def _biases(pairs: list[str]) -> dict[int, float]:
    """What ID=X says, by token id."""
    biases = {}
    for pair in pairs:
        token, _, bias = pair.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise InputError(f"--logit-bias {pair!r} is not ID=X, such as 42=-1.5") from None
    return biases


def _as_asked(engine: Engine, text: str, raw: bool) -> str | list[Message]:
    """The prompt for the engine: a chat message, or with `raw` the text itself."""
    if raw:
        return text
    if engine.tokenizer.chat_template is None:
        print("forerun: this model has no chat template: it continues the prompt", file=sys.stderr)
        return text
    return [{"role": "user", "content": text}]


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
    return False


def _summarise(result: Result, asked: str) -> None:
    """The last line: what the answer took. A terminal gets a line of its own for it."""
    if not result.text.endswith("\n"):
        shown = sys.stderr if sys.stderr.isatty() else sys.stdout
        if shown.isatty():
            print(file=shown, flush=True)
    report = result.report
    facts = [
        f"{report.tokens} tokens",
        f"{report.tokens_per_second:.1f} tokens/s",
        f"mean accepted length {report.mean_accepted_length:.2f}",
        f"drafter {', '.join(report.drafters) or asked}",
        f"prompt {report.prompt_tokens} tokens at {report.prompt_tokens_per_second:.0f} tokens/s",
        f"finish: {result.finish_reason or 'interrupted'}",
    ]
    print(f"forerun: {', '.join(facts)}", file=sys.stderr)


def _as_dict(result: Result) -> dict[str, object]:
    """The answer for JSON."""
    return {
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "seed": result.seed,
        "report": result.report.as_dict(),
    }
