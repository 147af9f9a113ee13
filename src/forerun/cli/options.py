"""Options that several commands have, and how a model is loaded for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.progress import LateProgress

if TYPE_CHECKING:
    from forerun.api import Engine

Model = Annotated[
    str,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="A GGUF file, a Hugging Face folder, a hub id (org/name), or a known name (see `forerun pull`).",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(metavar="TYPE", help="How weights are executed: auto (as in the file), f32, bf16, q8, q4."),
]
Kv = Annotated[str, typer.Option(metavar="TYPE", help="How keys and values are kept: auto, f32, f16, q8.")]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="Threads to compute with; all usable cores by default.")
]
Kernels = Annotated[str, typer.Option(metavar="NAME", hidden=True, help="An instruction set by name.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def load_engine(
    model: str,
    *,
    drafter: str = "auto",
    dtype: str,
    kv: str,
    context: int | None = None,
    threads: int | None,
    kernels: str,
) -> Engine:
    """`forerun.load`, with a progress bar where it takes long."""
    from forerun.api import load

    with LateProgress("loading") as progress:
        return load(
            model,
            drafter=drafter,
            dtype=dtype,
            kv=kv,
            context=context,
            threads=threads,
            kernels=kernels,
            progress=progress,
        )
