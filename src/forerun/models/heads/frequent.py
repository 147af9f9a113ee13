"""A head that guesses by its target's own output layer needs not ask for all tokens.

FR-Spec (Zhao et al., arXiv 2502.14856): most of a small head's time goes into an output layer over a large
vocabulary, most of which hardly ever occurs. Drafting from a frequent quarter leaves the target's check, and
so the text, as it is. Tokenizers number their tokens in the order in which they were made, the most frequent
pieces first: where no counts are known, low ids are the frequent part.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forerun.models.config import ModelConfig
from forerun.models.heads.head import Head

PART = 4
"""One token in so many is kept (the paper: 32 thousand of 128)."""

LEAST = 16384
"""But so many at least."""


def frequent_tokens(target: ModelConfig) -> int:
    """How many of a model's tokens such a head guesses."""
    return min(max(LEAST, target.vocab_size // PART), target.vocab_size)


def frequent_part(head: Head, target: ModelConfig) -> Head:
    """The head; cut to the frequent tokens if it would use the whole of the target's output layer."""
    kept = frequent_tokens(target)
    if head.outputs is not None or kept == target.vocab_size:
        return head
    ends = [token for token in target.eos_token_ids if kept <= token < target.vocab_size]
    tokens = np.array([*range(kept), *sorted(ends)], dtype=np.int32)
    return replace(head, outputs=tokens.size, tokens=tokens)
