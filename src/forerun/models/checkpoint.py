"""Opening a model: its configuration and its tensors, checked against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from forerun.errors import InputError
from forerun.models.config import ModelConfig
from forerun.models.gguf_config import HEADS_ARCHITECTURE, ROPE_FACTORS, config_from_gguf
from forerun.models.hf_config import read_hf_config
from forerun.models.shipped import short_name
from forerun.weights.gguf_file import is_gguf, read_gguf
from forerun.weights.hf_folder import PICKLES, read_folder
from forerun.weights.names import canonical_name
from forerun.weights.tensor import INTEGERS, KINDS, Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model on disk, complete: `tensors` holds exactly what `config` implies, each in its shape.

    path:     the GGUF file or the folder
    tensors:  by canonical names; data are views into the mapped files
    metadata: GGUF's key-value pairs, or config.json's object
    """

    path: Path
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    format: Literal["gguf", "hf"]
    metadata: Mapping[str, object]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder. InputError, one line, for anything that cannot be used."""
    try:
        if path.is_dir():
            return _open_folder_or_say_head(path)
        if not path.exists():
            raise InputError(f"there is no file or folder {path}")
        if not path.is_file():  # a pipe would be waited for
            raise InputError(f"{path} is not a regular file; name a GGUF file or a Hugging Face model folder")
        return _open_file(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """The canonical names and shapes of all tensors of a model."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield "embed_tokens.weight", (config.vocab_size, hidden)
    yield "norm.weight", (hidden,)
    if not config.tied:
        yield "lm_head.weight", (config.vocab_size, hidden)
    for layer in range(config.layers):
        at = f"layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{at}self_attn.{name}_proj.weight", (rows, hidden)
            if config.qkv_bias:
                yield f"{at}self_attn.{name}_proj.bias", (rows,)
        yield at + "self_attn.o_proj.weight", (hidden, queries)
        if config.qk_norm:
            yield at + "self_attn.q_norm.weight", (config.head_dim,)
            yield at + "self_attn.k_norm.weight", (config.head_dim,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "mlp.gate_proj.weight", (inner, hidden)
        yield at + "mlp.up_proj.weight", (inner, hidden)
        yield at + "mlp.down_proj.weight", (hidden, inner)


def _open_folder_or_say_head(folder: Path) -> Checkpoint:
    """A head's folder looks like a model's that lacks something; it is told apart where it fails."""
    try:
        return _open_folder(folder)
    except InputError:
        from forerun.models.heads import is_head

        if not is_head(folder):
            raise
        raise _only_a_head(folder) from None


def _open_folder(folder: Path) -> Checkpoint:
    if not (folder / "config.json").exists():
        files = sorted(path.name for path in folder.iterdir() if path.suffix == ".gguf")
        hint = (
            f"name the file, {folder / files[0]}"
            if files
            else "name a GGUF file or a Hugging Face model folder"
        )
        raise InputError(f"the folder {folder} has no config.json; {hint}")
    config, values = read_hf_config(folder)
    tensors = read_folder(folder)
    if config.tied:
        # some tied models store it all the same; transformers ignores it too
        tensors.pop("lm_head.weight", None)
    return Checkpoint(folder, config, _checked(config, tensors, folder), "hf", values)


def _open_file(path: Path) -> Checkpoint:
    if not is_gguf(path):
        raise InputError(_not_gguf(path))
    file = read_gguf(path)
    if file.metadata.get("general.architecture") == HEADS_ARCHITECTURE:
        raise _only_a_head(path)
    tensors: dict[str, Tensor] = {}
    for name, tensor in file.tensors.items():
        canonical = canonical_name(name)
        if canonical in tensors:
            raise InputError(f"{path} holds tensor {canonical!r} twice, under two names")
        if tensor.kind in INTEGERS:
            raise InputError(f"{path}: tensor {name!r} is {tensor.kind}; a model's are {', '.join(KINDS)}")
        tensors[canonical] = replace(tensor, name=canonical)
    config = config_from_gguf(file.metadata, tensors, path)
    if config.architecture == "llama":
        tensors.pop(ROPE_FACTORS, None)
    return Checkpoint(path, config, _checked(config, tensors, path), "gguf", file.metadata)


def _checked(config: ModelConfig, tensors: Mapping[str, Tensor], source: Path) -> dict[str, Tensor]:
    """The tensors in the order of `expected_tensors`. One missing, misshapen or left over is an error: the
    file is another model than its configuration says."""
    made: dict[str, Tensor] = {}
    for name, shape in expected_tensors(config):
        tensor = tensors.get(name)
        if tensor is None:
            raise InputError(
                f"{source} has no tensor {name!r}, which its configuration implies; fetch or convert it again"
            )
        if tensor.shape != shape:
            raise InputError(
                f"{source}: tensor {name!r} has the shape {list(tensor.shape)} where the configuration"
                f" implies {list(shape)}"
            )
        if len(shape) == 1 and KINDS[tensor.kind].block > 1:
            raise InputError(
                f"{source}: tensor {name!r} is {tensor.kind}; norms and biases must be F32, F16 or BF16"
            )
        made[name] = tensor
    for name in tensors:
        if name not in made:
            raise InputError(
                f"{source}: tensor {name!r} has no place in a {config.architecture} model with this"
                " configuration; this kind of model is not supported"
            )
    return made


def _only_a_head(path: Path) -> InputError:
    return InputError(
        f"{path} holds a drafting head, not a whole model; beside its model it is the"
        f" drafter head:{short_name(path)}"
    )


def _not_gguf(path: Path) -> str:
    if path.suffix == ".safetensors":
        return f"{path} is one file of a Hugging Face model; name its folder, {path.parent}"
    if path.suffix in PICKLES:
        return (
            f"{path} holds pickled weights; convert them to safetensors (transformers: model.save_pretrained)"
        )
    return f"{path} is not a GGUF file: it does not begin with 'GGUF'"
