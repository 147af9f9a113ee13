"""`forerun inspect`: what a model is, as its files say, without running it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from forerun.cli.options import json_option
from forerun.errors import CheckFailed
from forerun.lists import quoted, unquoted
from forerun.models.heads.head import DRAFTER_NAMES, Head
from forerun.models.hub import DEFAULT_MODEL
from forerun.models.shipped import short_name
from forerun.words import counted

if TYPE_CHECKING:
    from forerun.models.checkpoint import Checkpoint


DRAFTER = re.compile(rf"^(draft|{'|'.join(DRAFTER_NAMES)}):")
"""How a drafter's name begins that has a model or a head behind it."""


class Stored(TypedDict):
    """How much of a model is stored as one kind."""

    tensors: int
    parameters: int
    bytes: int


class Facts(TypedDict):
    """What `inspect` tells. Bytes count the weights as they are stored in the files.

    drafter: what `--drafter` takes, of a model that only drafts for another
    """

    name: str
    path: str
    format: str
    architecture: str
    parameters: int
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    tied_head: bool
    context: int
    window: int
    weight_bytes: int
    bytes_per_token: int
    kv_bytes_per_token: dict[str, int]
    quantisation: dict[str, Stored]
    eos_token_ids: list[int]
    tokenizer: dict[str, object]
    drafter: str | None


@click.command()
@click.argument("model", default=DEFAULT_MODEL)
@click.option(
    "--target", metavar="MODEL", help="Tell whether it can draft for this model; exit 1 if it cannot."
)
@json_option
def inspect(model: str, target: str | None, as_json: bool) -> None:
    """Show what a model or a drafting head is.

    MODEL is a GGUF file, a Hugging Face folder, a hub id (org/name), a known name, or a drafter's name
    (head:DIR, draft:MODEL). Shows what the files
    say: architecture, sizes, quantisation, memory needs, tokenizer. With --target, whether it fits another
    model, token by token.
    """
    from forerun.cli.inspect_fit import fit_as_text, fit_of_draft, fit_of_head
    from forerun.models.checkpoint import open_checkpoint
    from forerun.models.hub import resolve_model

    opened = _open(model)
    if isinstance(opened, Head):
        from forerun.cli.inspect_head import describe_head, head_as_text

        found = describe_head(opened)
        told, text = dict(found), head_as_text(found)
        fit = None if target is None else fit_of_head(opened, open_checkpoint(resolve_model(target)))
    else:
        facts = describe(opened)
        told, text = dict(facts), as_text(facts)
        fit = None if target is None else fit_of_draft(opened, open_checkpoint(resolve_model(target)))
    if fit is not None:
        told, text = {**told, "fit": fit}, f"{text}\n{fit_as_text(fit)}"
    print(json.dumps(told, indent=2) if as_json else text)
    if fit is not None and fit["why"] is not None:
        raise CheckFailed(fit["why"])


def _open(name: str) -> Checkpoint | Head:
    """What a model's name stands for, or a drafter's as `--drafter` takes it: then it is of that kind."""
    from forerun.models.checkpoint import open_checkpoint
    from forerun.models.heads import find_head, is_head, open_head
    from forerun.models.hub import Sought, resolve_model

    if not Path(name).exists():
        name = unquoted(name)
    drafter = DRAFTER.match(name)
    if drafter is None:
        path = resolve_model(name, Sought.ANY)
        return open_head(path) if is_head(path) else open_checkpoint(path)
    kind, where = drafter[1], name[drafter.end() :]
    return open_checkpoint(resolve_model(where, Sought.DRAFT)) if kind == "draft" else find_head(where, kind)


def describe(checkpoint: Checkpoint) -> Facts:
    """The facts about a model."""
    from forerun.models.draft_vocabulary import draft_vocabulary

    config, tensors = checkpoint.config, checkpoint.tensors
    kinds: dict[str, Stored] = {}
    for tensor in tensors.values():
        stored = kinds.setdefault(tensor.kind, Stored(tensors=0, parameters=0, bytes=0))
        stored["tensors"] += 1
        stored["parameters"] += tensor.size
        stored["bytes"] += len(tensor.data)
    weight_bytes = sum(stored["bytes"] for stored in kinds.values())
    embedding = len(tensors["embed_tokens.weight"].data)
    # A forward of one token reads one row of the embedding, and all of it once more where it is the head too.
    read = weight_bytes + embedding // config.vocab_size - (0 if config.tied else embedding)
    kept = config.kv_values_per_token()
    part = draft_vocabulary(checkpoint.metadata, config.vocab_size, checkpoint.path)
    return Facts(
        name=config.name,
        path=str(checkpoint.path),
        format=checkpoint.format,
        architecture=config.architecture,
        parameters=sum(stored["parameters"] for stored in kinds.values()),
        layers=config.layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        tied_head=config.tied,
        context=config.context,
        window=config.window,
        weight_bytes=weight_bytes,
        bytes_per_token=read,
        kv_bytes_per_token={"f16": 2 * kept, "f32": 4 * kept},
        quantisation=dict(sorted(kinds.items(), key=lambda item: -item[1]["bytes"])),
        eos_token_ids=list(config.eos_token_ids),
        tokenizer=_gguf_tokenizer(checkpoint)
        if checkpoint.format == "gguf"
        else _folder_tokenizer(checkpoint),
        drafter=None if part is None else quoted(f"draft:{short_name(checkpoint.path)}"),
    )


def as_text(facts: Facts) -> str:
    """The facts in lines for people."""
    heads = (
        f"{counted(facts['heads'], 'head')} on {counted(facts['kv_heads'], 'key-value head')}"
        f" of {facts['head_dim']}"
    )
    context = f"{facts['context']:,} tokens" + (f", window {facts['window']:,}" if facts["window"] else "")
    cache = facts["kv_bytes_per_token"]
    tied = " (tied: embedding and head are one)" if facts["tied_head"] else ""
    rows = [
        ("model", _clean(facts["name"])),
        ("path", facts["path"]),
        ("architecture", f"{facts['architecture']}, {counted(facts['layers'], 'layer')}, {facts['format']}"),
        ("sizes", f"hidden {facts['hidden_size']:,}, intermediate {facts['intermediate_size']:,}, {heads}"),
        ("vocabulary", f"{facts['vocab_size']:,}{tied}"),
        ("parameters", f"{facts['parameters']:,}"),
        ("weights", _megabytes(facts["weight_bytes"])),
    ]
    rows += [
        ("", f"{kind:<5} {stored['tensors']:>4} tensors {_megabytes(stored['bytes']):>12}")
        for kind, stored in facts["quantisation"].items()
    ]
    rows += [
        ("read per token", _megabytes(facts["bytes_per_token"])),
        ("context", context),
        ("cache per token", f"{cache['f16']:,} bytes in bf16 or f16, {cache['f32']:,} in f32"),
        ("tokenizer", ", ".join(_clean(f"{key} {value}") for key, value in facts["tokenizer"].items())),
        ("end tokens", ", ".join(map(str, facts["eos_token_ids"])) or "none"),
    ]
    if facts["drafter"] is not None:
        rows.append(("use it", f"only drafts for another model: --drafter {_clean(facts['drafter'])}"))
    return "\n".join(f"{label:<16} {text}".rstrip() for label, text in rows)


def _gguf_tokenizer(checkpoint: Checkpoint) -> dict[str, object]:
    found: Mapping[str, object] = checkpoint.metadata
    facts: dict[str, object] = {}
    for key in ("model", "pre"):
        value = found.get(f"tokenizer.ggml.{key}")
        if isinstance(value, str):
            facts[key] = value
    for key in ("tokens", "merges"):
        value = found.get(f"tokenizer.ggml.{key}")
        if isinstance(value, list):
            facts[key] = len(value)
    return {**facts, "chat_template": "tokenizer.chat_template" in found}


def _folder_tokenizer(checkpoint: Checkpoint) -> dict[str, object]:
    from forerun.weights.files import read_json

    folder = checkpoint.path
    names = [name for name in ("tokenizer.json", "tokenizer.model") if (folder / name).exists()]
    facts: dict[str, object] = {"file": names[0] if names else "missing"}
    settings = (
        read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
    )
    if isinstance(settings.get("tokenizer_class"), str):
        facts["class"] = settings["tokenizer_class"]
    template = "chat_template" in settings or (folder / "chat_template.jinja").exists()
    return {**facts, "chat_template": template}


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _clean(text: str) -> str:
    """Text out of a file, safe to print on a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
