"""Opening a folder of training data for a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from forerun.engine import Engine
from forerun.errors import InputError
from forerun.models.backend import Backend
from forerun.models.rows import Rows
from forerun.training.store import Store
from forerun.weights.bfloat16 import Halves, to_bfloat16
from forerun.words import counted

LEAST_LAYERS = 3
"""With fewer there are not as many hidden states as are recorded."""


def feature_taps(layers: int) -> tuple[int, ...]:
    """What is recorded at each position: EAGLE-3's three hidden states, then the final one (after the norm),
    from which the head gives the target's distribution."""
    return (min(2, layers), layers // 2, max(layers - 3, 1), layers)


def open_to_write(
    engine: Engine,
    folder: Path,
    *,
    model: str,
    seed: int,
    prompts: Path | None,
    most_bytes: int | None = None,
) -> Store:
    """The folder's store, made when missing. `most_bytes`: that hidden states may take.

    Raises:
        InputError: it holds data of another model, seed or source of prompts.
    """
    config = engine.backend.config
    if config.layers < LEAST_LAYERS:
        raise InputError(
            f"{model} has {counted(config.layers, 'layer')}; "
            f"data is written for models of {LEAST_LAYERS} or more"
        )
    about = {
        "model": model,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "layers": config.layers,
        "taps": list(feature_taps(config.layers)),
        "seed": seed,
        "prompts": None if prompts is None else str(prompts.resolve()),
    }
    return Store(folder, about, most_bytes)


def open_to_read(folders: list[Path], hidden_size: int, layers: int, vocab_size: int) -> list[Store]:
    """Stores to train on.

    Raises:
        InputError: one is of another model, or damaged.
    """
    stores = []
    for folder in folders:
        store = Store(folder)
        of = (store.hidden, store.taps, store.about.get("vocab_size"))
        if of != (hidden_size, feature_taps(layers), vocab_size):
            raise InputError(f"{folder} holds the data of another model, {store.about.get('model')}")
        if store.highest_token >= vocab_size:
            raise InputError(f"{folder}/tokens.bin is damaged; write the data again")
        stores.append(store)
    return stores


class Recorder:
    """Computes hidden states again that were not kept: with the kernels that recorded the others, to the bit.

    Args:
        target: the model that wrote the data.
    """

    def __init__(self, target: Backend) -> None:
        self._target = target
        self._taps = feature_taps(target.config.layers)

    def __call__(self, tokens: npt.NDArray[np.int32]) -> Halves:
        """Of all n tokens but the last: bfloat16 as uint16 [n - 1, taps, hidden]."""
        rows = Rows.chain(tokens[:-1], self._target.new_cache(len(tokens)))
        return to_bfloat16(self._target.forward(rows, np.zeros(0, np.int32), self._taps).features)
