"""Whether a draft model means the same tokens by the same ids as its target."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.errors import InputError
from forerun.models.draft_vocabulary import DraftVocabulary
from forerun.text.tokenizer import Tokenizer

ENOUGH_IN_COMMON = 0.99
"""A draft model may spell so many of its tokens' ids otherwise than the target that this share is left: some
models of one family differ in the names of special tokens."""


@dataclass(frozen=True)
class Shared:
    """What a draft model's vocabulary has in common with its target's.

    Attributes:
        compared: ids that both have; those that only one has are padding, or never drafted.
        others: of these the ones that mean other tokens: the target's id, the draft model's token, and the
            target's.
    """

    compared: int
    others: list[tuple[int, str | None, str | None]]

    @property
    def enough(self) -> bool:
        """Whether the draft model can draft."""
        return len(self.others) <= (1 - ENOUGH_IN_COMMON) * self.compared


def shared_vocabulary(target: Tokenizer, draft: Tokenizer | DraftVocabulary) -> Shared:
    """What a draft model shares with a target, token by token."""
    if isinstance(draft, DraftVocabulary):
        pieces: dict[int, str | None] = dict(zip(draft.tokens.tolist(), draft.pieces, strict=True))
    else:
        size = min(target.vocab_size, draft.vocab_size)
        pieces = {token: draft.piece(token) for token in range(size)}
    found = ((token, piece, target.piece(token)) for token, piece in pieces.items())
    return Shared(len(pieces), [other for other in found if (other[1] or "") != (other[2] or "")])


def refuse_other_vocabulary(
    model: str, target: Tokenizer, draft: Tokenizer | DraftVocabulary, vocab_size: int
) -> None:
    """A draft model must mean the same tokens by the same ids. Padding and a few renamed tokens do no harm.

    Args:
        model: what the draft model is called.
        vocab_size: of the target, padding included.

    Raises:
        InputError: too many differ; says how many and which is the first.
    """
    if isinstance(draft, DraftVocabulary) and draft.reads.size != vocab_size:
        raise InputError(
            f"draft model {model} was made for a model of {draft.reads.size} tokens; this has {vocab_size}"
        )
    shared = shared_vocabulary(target, draft)
    if not shared.enough:
        token, here, there = shared.others[0]
        raise InputError(
            f"draft model {model} has another vocabulary: {len(shared.others)} of {shared.compared} ids mean "
            f"other tokens (the first, {token}, is {here!r} there and {there!r} here); "
            "use a model of the same family"
        )
