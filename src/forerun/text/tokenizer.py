"""Text to token ids and back. `forerun.text.from_gguf` and `forerun.text.from_folder` make tokenizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING

from forerun.errors import InputError
from forerun.text.detokenize import StreamDecoder
from forerun.text.pieces import PieceRules

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A vocabulary with its rules. `tokenizers` splits text; `rules` turn ids into text, and can stream.

    vocab_size      one more than the highest id; a model's embedding may have more rows (padding)
    bos_id          the token that begins a sequence, if there is one
    eos_ids         the tokens that end a text, the declared one first
    special_ids     tokens that stand for no text: `decode` leaves them out
    added           id -> text of the tokens that are matched in text before anything else, special or not
    prefix, suffix  what `encode` puts around a text when `add_special`
    special_tokens  name -> text, as chat templates use them: "bos_token", "eos_token", ...
    texts           id -> text, as far as it is known, of tokens that are whole characters wherever they stand
                    after a text's beginning; of special ones none
    chat_templates  name -> source; "default", and "tool_use" where tools have a template of their own
    """

    backend: tokenizers.Tokenizer
    rules: PieceRules
    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    added: Mapping[int, str]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    special_tokens: Mapping[str, str]
    chat_templates: Mapping[str, str]
    texts: dict[int, str] = field(default_factory=dict, init=False, repr=False)
    _bytes: dict[int, bytes] = field(default_factory=dict, init=False, repr=False)

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template for messages without tools."""
        return self.chat_templates.get("default")

    def encode(self, text: str, add_special: bool) -> list[int]:
        """The ids of `text`. `add_special` adds what the model wants around a text (often a start token).

        The text of an added token inside `text` becomes that token, as it does in transformers.

        Raises:
            InputError: it is no text, or no valid Unicode.
        """
        if not isinstance(text, str):
            raise InputError(f"a text to encode is needed, not {_kind(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            where = f"character {error.start} is half a surrogate pair"
            raise InputError(f"the text is not valid Unicode ({where}); take it out") from error
        ids = self.backend.encode(text, add_special_tokens=False).ids
        return [*self.prefix, *ids, *self.suffix] if add_special else list(ids)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`, a whole one. Bytes that are not UTF-8 become U+FFFD; unknown ids are left out.

        Equal to transformers' for what `encode` gave. Ids that make invalid UTF-8 get one U+FFFD for each
        maximal part of a character, where `tokenizers` gives up a whole run of byte tokens.

        Raises:
            InputError: it is no list of whole numbers.
        """
        single = isinstance(ids, str | bytes | Mapping) or getattr(ids, "ndim", 1) == 0
        if single or not isinstance(ids, Iterable):
            raise InputError(f"a list of token ids is needed, not {_kind(ids)}")
        ids = list(ids)
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, Integral):
                raise InputError(f"token ids are whole numbers; one is {_kind(token)}")
        stream = StreamDecoder(self, skip_special)
        return stream.push(ids) + stream.flush()

    def has(self, token: int) -> bool:
        """Whether the id has a token. Vocabularies may have gaps."""
        return self.piece(token) is not None

    def is_special(self, token: int) -> bool:
        """Whether the token stands for no text (start, end, padding, control)."""
        return token in self.special_ids

    def piece(self, token: int) -> str | None:
        """The token as the vocabulary spells it: "Ġthe", "▁the", "<0x0A>"; None for an id without one."""
        return self.backend.id_to_token(token) if 0 <= token < self.vocab_size else None

    def token_bytes(self, token: int, first: bool = False) -> bytes:
        """The bytes the token stands for in a text (`first`: as its first token); b"" for unknown ids.

        A special token's bytes are its own text. The spaces that `decode` takes off a text are still there.
        """
        if first and self.rules.drop_first:
            return self._to_bytes(token, first)
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._to_bytes(token, False)
        return known

    def token_text(self, token: int) -> str:
        """The token's bytes as text, for display: a part of a character shows as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def _to_bytes(self, token: int, first: bool) -> bytes:
        piece = self.piece(token)
        if piece is None:
            return b""
        if self.rules.byte_level and token in self.added:  # added tokens are spelled as they are
            return piece.encode()
        return self.rules.to_bytes(piece, first)


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
