"""A model by its metadata alone: its configuration, and how each tensor is stored. No weight is read.

A GGUF file and a folder with safetensors tell both. Of a hub id that was not fetched, or a folder without
weights, config.json is enough: its `torch_dtype` then stands for all tensors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import InputError
from forerun.models.checkpoint import Checkpoint, expected_tensors, open_checkpoint
from forerun.models.config import ModelConfig
from forerun.models.heads import is_head
from forerun.models.hf_config import read_hf_config
from forerun.models.hub import Sought, find_model, pull_config
from forerun.weights.hf_folder import INDEX, SINGLE

KINDS_OF_DTYPES: Mapping[str, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True, eq=False)
class Outline:
    """A model that is not loaded.

    path:  of its file or folder
    kinds: how each tensor is stored, by canonical name
    """

    path: Path
    config: ModelConfig
    kinds: Mapping[str, str]


def read_outline(model: str, sought: Sought = Sought.MODEL) -> Outline:
    """The outline of what `model` names: as for `resolve_model`, or a config.json. InputError as there."""
    path = Path(os.path.expanduser(model))
    if path.name == "config.json" and path.is_file():
        return outline_of_config(path.parent)
    found = find_model(model, sought)
    if found is None:
        return outline_of_config(pull_config(model))
    weights = (found / SINGLE).exists() or (found / INDEX).exists()
    if found.is_dir() and not weights and not is_head(found):
        return outline_of_config(found)
    return outline_of(open_checkpoint(found))


def outline_of(checkpoint: Checkpoint) -> Outline:
    """The outline of a model on disk."""
    kinds = {name: tensor.kind for name, tensor in checkpoint.tensors.items()}
    return Outline(checkpoint.path, checkpoint.config, kinds)


def outline_of_config(folder: Path) -> Outline:
    """The outline that a folder's config.json gives.

    Raises:
        InputError: no config.json, or one that cannot be used.
    """
    if not (folder / "config.json").exists():
        raise InputError(f"the folder {folder} has no config.json; name a GGUF file or a Hugging Face folder")
    config, values = read_hf_config(folder)
    kind = KINDS_OF_DTYPES.get(str(values.get("torch_dtype", values.get("dtype"))), "BF16")
    return Outline(folder, config, {name: kind for name, _ in expected_tensors(config)})
