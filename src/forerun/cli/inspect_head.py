"""What `forerun inspect` tells of a drafting head."""

from __future__ import annotations

from typing import TypedDict

from forerun.errors import one_line
from forerun.lists import quoted
from forerun.models.heads.head import Head
from forerun.models.shipped import short_name
from forerun.words import counted

FAMILIES = {"eagle": "EAGLE-1/2", "eagle3": "EAGLE-3", "medusa": "Medusa", "hydra": "Hydra"}
LAYOUTS = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "medusa": "Medusa",
    "hydra": "Hydra",
    "vllm": "vLLM",
    "speculators": "speculators",
    "llama.cpp": "llama.cpp",
}


class HeadFacts(TypedDict):
    """What `inspect` tells. Bytes count the weights as they are stored.

    drafter: what `--drafter` takes
    reads:   values of the target that it reads at each token
    taps:    hidden states that these come from; None: those of its family
    """

    path: str
    drafter: str
    family: str
    layout: str
    parameters: int
    weight_bytes: int
    hidden_size: int
    layers: int
    heads: int
    reads: int
    taps: list[int] | None
    target_vocab_size: int | None
    guessed_tokens: int | None
    own_embedding: bool
    tensors: int


def describe_head(head: Head) -> HeadFacts:
    """The facts about a head."""
    return HeadFacts(
        path=str(head.path),
        drafter=quoted(f"head:{short_name(head.path)}"),
        family=head.family,
        layout=head.layout,
        parameters=sum(tensor.size for tensor in head.tensors.values()),
        weight_bytes=sum(len(tensor.data) for tensor in head.tensors.values()),
        hidden_size=head.hidden_size,
        layers=0 if head.layer is None else head.layer.layers,
        heads=head.depth or 0,
        reads=head.features,
        taps=None if head.taps is None else list(head.taps),
        target_vocab_size=head.vocab_size,
        guessed_tokens=head.outputs,
        own_embedding="embed_tokens.weight" in head.tensors,
        tensors=len(head.tensors),
    )


def head_as_text(facts: HeadFacts) -> str:
    """The facts in lines for people."""
    of = "" if facts["target_vocab_size"] is None else f" of {facts['target_vocab_size']:,}"
    guesses = "all, by the target's own head"
    if facts["guessed_tokens"] is not None:
        guesses = f"{facts['guessed_tokens']:,}{of}"
    if facts["taps"] is not None:
        states = f" (hidden states {', '.join(map(str, facts['taps']))})"
    else:
        states = " (the last hidden state)" if facts["family"] != "eagle3" else ""
    body = counted(facts["heads"], "head") if facts["heads"] else counted(facts["layers"], "layer")
    embedding = "its own" if facts["own_embedding"] else "the target's"
    rows = [
        ("drafting head", f"{FAMILIES[facts['family']]}, as {LAYOUTS[facts['layout']]} stores it"),
        ("path", facts["path"]),
        ("sizes", f"hidden {facts['hidden_size']:,}, {body}"),
        ("reads", f"{facts['reads']:,} values a token{states}"),
        ("guesses", guesses),
        ("embedding", embedding if facts["family"] != "medusa" else "none"),
        ("parameters", f"{facts['parameters']:,} in {counted(facts['tensors'], 'tensor')}"),
        ("weights", f"{facts['weight_bytes'] / 1e6:,.1f} MB"),
        ("use it", f"--drafter {facts['drafter']}"),
    ]
    return "\n".join(f"{label:<16} {one_line(text)}".rstrip() for label, text in rows)
