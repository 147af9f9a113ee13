"""A draft model with a vocabulary of its own as a GGUF file, in 4 bits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants

from forerun.files import explained
from forerun.models.config import ModelConfig
from forerun.models.draft_vocabulary import READS, TOKENS, DraftVocabulary
from forerun.models.shipped import DRAFT_FILE
from forerun.training import rounding
from forerun.training.export import plainly, rope_theta
from forerun.weights.names import gguf_name

EMBEDDING: rounding.Kind = "Q4_0"
MATRICES: rounding.Kind = "Q4_1"


def save_draft(
    folder: Path, config: ModelConfig, tensors: Mapping[str, torch.Tensor], part: DraftVocabulary
) -> None:
    """Write DRAFT_FILE. The old file stays until the new one is whole.

    Args:
        tensors: by canonical names.
        part: the tokens it has.

    Raises:
        InputError: it cannot be written.
    """
    fresh = folder / (DRAFT_FILE + ".new")
    with explained(fresh):
        try:
            _write(fresh, config, tensors, part)
            os.replace(fresh, folder / DRAFT_FILE)
        finally:
            fresh.unlink(missing_ok=True)


def _write(
    path: Path, config: ModelConfig, tensors: Mapping[str, torch.Tensor], part: DraftVocabulary
) -> None:
    writer = GGUFWriter(path, config.architecture)
    writer.add_name(f"draft of {config.name}")
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.layers)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(rope_theta(config))
    writer.add_layer_norm_rms_eps(plainly(config.norm_eps))
    writer.add_token_list(part.pieces)
    writer.add_array(TOKENS, part.tokens.tolist())
    writer.add_array(READS, part.reads.tolist())
    for name, tensor in tensors.items():
        values = tensor.detach().cpu().float()
        if config.architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _side_by_side(values, config.head_dim)
        _add(writer, name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, name: str, values: torch.Tensor) -> None:
    if values.dim() == 1:
        writer.add_tensor(gguf_name(name), values.numpy())
        return
    fits = rounding.fits(values)
    kind = (EMBEDDING if name in ("embed_tokens.weight", "lm_head.weight") else MATRICES) if fits else "BF16"
    made = GGMLQuantizationType[kind]
    writer.add_tensor(gguf_name(name), quants.quantize(values.numpy(), made), raw_dtype=made)


def _side_by_side(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of queries or keys as llama's GGUF files order them: the two of a rotated pair together."""
    pairs = rows.view(-1, 2, head_dim // 2, rows.shape[1]).transpose(1, 2)
    return pairs.reshape(-1, rows.shape[1]).contiguous()
