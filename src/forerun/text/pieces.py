"""How a token's spelling in a vocabulary becomes the bytes it stands for.

A vocabulary writes its tokens in one of two alphabets:

byte-level      every byte is one printable character (GPT-2's table): "Ġthe" is b" the"
SentencePiece   a space is written "▁", and a byte without a token of its own is written "<0x0A>"

`PieceRules` is the part of a tokenizer.json's decoder that language models use, in a form that can be
applied one token at a time, so that text can be streamed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from forerun.errors import InputError

SPACE = "▁"
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table, character to byte: printable Latin-1 stands for itself, the rest from U+0100 on."""
    table = {chr(b): b for b in (*range(33, 127), *range(161, 173), *range(174, 256))}
    others = [b for b in range(256) if chr(b) not in table]
    return table | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF = _byte_alphabet()


@dataclass(frozen=True)
class PieceRules:
    """Rules from a piece (a token's spelling) to bytes.

    byte_level     the piece is spelled in GPT-2's byte alphabet; one that is not stands for its own text
    byte_fallback  a piece "<0x0A>" stands for that byte
    replacements   (from, to) pairs applied to the piece first
    drop_first     a character that vanishes from the first piece of a text (the decoder "Metaspace")
    strip          how many spaces at the very beginning of a text vanish (the decoder "Strip")
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    drop_first: str = ""
    strip: int = 0

    def to_bytes(self, piece: str, first: bool = False) -> bytes:
        """The bytes of `piece`; `first`: it is the first piece of its text."""
        if self.byte_level:
            try:
                return bytes([BYTE_OF[c] for c in piece])
            except KeyError:
                return piece.encode()
        if self.byte_fallback and (match := BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        if first and self.drop_first:
            piece = piece.replace(self.drop_first, "")
        for old, new in self.replacements:
            piece = piece.replace(old, new)
        return piece.encode()


def rules_from_decoder(decoder: object) -> PieceRules:
    """The rules of a tokenizer.json's "decoder" object. InputError for one that cannot be streamed."""
    rules = PieceRules()
    fused = False  # a Strip before Fuse works on each piece, one after it on the whole text
    for step in _steps(decoder):
        kind = step.get("type")
        if kind == "Fuse":
            fused = True
        elif kind == "ByteLevel":
            rules = replace(rules, byte_level=True)
        elif kind == "ByteFallback":
            rules = replace(rules, byte_fallback=True)
        elif kind == "Metaspace" and isinstance(mark := step.get("replacement"), str):
            first = "" if step.get("prepend_scheme") == "never" else mark
            rules = replace(rules, replacements=(*rules.replacements, (mark, " ")), drop_first=first)
        elif kind == "Replace" and (pair := _string_pair(step, fused)):
            rules = replace(rules, replacements=(*rules.replacements, pair))
        elif kind == "Strip" and fused and isinstance(start := step.get("start"), int) and _strips_left(step):
            rules = replace(rules, strip=start)
        else:
            raise InputError(
                f"tokenizer.json: its decoder uses {kind!r} in a way that forerun does not support"
            )
    return rules


def _steps(decoder: object) -> list[Mapping[str, object]]:
    if not isinstance(decoder, Mapping):
        raise InputError("tokenizer.json has no decoder, so its tokens cannot be put together to text")
    if decoder.get("type") != "Sequence":
        return [decoder]
    parts = decoder.get("decoders")
    return [step for part in parts for step in _steps(part)] if isinstance(parts, list) else []


def _string_pair(step: Mapping[str, object], fused: bool) -> tuple[str, str] | None:
    """What a Replace step replaces; None for a regular expression, or what may match across tokens."""
    pattern = step.get("pattern")
    old = pattern.get("String") if isinstance(pattern, Mapping) else None
    new = step.get("content")
    if not isinstance(old, str) or not isinstance(new, str) or (fused and len(old) != 1):
        return None
    return old, new


def _strips_left(step: Mapping[str, object]) -> bool:
    """Whether a Strip step takes spaces, and from the left only."""
    return step.get("content") == " " and step.get("stop") == 0
