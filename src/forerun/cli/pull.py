"""`forerun pull`: fetch a model, or make sure that it is here, and print its path."""

from __future__ import annotations

from typing import Annotated

import typer

from forerun.models.hub import DEFAULT_MODEL, pull_model


def pull(
    model: Annotated[
        str, typer.Argument(help="A known name, a hub id (org/name or org/name:file.gguf), or a local path.")
    ] = DEFAULT_MODEL,
) -> None:
    """Fetch a model into the cache and print the path of its file or folder."""
    print(pull_model(model))
