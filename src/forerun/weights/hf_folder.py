"""The weights of a Hugging Face folder: `model.safetensors`, or shards named by an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forerun.errors import InputError
from forerun.files import write_whole
from forerun.weights.files import read_json
from forerun.weights.safetensors_file import Entry, read_safetensors, write_safetensors
from forerun.weights.tensor import Tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
HYDRA_FILES = ("hydra_lm_head.safetensors", "hydra_lm_head.pt")
HEAD_FILES = (*MEDUSA_FILES, *HYDRA_FILES)
"""What only drafting heads are in."""

PICKLED = "pytorch_model.bin"
"""What older heads are in; models in it are refused."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
KINDS_OF_DTYPES = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
PREFIX = "model."


def read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder by canonical names. InputError if a shard or a tensor is missing."""
    tensors: dict[str, Tensor] = {}
    for name, entry in read_entries(folder).items():
        if name.endswith(".rotary_emb.inv_freq"):  # old files store it; it is computed from the configuration
            continue
        if entry.dtype not in KINDS_OF_DTYPES:
            raise InputError(
                f"tensor {name!r} in {folder} is {entry.dtype}; {', '.join(KINDS_OF_DTYPES)} can be read,"
                " so use unquantised weights or a GGUF file"
            )
        canonical = name.removeprefix(PREFIX)
        if canonical in tensors:
            raise InputError(f"tensor {canonical!r} in {folder} is there twice, with and without {PREFIX!r}")
        tensors[canonical] = Tensor(canonical, KINDS_OF_DTYPES[entry.dtype], entry.shape, entry.data)
    return tensors


def read_entries(folder: Path) -> dict[str, Entry]:
    """All tensors as the files have them. InputError if a shard or a tensor is missing."""
    return read_safetensors(folder / SINGLE) if (folder / SINGLE).exists() else _read_shards(folder)


def shard_names(folder: Path) -> Mapping[str, str]:
    """The index's map from tensor names to file names, every file name a plain one."""
    path = folder / INDEX
    named = read_json(path).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise InputError(f"{path} has no 'weight_map'; fetch it again")
    for name, shard in named.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or Path(shard).name != shard:
            raise InputError(
                f"{path} places tensor {name!r} in {shard!r}, which is no safetensors file of this folder"
            )
    return named


def _read_shards(folder: Path) -> dict[str, Entry]:
    if not (folder / INDEX).exists():
        raise InputError(_no_weights(folder))
    named = shard_names(folder)
    shards: dict[str, dict[str, Entry]] = {}
    for shard in sorted(set(named.values())):
        if not (folder / shard).exists():
            raise InputError(
                f"{folder / INDEX} names the shard {shard!r}, which is not in the folder; fetch it again"
            )
        shards[shard] = read_safetensors(folder / shard)
    entries: dict[str, Entry] = {}
    for name, shard in named.items():
        if name not in shards[shard]:
            raise InputError(
                f"tensor {name!r} is not in {folder / shard}, where the index places it; fetch it again"
            )
        entries[name] = shards[shard][name]
    return entries


def _no_weights(folder: Path) -> str:
    if any(path.suffix in PICKLES for path in folder.iterdir()):
        return (
            f"{folder} holds pickled weights (.bin, .pt), which can run code when they are opened;"
            " convert them to safetensors first (transformers: model.save_pretrained)"
        )
    return f"{folder} has neither {SINGLE} nor {INDEX}; fetch the weights too"


def write_folder(
    folder: Path,
    config: Mapping[str, object],
    tensors: Mapping[str, npt.NDArray[np.generic]],
    name: str = SINGLE,
) -> None:
    """Write config.json and, as file `name`, the weights, floats as bfloat16. The folder is made if it is not
    there."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / name, tensors)
    write_whole(folder / "config.json", json.dumps(config, indent=2) + "\n")
