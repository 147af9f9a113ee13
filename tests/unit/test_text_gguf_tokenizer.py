"""Tokenizers out of GGUF metadata: the same ids as the tokenizer.json that published models come with."""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_samples import (
    TEXTS,
    Metadata,
    byte_level_metadata,
    sentencepiece_metadata,
    sentencepiece_tokenizer,
    spellings,
    texts,
    train,
)
from tokenizers import Regex, Tokenizer, pre_tokenizers

from forerun.errors import InputError
from forerun.text import from_gguf
from forerun.text.pretokenizers import PRE_TOKENIZERS
from forerun.text.tokenizer import Tokenizer as Ours

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


# As the tokenizer.json files of the models have them.
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PUBLISHED: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    "gpt-2": [WORDS],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), WORDS],
    "llama-bpe": [split(GPT4), BYTES],
    "deepseek-r1-qwen": [split(QWEN2), BYTES],
    "tekken": [split(TEKKEN), BYTES],
    "gpt-4o": [split(GPT4O), BYTES],
    "falcon": [
        pre_tokenizers.Punctuation(behavior="contiguous"),
        WORDS,
        split("[0-9][0-9][0-9]"),
    ],
    "deepseek-coder": [
        split("[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        split("[一-龥\u0800-一가-\ud7ff]+"),
        pre_tokenizers.Digits(individual_digits=True),
        BYTES,
    ],
}


@cache
def pair(pre: str) -> tuple[Tokenizer, Ours]:
    """The published tokenizer and ours, of one vocabulary."""
    published = train(pre_tokenizers.Sequence(PUBLISHED[pre]))
    return published, from_gguf(byte_level_metadata(published, pre))


def check_byte_level(pre: str, text: str) -> None:
    published, ours = pair(pre)
    theirs, words = published.pre_tokenizer, ours.backend.pre_tokenizer
    assert theirs is not None
    assert words is not None
    assert words.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)
    ids = published.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, add_special=False) == ids
    assert ours.decode(ids) == published.decode(ids) == text


@pytest.mark.parametrize("pre", PUBLISHED)
def test_byte_level_ids_of_trying_texts(pre: str) -> None:
    for text in TEXTS:
        check_byte_level(pre, text)


@pytest.mark.parametrize("pre", PUBLISHED)
@given(text=texts)
@settings(max_examples=40, deadline=None)
def test_byte_level_ids_of_any_text(pre: str, text: str) -> None:
    check_byte_level(pre, text)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_the_text(pre: str) -> None:
    ours = from_gguf(byte_level_metadata(pair("gpt-2")[0], pre))
    for text in TEXTS:
        kept = unicodedata.normalize("NFC", text) if PRE_TOKENIZERS[pre].nfc else text
        assert ours.decode(ours.encode(text, add_special=False)) == kept


def test_the_pre_tokenizers_users_meet_are_known() -> None:
    names = (
        "default gpt-2 llama-bpe llama3 smollm qwen2 qwen35 deepseek-llm deepseek-coder falcon starcoder "
        "refact command-r mpt olmo dbrx tekken gpt-4o phi-2"
    )
    assert set(names.split()) <= set(PRE_TOKENIZERS)
    with pytest.raises(InputError, match="'kimi-k2' is not known"):
        from_gguf(byte_level_metadata(pair("gpt-2")[0], "kimi-k2"))


def test_no_pre_tokenizer_means_the_default() -> None:
    metadata = byte_level_metadata(pair("gpt-2")[0], "default")
    named, silent = (
        from_gguf(metadata),
        from_gguf({k: v for k, v in metadata.items() if not k.endswith(".pre")}),
    )
    assert all(named.encode(text, True) == silent.encode(text, True) for text in TEXTS)


def test_a_word_that_is_a_token_needs_no_merges() -> None:
    metadata = byte_level_metadata(pair("gpt-2")[0], "llama-bpe")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "zebra"]  # type: ignore[misc]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]  # type: ignore[misc]
    ours = from_gguf(metadata)
    assert ours.encode("zebra", add_special=False) == [ours.vocab_size - 1]
    assert len(from_gguf(metadata | {"tokenizer.ggml.pre": "gpt-2"}).encode("zebra", add_special=False)) > 1


def by_the_book(text: str, score: dict[str, float], ids: dict[str, int]) -> list[int]:
    """SentencePiece BPE, literally: join the best neighbours, the leftmost of equals, until none can be."""
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = enumerate(pairwise(symbols))
        joins = [(score[a + b], -i) for i, (a, b) in pairs if a + b in score]
        if not joins:
            break
        i = -max(joins)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    found = []
    for symbol in symbols:
        found += [ids[symbol]] if symbol in score else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


@cache
def sentencepiece(prefix: bool) -> tuple[Tokenizer, Ours]:
    published = sentencepiece_tokenizer(prefix)
    return published, from_gguf(sentencepiece_metadata(spellings(published), prefix))


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids_of_trying_texts(prefix: bool) -> None:
    published, ours = sentencepiece(prefix)
    for text in TEXTS:
        ids = ours.encode(text, add_special=False)
        assert ids == published.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == published.decode(ids)


@pytest.mark.parametrize("prefix", [True, False])
@given(text=texts)
@settings(max_examples=150, deadline=None)
def test_sentencepiece_ids_of_any_text(prefix: bool, text: str) -> None:
    published, ours = sentencepiece(prefix)
    ids = published.get_vocab()
    score = {token: -float(i) for token, i in ids.items() if i > 258}
    found = ours.encode(text, add_special=False)
    assert found == by_the_book("▁" + text if prefix and text else text, score, ids)
    assert ours.decode(found) == text.replace("▁", " ")


def test_byte_tokens_are_not_matched_in_text() -> None:
    _, ours = sentencepiece(True)
    byte = ours.backend.token_to_id("<0x01>")
    assert ours.encode("\x01", False)[-1] == byte
    assert byte not in ours.encode("<0x01>", False)
    assert ours.decode(ours.encode("<0x01>", False)) == "<0x01>"


def test_control_and_user_defined_tokens_are_matched_in_text() -> None:
    tokens = [*spellings(sentencepiece(True)[0]), "<think>", "unused"]
    metadata = sentencepiece_metadata(tokens)
    metadata["tokenizer.ggml.token_type"] = np.array([*metadata["tokenizer.ggml.token_type"][:-2], 4, 5])  # type: ignore[index]
    ours = from_gguf(metadata)
    think = ours.vocab_size - 2
    ids = ours.encode("a</s><think>b<unk>", add_special=False)
    assert [i for i in ids if i in ours.added] == [2, think, 0]
    assert ours.decode(ids) == "a<think> b"  # special tokens are no text; the one for users is
    assert ours.decode(ids, skip_special=False) == "a</s><think> b<unk>"
    assert think + 1 not in ours.encode("unused", add_special=False)
    assert ours.is_special(2)
    assert not ours.is_special(think)


def test_added_tokens_are_spelled_as_they_are() -> None:
    metadata = byte_level_metadata(pair("gpt-2")[0], "gpt-2")
    added = ["  ", "<｜end▁of▁sentence｜>", "<é>"]
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *added]  # type: ignore[misc]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 4, 3, 4]  # type: ignore[misc]
    ours = from_gguf(metadata)
    size = ours.vocab_size
    assert [ours.encode(text, False) for text in added] == [[size - 3], [size - 2], [size - 1]]
    assert [ours.token_bytes(i).decode() for i in range(size - 3, size)] == added
    assert ours.eos_ids == (0, size - 2)  # DeepSeek's end token, known by its text


def test_start_and_end_tokens() -> None:
    metadata = byte_level_metadata(pair("gpt-2")[0], "gpt-2")
    plain = from_gguf(metadata)
    assert (plain.bos_id, plain.eos_ids, plain.prefix, plain.suffix) == (1, (0,), (), ())
    assert plain.special_tokens == {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    both = from_gguf(
        metadata | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": np.True_}
    )
    assert both.encode("", add_special=True) == [1, 0]
    assert both.encode("", add_special=False) == []
    assert from_gguf(metadata | {"tokenizer.ggml.pre": "llama3"}).prefix == (1,)
    assert sentencepiece(True)[1].prefix == (1,)
    none = from_gguf({k: v for k, v in metadata.items() if "_token_id" not in k})
    assert (none.bos_id, none.prefix) == (None, ())


def test_ends_known_by_key_and_by_text() -> None:
    metadata = byte_level_metadata(pair("gpt-2")[0], "gpt-2") | {"tokenizer.ggml.eot_token_id": np.uint32(7)}
    assert from_gguf(metadata).eos_ids == (0, 7)
    assert from_gguf(metadata | {"tokenizer.ggml.eos_token_id": 1}).eos_ids == (1, 7, 0)


def test_chat_templates() -> None:
    metadata = byte_level_metadata(pair("gpt-2")[0], "gpt-2")
    assert from_gguf(metadata).chat_template is None
    named = from_gguf(metadata | {"tokenizer.chat_template": "x", "tokenizer.chat_template.tool_use": "y"})
    assert named.chat_template == "x"
    assert named.chat_templates == {"default": "x", "tool_use": "y"}


def test_tokens_as_bytes_and_as_numpy() -> None:
    metadata = byte_level_metadata(pair("gpt-2")[0], "gpt-2")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    same = from_gguf(
        metadata
        | {
            "tokenizer.ggml.tokens": [token.encode() for token in tokens],
            "tokenizer.ggml.merges": np.array(metadata["tokenizer.ggml.merges"]),
        }
    )
    assert same.encode("the cat", True) == from_gguf(metadata).encode("the cat", True)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InputError, match="character 1 is half a surrogate pair"):
        pair("gpt-2")[1].encode("a\ud800", add_special=True)


TOKENS, MERGES, TYPES, SCORES = (
    f"tokenizer.ggml.{name}" for name in ("tokens", "merges", "token_type", "scores")
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokenizer.ggml.model": None}, "has no tokenizer"),
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.model": 3}, "model is not a text"),
        ({"tokenizer.ggml.pre": ["a"]}, "pre is not a text"),
        ({"tokenizer.ggml.pre": "a\nb"}, "is not known"),
        ({TOKENS: None}, "tokens is missing"),
        ({TOKENS: []}, "tokens is missing"),
        ({TOKENS: "abc"}, "tokens is missing"),
        ({TOKENS: [1, 2]}, "not a list of texts"),
        ({TOKENS: ["a", None]}, "not a list of texts"),
        ({TOKENS: [b"\xff"]}, "not valid UTF-8"),
        ({TOKENS: ["a", "b", "a"], TYPES: None}, "has 'a' twice"),
        ({TYPES: [1, 2]}, "has 2 values for 500 tokens"),
        ({TYPES: "abc"}, "not a list of numbers"),
        ({TYPES: ["a"] * 500}, "not a list of numbers"),
        ({TYPES: 1}, "not a list of numbers"),
        ({MERGES: None}, "merges is missing"),
        ({MERGES: 5}, "merges is missing"),
        ({MERGES: ["q zzzz"]}, "do not fit its tokens"),
        ({MERGES: ["nospace"]}, "do not fit its tokens"),
        ({MERGES: [""]}, "do not fit its tokens"),
        ({"tokenizer.ggml.bos_token_id": 500}, "bos_token_id is 500 and the vocabulary has 500 tokens"),
        ({"tokenizer.ggml.eos_token_id": -1}, "eos_token_id is -1"),
        ({"tokenizer.ggml.eos_token_id": "0"}, "eos_token_id is '0'"),
        ({"tokenizer.ggml.eot_token_id": True}, "eot_token_id is True"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token is not true or false"),
        ({"tokenizer.chat_template": 1}, "chat_template is not a text"),
    ],
)
def test_damaged_byte_level_metadata(change: Metadata, says: str) -> None:
    metadata = byte_level_metadata(pair("gpt-2")[0], "gpt-2") | change
    with pytest.raises(InputError, match=says) as caught:
        from_gguf({key: value for key, value in metadata.items() if value is not None})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({SCORES: None}, "scores is missing"),
        ({SCORES: [1.0]}, "scores has 1 value for"),
        ({SCORES: [float("nan")] * 700}, "scores is not a list of numbers"),
        ({"tokenizer.ggml.unknown_token_id": 10**9}, "unknown_token_id is 1000000000"),
        ({"tokenizer.ggml.add_space_prefix": "yes"}, "add_space_prefix is not true or false"),
    ],
)
def test_damaged_sentencepiece_metadata(change: Metadata, says: str) -> None:
    metadata = sentencepiece_metadata(spellings(sentencepiece(True)[0])) | change
    with pytest.raises(InputError, match=says):
        from_gguf({key: value for key, value in metadata.items() if value is not None})


def test_a_vocabulary_of_one_token() -> None:
    tiny = {
        "tokenizer.ggml.model": "llama",
        TOKENS: ["a"],
        SCORES: [0.0],
        "tokenizer.ggml.add_bos_token": False,
    }
    assert from_gguf(tiny).encode("aa", add_special=True) == [0, 0, 0]  # the space prefix is unknown: token 0


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 2**33), st.floats(), st.text(max_size=5), st.binary(max_size=5),
    st.lists(st.one_of(st.text(max_size=4), st.integers(), st.floats(), st.none()), max_size=5),
    st.lists(st.integers(-1, 8), min_size=500, max_size=500),
)  # fmt: skip


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_junk_is_used_or_refused(data: st.DataObject) -> None:
    metadata = byte_level_metadata(pair("gpt-2")[0], "gpt-2") | {SCORES: [0.0] * 500}
    keys = [
        *metadata,
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.unknown_token_id",
        "tokenizer.chat_template",
    ]
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
        metadata[key] = data.draw(JUNK)
    if data.draw(st.booleans()):
        metadata["tokenizer.ggml.model"] = "llama"
    try:
        made = from_gguf(metadata)
    except InputError:
        return
    assert isinstance(made.decode(made.encode("the cat", True)), str)
