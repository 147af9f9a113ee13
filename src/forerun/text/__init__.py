"""Text and token ids: tokenizers, chat templates, streaming text out of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.text.detokenize import StreamDecoder
from forerun.text.gguf_tokenizer import from_gguf
from forerun.text.hf_tokenizer import from_folder
from forerun.text.reading import read_text
from forerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from forerun.models.checkpoint import Checkpoint

__all__ = ["StreamDecoder", "Tokenizer", "from_checkpoint", "from_folder", "from_gguf", "read_text"]


def from_checkpoint(checkpoint: Checkpoint) -> Tokenizer:
    """A model's tokenizer: of a GGUF file its metadata's, of a folder its files'.

    Raises:
        InputError: there is none, or it cannot be used.
    """
    if checkpoint.format == "gguf":
        return from_gguf(checkpoint.metadata)
    return from_folder(checkpoint.path)
