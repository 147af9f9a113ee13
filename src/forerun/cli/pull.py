"""`forerun pull`: fetch a model, or make sure that it is here, and print its path."""

from __future__ import annotations

import click

from forerun.models.hub import DEFAULT_MODEL, pull_model


@click.command()
@click.argument("model", default=DEFAULT_MODEL)
def pull(model: str) -> None:
    """Fetch a model, and print where it is.

    MODEL is a hub id (org/name, or org/name:file.gguf) or a known name.
    """
    from forerun.models.checkpoint import open_checkpoint
    from forerun.models.heads import is_head

    path = pull_model(model)
    if not is_head(path):
        open_checkpoint(path)  # refuses what is no model
    print(path)
