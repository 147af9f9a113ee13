"""The default model's tokenizer against transformers and llama.cpp, where they are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.models.hub import DEFAULT_MODEL, resolve_model
from forerun.text import Tokenizer, from_folder, from_gguf
from forerun.text.chat import render
from forerun.weights.gguf_file import read_gguf

pytestmark = pytest.mark.model

TEXTS = (
    "",
    " ",
    "\n\n \t x",
    "def f(x):\n    if x:\n\treturn  x**2  # hi\n\n",
    "1234567 89 0 007 ½ Ⅷ ٣٤٥",
    "  1   22\n  333",
    "I'm you're WE'LL 'ſ it'S",
    "日本語、中文。한국어!",
    "Привет Ελληνικά עברית العربية हिन्दी ไทย ខ្មែរ",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪",
    "e\u0301 \u00e9 \ufb01",
    "a\u00a0b\u2003c\u3000d\u200be",
    "\u0000\u0001\u007f\u0080\ufeff",
    "<|im_start|>user\nhi<|im_end|>",
    '{"a": [1, 2.50, null]}',
    "!!!???...---===",
    "a" * 300,
    "\U0010ffff \ue000",
    "▁under▁ <0x0A> <s>",
)
PIECES = [
    *"aeiotnr  \n\t\r.,'\"019_-(){}<>|½٣",
    "the",
    "  ",
    "é",
    "e\u0301",
    "ß",
    "б",
    "你",
    "日",
    "한",
    "ع",
    "😀",
    "👍🏽",
]
texts = st.one_of(st.lists(st.sampled_from(PIECES), max_size=50).map("".join), st.text(max_size=50))


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve_model(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def ours(path: Path) -> Tokenizer:
    return from_gguf(read_gguf(path).metadata)


@pytest.fixture(scope="module")
def from_file(path: Path) -> Any:
    """The tokenizer that transformers makes of the GGUF file."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@pytest.fixture(scope="module")
def published(from_file: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The tokenizer of the model's own folder: the same vocabulary, digits apart.

    The file names the pre-tokenizer "smollm". transformers (5.24) does not know the name when it reads a GGUF
    file, and leaves digits with the space before them; the model's tokenizer.json takes them apart.
    """
    import transformers
    from tokenizers import Tokenizer as Backend
    from tokenizers import pre_tokenizers

    backend = Backend.from_str(from_file.backend_tokenizer.to_str())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=from_file.chat_template,
    )
    folder = tmp_path_factory.mktemp("smollm2")
    made.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder), folder


@pytest.mark.parametrize("text", TEXTS)
def test_ids(ours: Tokenizer, published: tuple[Any, Path], text: str) -> None:
    ids = published[0].encode(text)
    assert ours.encode(text, add_special=True) == ids
    assert ours.decode(ids, skip_special=False) == published[0].decode(ids) == text


@given(text=texts)
@settings(max_examples=500, deadline=None)
def test_ids_of_any_text(ours: Tokenizer, published: tuple[Any, Path], text: str) -> None:
    assert ours.encode(text, add_special=True) == published[0].encode(text)


@given(text=texts)
@settings(max_examples=300, deadline=None)
def test_ids_of_transformers_own_reading(ours: Tokenizer, from_file: Any, text: str) -> None:
    text = "".join("x" if c.isnumeric() else c for c in text)  # see `published`
    assert ours.encode(text, add_special=True) == from_file.encode(text)


@given(ids=st.lists(st.integers(0, 49151), max_size=40), skip=st.booleans())
@settings(max_examples=500, deadline=None)
def test_text_of_any_ids(ours: Tokenizer, published: tuple[Any, Path], ids: list[int], skip: bool) -> None:
    assert ours.decode(ids, skip) == published[0].decode(ids, skip_special_tokens=skip)


def test_the_folder(ours: Tokenizer, published: tuple[Any, Path]) -> None:
    folder = from_folder(published[1])
    assert (folder.bos_id, folder.eos_ids[0], folder.vocab_size) == (
        ours.bos_id,
        ours.eos_ids[0],
        ours.vocab_size,
    )
    for text in TEXTS:
        assert folder.encode(text, add_special=True) == ours.encode(text, add_special=True)


@pytest.mark.parametrize("generate", [True, False])
def test_chat(ours: Tokenizer, published: tuple[Any, Path], generate: bool) -> None:
    messages = [
        {"role": "user", "content": "What is <|im_end|> & é?"},
        {"role": "assistant", "content": "  An end. "},
        {"role": "user", "content": "😀\n"},
    ]
    theirs = published[0].apply_chat_template(messages, add_generation_prompt=generate, tokenize=False)
    text = render(ours, messages, add_generation_prompt=generate)
    assert text == theirs
    ids = published[0].apply_chat_template(messages, add_generation_prompt=generate, return_dict=False)
    assert ours.encode(text, add_special=False) == ids


def test_llama_cpp(ours: Tokenizer, path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for text in TEXTS:
        assert ours.encode(text, add_special=True) == theirs.tokenize(
            text.encode(), add_bos=True, special=True
        )
