"""A GGUF file of a Llama-shaped model with random weights, to time shapes that no small model has.

    python scripts/random_llama.py OUT.gguf --hidden 2048 --layers 16 --kind Q4_1

By default about 1.2 billion parameters. Its text means nothing; its tokenizer is the default model's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np

from forerun.models.hub import DEFAULT_MODEL, resolve_model
from forerun.weights.gguf_file import read_gguf

KEPT = ("tokenizer.ggml.", "tokenizer.chat_template")


def blocks(kind: str, outputs: int, inputs: int, draw: np.random.Generator) -> np.ndarray:
    """uint8 [outputs, bytes of a row]: random integers with scales that keep activations of order one."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = draw.integers(0, 256, (outputs, inputs // block, size), dtype=np.uint8)
    step = {"Q4_0": 1 / 4.6, "Q4_1": 1 / 4.6, "Q8_0": 1 / 74}[kind] / np.sqrt(inputs)
    raw[:, :, :2] = np.frombuffer(np.float16(step).tobytes(), dtype=np.uint8)
    if kind == "Q4_1":
        raw[:, :, 2:4] = np.frombuffer(np.float16(-7.5 * step).tobytes(), dtype=np.uint8)
    return raw.reshape(outputs, -1)


def copy_tokenizer(writer: gguf.GGUFWriter) -> int:
    """The default model's tokenizer; returns the size of its vocabulary."""
    metadata = read_gguf(resolve_model(DEFAULT_MODEL)).metadata
    for key, value in metadata.items():
        if not key.startswith(KEPT):
            continue
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, list | np.ndarray):
            writer.add_array(key, list(value) if isinstance(value, list) else value.tolist())
    return len(metadata["tokenizer.ggml.tokens"])  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--kind", choices=["Q4_0", "Q4_1", "Q8_0"], default="Q4_1")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = np.random.default_rng(options.seed)
    hidden, inner, head = options.hidden, options.inner, options.hidden // options.heads
    writer = gguf.GGUFWriter(options.out, "llama", use_temp_file=True)
    vocab = copy_tokenizer(writer)
    writer.add_name("random llama")
    writer.add_block_count(options.layers)
    writer.add_context_length(options.context)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(options.heads)
    writer.add_head_count_kv(options.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(head)

    def matrix(name: str, outputs: int, inputs: int, kind: str = options.kind) -> None:
        raw_dtype = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, blocks(kind, outputs, inputs, draw), raw_dtype=raw_dtype)

    def vector(name: str) -> None:
        writer.add_tensor(name, np.ones(hidden, dtype=np.float32))

    matrix("token_embd.weight", vocab, hidden, "Q8_0")
    vector("output_norm.weight")
    for layer in range(options.layers):
        at = f"blk.{layer}."
        vector(at + "attn_norm.weight")
        matrix(at + "attn_q.weight", hidden, hidden)
        matrix(at + "attn_k.weight", options.kv_heads * head, hidden)
        matrix(at + "attn_v.weight", options.kv_heads * head, hidden)
        matrix(at + "attn_output.weight", hidden, hidden)
        vector(at + "ffn_norm.weight")
        matrix(at + "ffn_gate.weight", inner, hidden)
        matrix(at + "ffn_up.weight", inner, hidden)
        matrix(at + "ffn_down.weight", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


if __name__ == "__main__":
    main()
