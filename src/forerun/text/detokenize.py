"""Token ids to text, one token at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forerun.text.tokenizer import Tokenizer


class StreamDecoder:
    """Turns ids into text as they come. The pieces joined are `Tokenizer.decode` of all the ids.

    The bytes of the tokens are decoded as UTF-8 by an incremental decoder: a character whose last bytes
    have not come yet is held back, and bytes become U+FFFD as soon as nothing that may follow could make
    them valid, one for each maximal part of a character (the Unicode standard's recommendation, section
    3.9). A push costs the same at the beginning of a text and after a million tokens.

    skip_special  leave out special tokens
    continues     the text goes on from an earlier one, so the rules for the beginning of a text (a
                  SentencePiece vocabulary's first space vanishes) do not hold
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._first = not continues
        self._strip = 0 if continues else tokenizer.rules.strip
        self._amid = self._first or self._strip > 0  # the beginning, or a character
        self._texts = tokenizer.texts

    def push(self, ids: Iterable[int]) -> str:
        """The text that `ids` complete. Ids that no token has are left out."""
        return "".join([self.piece(token) for token in ids])

    def piece(self, token: int) -> str:
        """The text that one more token completes."""
        text = None if self._amid else self._texts.get(token)
        return self._decode(token) if text is None else text

    def flush(self) -> str:
        """The end of the text: bytes still held back can become no character any more."""
        return self._utf8.decode(b"", final=True)

    def _decode(self, token: int) -> str:
        before = self._amid
        piece = self._utf8.decode(self._bytes(token))
        self._amid = self._first or self._strip > 0 or self._utf8.getstate()[0] != b""
        if not before and not self._amid and not self._tokenizer.is_special(token):
            self._texts[token] = piece
        return piece

    def _bytes(self, token: int) -> bytes:
        if self._skip_special and self._tokenizer.is_special(token):
            return b""
        data = self._tokenizer.token_bytes(token, first=self._first)
        if self._first and self._tokenizer.has(token):
            self._first = False
        while self._strip and data:
            if data.startswith(b" "):
                data = data[1:]
                self._strip -= 1
            else:
                self._strip = 0
        return data
