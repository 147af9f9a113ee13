"""Text and token ids: tokenizers, chat templates, streaming text out of tokens."""

from forerun.text.detokenize import StreamDecoder
from forerun.text.gguf_tokenizer import from_gguf
from forerun.text.hf_tokenizer import from_folder
from forerun.text.reading import read_text
from forerun.text.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "from_folder", "from_gguf", "read_text"]
