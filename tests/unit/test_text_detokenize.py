"""Streaming: any ids, in any portions, give the text of the whole, and never half a character."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_samples import (
    byte_level_metadata,
    sentencepiece_metadata,
    sentencepiece_tokenizer,
    spellings,
    texts,
    train,
)
from tokenizers import pre_tokenizers

from forerun.errors import InputError
from forerun.text import StreamDecoder, Tokenizer, from_gguf, read_text
from forerun.text.pieces import PieceRules, rules_from_decoder

KINDS = ("byte-level", "sentencepiece", "sentencepiece without prefix", "metaspace")


@cache
def tokenizer(kind: str) -> Tokenizer:
    if kind == "byte-level":
        return from_gguf(
            byte_level_metadata(train(pre_tokenizers.ByteLevel(add_prefix_space=False)), "gpt-2")
        )
    prefix = kind != "sentencepiece without prefix"
    made = from_gguf(sentencepiece_metadata(spellings(sentencepiece_tokenizer(prefix)), prefix))
    if kind == "metaspace":
        metaspace = PieceRules(byte_fallback=True, replacements=(("▁", " "),), drop_first="▁")
        return replace(made, rules=metaspace)
    return made


@st.composite
def ids_of(draw: st.DrawFn, kind: str) -> list[int]:
    """Ids: any at all, bytes more often, some no token has."""
    made = tokenizer(kind)
    first_bytes = range(2, 258) if kind == "byte-level" else range(3, 259)
    anything = st.one_of(st.sampled_from(first_bytes), st.integers(-2, made.vocab_size + 2))
    return draw(st.one_of(st.lists(anything, max_size=30), texts.map(lambda text: made.encode(text, True))))


def portions(draw: st.DataObject, ids: list[int]) -> Iterable[list[int]]:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        yield ids[begin:end]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skip=st.booleans())
@settings(max_examples=120, deadline=None)
def test_portions_join_to_the_whole(kind: str, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(ids_of(kind))
    stream = StreamDecoder(tokenizer(kind), skip)
    pushed = [stream.push(portion) for portion in portions(data, ids)]
    assert "".join(pushed) + stream.flush() == tokenizer(kind).decode(ids, skip)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_everything_certain_is_emitted_and_nothing_else(kind: str, data: st.DataObject) -> None:
    """What is held back is the beginning of a character: some next bytes complete it."""
    ids = data.draw(ids_of(kind))
    stream = StreamDecoder(tokenizer(kind), continues=True)
    emitted, so_far = "", b""
    for token in ids:
        emitted += stream.push([token])
        so_far += b"" if tokenizer(kind).is_special(token) else tokenizer(kind).token_bytes(token)
        held = next(n for n in range(4) if so_far[: len(so_far) - n].decode(errors="replace") == emitted)
        if held:
            assert any(is_character(so_far[-held:] + rest) for rest in CONTINUATIONS), so_far[-held:]


CONTINUATIONS = [bytes([second]) + b"\x80" * n for second in (0x80, 0x90, 0xA0) for n in range(3)]


def is_character(data: bytes) -> bool:
    """One, or half of a surrogate pair: Python's decoder waits for the last byte of these too."""
    try:
        return len(data.decode(errors="surrogatepass")) == 1
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece", "sentencepiece without prefix"])
@given(text=texts)
@settings(max_examples=60, deadline=None)
def test_encoded_text_comes_back(kind: str, text: str) -> None:
    made = tokenizer(kind)
    assert made.decode(made.encode(text, add_special=True)) == (
        text if kind == "byte-level" else text.replace("▁", " ")
    )


def test_a_character_comes_with_its_last_byte() -> None:
    made = tokenizer("sentencepiece")
    stream = StreamDecoder(made)
    pieces = [stream.push([3 + byte]) for byte in "é日😀".encode()]
    assert pieces == ["", "é", "", "", "日", "", "", "", "😀"]
    assert stream.flush() == ""


def test_invalid_bytes_show_as_soon_as_they_are_certain() -> None:
    stream = StreamDecoder(tokenizer("sentencepiece"))
    assert [stream.push([3 + byte]) for byte in b"\xff\xe2\x82A\xc3\xc3\xa9"] == [
        "\ufffd",
        "",
        "",
        "\ufffdA",
        "",
        "\ufffd",
        "é",
    ]
    assert stream.push([3 + 0xF0, 3 + 0x9F]) == ""
    assert stream.flush() == "\ufffd"


def test_a_prefix_space_vanishes_only_at_the_beginning() -> None:
    made = tokenizer("sentencepiece")
    ids = made.encode("the cat", add_special=True)
    assert made.decode(ids) == "the cat"
    assert made.decode([*ids, *ids]) == "the cat the cat"
    stream = StreamDecoder(made, continues=True)
    assert stream.push(ids) == " the cat"
    space = made.backend.token_to_id("▁")
    assert space is not None
    assert made.decode([space, *ids]) == " the cat"  # one space, not all


def test_metaspace_drops_its_marks_from_the_first_piece_only() -> None:
    made = tokenizer("metaspace")
    ids = made.encode("the the", add_special=True)
    assert made.decode(ids) == "the the"
    assert made.decode([ids[1], ids[1]]) == "the the"


def test_one_look_at_each_token() -> None:
    class Counting:
        rules = PieceRules(byte_level=True)
        texts: ClassVar[dict[int, str]] = {}
        looks = 0

        def is_special(self, token: int) -> bool:
            return False

        def has(self, token: int) -> bool:
            return True

        def token_bytes(self, token: int, first: bool = False) -> bytes:
            self.looks += 1
            return b"\xf0\x9f\x98\x80"[token % 4 :][:1]

    counting = Counting()
    stream = StreamDecoder(counting)  # type: ignore[arg-type]
    text = "".join(stream.push([token]) for token in range(10_000)) + stream.flush()
    assert text == "😀" * 2500
    assert counting.looks == 10_000


def test_special_tokens_and_unknown_ids() -> None:
    made = tokenizer("byte-level")
    cat = made.encode("cat", add_special=False)
    ids = [1, *cat, 10**9, -1, 0]
    assert made.decode(ids) == "cat"
    assert made.decode(ids, skip_special=False) == "<|start|>cat<|end|>"
    assert made.token_bytes(10**9) == made.token_bytes(-1) == b""
    assert made.piece(made.vocab_size) is None
    assert made.token_bytes(0) == b"<|end|>"
    assert made.piece(cat[0]) == made.token_text(cat[0]) == "cat"[: len(made.token_text(cat[0]))]


@pytest.mark.parametrize(
    ("decoder", "rules"),
    [
        ({"type": "ByteLevel"}, PieceRules(byte_level=True)),
        ({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}, PieceRules(byte_level=True)),
        (
            {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"},
            PieceRules(replacements=(("_", " "),), drop_first="_"),
        ),
        (
            {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"},
            PieceRules(replacements=(("_", " "),)),
        ),
        (
            {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            PieceRules(byte_fallback=True, replacements=(("▁", " "),), strip=1),
        ),
    ],
)
def test_rules_of_decoders(decoder: object, rules: PieceRules) -> None:
    assert rules_from_decoder(decoder) == rules


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        "ByteLevel",
        {},
        {"type": "WordPiece"},
        {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""},
        {
            "type": "Sequence",
            "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "ab"}, "content": ""}],
        },
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        {
            "type": "Sequence",
            "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}],
        },
    ],
)
def test_decoders_that_cannot_stream(decoder: object) -> None:
    with pytest.raises(InputError):
        rules_from_decoder(decoder)


def test_read_text() -> None:
    assert read_text("é😀".encode()) == "é😀"
    assert read_text(b"\xef\xbb\xbfa") == "a"
    with pytest.raises(InputError, match="byte 1 is 0xff"):
        read_text(b"a\xffb")
    with pytest.raises(InputError, match="not valid UTF-8"):
        read_text(b"\xed\xa0\x80")  # half a surrogate pair
