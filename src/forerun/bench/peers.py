"""Other engines, as subjects of the same measurements."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from forerun.bench.cost import CHUNK, Timing, some_tokens
from forerun.errors import InputError
from forerun.words import counted

KV_TYPES = {"f32": 0, "bf16": 1, "f16": 1, "q8": 8}
"""ggml's numbers of the types of keys and values; for bf16 its default, f16, which has as many bytes."""


class LlamaCpp:
    """llama.cpp with a GGUF file, through the C interface in the package llama-cpp-python.

    Args:
        path: the file.
        capacity: context and rows that must fit.
        threads: for every forward.
        kv: how keys and values are kept: "f32", "bf16", "f16" or "q8".

    Raises:
        InputError: the package is missing or cannot use the file.
    """

    name = "llama.cpp"

    def __init__(self, path: Path, capacity: int, threads: int, kv: str) -> None:
        try:
            import llama_cpp
        except ImportError as error:
            raise InputError(
                f"comparing with llama.cpp needs its package ({error}): pip install llama-cpp-python"
            ) from error
        # it has thousands of lines to say
        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL + 1)
        self._library: Any = llama_cpp
        self.version = version("llama-cpp-python")
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        self._model: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), model_options)
        if not self._model:
            raise InputError(f"llama.cpp cannot load {path}; compare with another GGUF file")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = capacity
        options.n_batch = options.n_ubatch = CHUNK
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = KV_TYPES[kv]
        self._context: Any = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            raise InputError(f"llama.cpp makes no context of {capacity} tokens in {kv}; try --kv f16")
        self._memory: Any = llama_cpp.llama_get_memory(self._context)
        vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._tokens: list[int] = some_tokens(capacity, vocab_size).tolist()
        self._batch: Any = llama_cpp.llama_batch_init(CHUNK, 0, 1)
        self._length = 0

    def fill(self, context: int) -> None:
        for start in range(0, context, CHUNK):
            self._decode(self._tokens[start : min(start + CHUNK, context)], start, logits=False)
        self._length = context

    def forward(self, rows: int) -> Timing:
        seconds = self._decode(self._tokens[:rows], self._length, logits=True)
        self._forget(self._length)
        return Timing(seconds)

    def prefill(self, rows: int) -> Timing:
        self._forget(0)
        seconds = 0.0
        for start in range(0, rows, CHUNK):
            seconds += self._decode(self._tokens[start : min(start + CHUNK, rows)], start, logits=False)
        self._forget(0)
        self.fill(self._length)
        return Timing(seconds)

    def close(self) -> None:
        """Free what the library holds."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _decode(self, tokens: Sequence[int], start: int, logits: bool) -> float:
        """Compute tokens at positions from `start` on; the seconds it took."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = start + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = logits
        begin = perf_counter()
        failed = self._library.llama_decode(self._context, batch)
        self._library.llama_synchronize(self._context)
        seconds = perf_counter() - begin
        if failed:
            raise InputError(f"llama.cpp cannot compute {counted(len(tokens), 'token')} (status {failed})")
        return seconds

    def _forget(self, length: int) -> None:
        """Drop the tokens from position `length` on."""
        self._library.llama_memory_seq_rm(self._memory, 0, length, -1)
