"""Perplexity of a text under several ways of executing the same weights.

    python scripts/perplexity.py TEXT.txt -m MODEL --dtypes f32,auto,q8,q4 --tokens 20480

Debian's package bible-kjv ships a public-domain text: `bible -f gen1:1-exo40:38 > TEXT.txt`. Windows of
--context tokens are read from the start; each token but a window's first is predicted from those before it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import forerun
from forerun.models.rows import Rows

ROWS = 256


def negative_log_likelihoods(engine: forerun.Engine, window: np.ndarray) -> np.ndarray:
    """float64 [tokens - 1], in nats."""
    cache = engine.backend.new_cache(len(window))
    found = []
    for start in range(0, len(window) - 1, ROWS):
        tokens = window[start : min(start + ROWS, len(window) - 1)]
        rows = np.arange(len(tokens), dtype=np.int32)
        logits = engine.backend.forward(Rows.chain(tokens, cache), rows).logits.astype(np.float64)
        cache.commit(rows)
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[rows, window[start + 1 : start + 1 + len(tokens)]]
        found.append(np.log(np.exp(logits).sum(axis=1)) - chosen)
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("-m", "--model", default=None)
    parser.add_argument("--dtypes", default="f32,auto")
    parser.add_argument("--kv", default="auto")
    parser.add_argument("--tokens", type=int, default=20480)
    parser.add_argument("--context", type=int, default=1024)
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8")
    first = None
    for dtype in options.dtypes.split(","):
        engine = forerun.load(options.model, dtype=dtype, kv=options.kv)
        tokens = np.array(engine.tokenizer.encode(text, add_special=False)[: options.tokens], dtype=np.int32)
        if len(tokens) < options.tokens:
            sys.exit(f"the text has {len(tokens)} tokens only")
        losses = []
        for start in range(0, len(tokens) - 1, options.context):
            losses.append(negative_log_likelihoods(engine, tokens[start : start + options.context]))
            print(f"\r{dtype}: {start + options.context} tokens", end="", file=sys.stderr, flush=True)
        perplexity = float(np.exp(np.concatenate(losses).mean()))
        first = first or perplexity
        print(f"\r{dtype}: perplexity {perplexity:.4f}, {100 * (perplexity / first - 1):+.3f} %", flush=True)


if __name__ == "__main__":
    main()
