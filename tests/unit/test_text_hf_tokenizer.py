"""Tokenizers out of Hugging Face folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from text_samples import CORPUS, TEXTS, sentencepiece_tokenizer, texts, train
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from forerun.errors import InputError
from forerun.text import from_folder
from forerun.text.tokenizer import Tokenizer as Ours


def byte_level() -> Tokenizer:
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    ends = [("<|start|>", 1), ("<|end|>", 0)]
    tokenizer.post_processor = processors.TemplateProcessing("<|start|> $A", special_tokens=ends)
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "sentencepiece": sentencepiece_tokenizer,
    "sentencepiece without prefix": lambda: sentencepiece_tokenizer(False),
    "unigram": unigram,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, Ours]]:
    made = {}
    for kind, make in KINDS.items():
        path = tmp_path_factory.mktemp(kind)
        file = str(path / "tokenizer.json")
        make().save(file)  # which rounds a Unigram model's scores, so `tokenizers` reads it again too
        made[kind] = (Tokenizer.from_file(file), from_folder(path))
    return made


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts)
@settings(max_examples=50, deadline=None)
def test_ids_and_text_are_those_of_tokenizers(
    folders: dict[str, tuple[Tokenizer, Ours]], kind: str, text: str
) -> None:
    published, ours = folders[kind]
    for special in (True, False):
        ids = published.encode(text, add_special_tokens=special).ids
        assert ours.encode(text, add_special=special) == ids
    for skip in (True, False):
        assert ours.decode(ids, skip) == published.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", KINDS)
def test_trying_texts(folders: dict[str, tuple[Tokenizer, Ours]], kind: str) -> None:
    published, ours = folders[kind]
    for text in TEXTS:
        ids = published.encode(text).ids
        assert ours.encode(text, add_special=True) == ids
        assert ours.decode(ids) == published.decode(ids)


@cache
def saved() -> str:
    return byte_level().to_str()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(saved(), encoding="utf-8")
    return tmp_path


def put(folder: Path, name: str, value: object) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    text = value if isinstance(value, str) else json.dumps(value)
    (folder / name).write_text(text, encoding="utf-8")


def test_a_bare_tokenizer(folder: Path) -> None:
    ours = from_folder(folder)
    assert (ours.vocab_size, ours.bos_id, ours.eos_ids, ours.prefix, ours.suffix) == (500, None, (), (1,), ())
    assert (ours.special_tokens, ours.chat_template) == ({}, None)
    assert ours.is_special(0)
    assert not ours.is_special(5)


def test_special_tokens_and_ends(folder: Path) -> None:
    put(folder, "special_tokens_map.json", {"bos_token": "<|end|>", "pad_token": {"content": "<|start|>"}})
    put(
        folder,
        "tokenizer_config.json",
        {
            "bos_token": {"content": "<|start|>"},
            "eos_token": "the",
            "add_bos_token": True,
            "image_token": "<img>",
        },
    )
    put(folder, "generation_config.json", {"eos_token_id": [0, 7]})
    put(folder, "config.json", {"eos_token_id": 7})
    ours = from_folder(folder)
    the = ours.eos_ids[0]
    assert ours.piece(the) == "the"
    assert (ours.bos_id, ours.eos_ids) == (1, (the, 0, 7))
    assert ours.special_tokens == {
        "bos_token": "<|start|>",
        "eos_token": "the",
        "pad_token": "<|start|>",
        "image_token": "<img>",
    }
    assert ours.is_special(the)  # named, so it is special, and it is matched in text
    assert ours.encode("xthex", add_special=False)[1] == the
    assert ours.prefix == (1,)  # what goes around a text is up to tokenizer.json


def test_a_named_token_is_special_whatever_its_flag(folder: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens(["<turn>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    put(folder, "tokenizer_config.json", {"eos_token": "<turn>"})
    ours = from_folder(folder)
    assert ours.eos_ids == (500,)
    assert ours.is_special(500)


def test_further_added_tokens(folder: Path) -> None:
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = {
        "501": {"content": "<tool>", "special": False, **flags},
        "500": {"content": "<é>", "special": True, **flags},
    }
    put(folder, "tokenizer_config.json", {"added_tokens_decoder": added})
    ours = from_folder(folder)
    assert ours.vocab_size == 502
    assert ours.encode("<é><tool>", add_special=False) == [500, 501]
    assert ours.decode([500, 501]) == "<tool>"
    assert ours.decode([500, 501], skip_special=False) == "<é><tool>"
    put(folder, "tokenizer_config.json", {"added_tokens_decoder": {"600": added["501"]}})
    with pytest.raises(InputError, match="cannot have the id 600"):
        from_folder(folder)


def test_truncation_and_padding_are_not_wanted(folder: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    ours = from_folder(folder)
    assert ours.encode("a b c d e f", True) == [
        1,
        *byte_level().encode("a b c d e f", add_special_tokens=False).ids,
    ]
    assert len(ours.encode("a", True)) == 2


def test_what_goes_around_a_text(folder: Path) -> None:
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        "<|start|> $A <|end|>", special_tokens=[("<|start|>", 1), ("<|end|>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    ours = from_folder(folder)
    assert (ours.prefix, ours.suffix) == ((1,), (0,))
    assert ours.encode("", add_special=True) == [1, 0]


@pytest.mark.parametrize(
    ("files", "templates"),
    [
        ({"tokenizer_config.json": {"chat_template": "a"}}, {"default": "a"}),
        ({"chat_template.json": {"chat_template": "b"}}, {"default": "b"}),
        ({"tokenizer_config.json": {"chat_template": "a"}, "chat_template.jinja": "é"}, {"default": "é"}),
        (
            {"chat_template.jinja": "c", "additional_chat_templates/tool_use.jinja": "d"},
            {"default": "c", "tool_use": "d"},
        ),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "default", "template": "e"}, {"name": "rag", "template": "f"}]
                }
            },
            {"default": "e", "rag": "f"},
        ),
        ({}, {}),
    ],
)
def test_chat_templates(folder: Path, files: dict[str, object], templates: dict[str, str]) -> None:
    for name, value in files.items():
        put(folder, name, value)
    assert from_folder(folder).chat_templates == templates


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json is missing; .*save_pretrained"):
        from_folder(tmp_path)


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(InputError, match="is missing"):
        from_folder(tmp_path)


NO_VOCABULARY: dict[str, object] = {
    "version": "1.0",
    "model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]},
}
NO_DECODER: dict[str, object] = {
    "version": "1.0",
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    "decoder": None,
}
BAD_REGEX: dict[str, object] = {
    **NO_DECODER,
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False},
    "added_tokens": [],
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        "\x00" * 100,
        json.dumps(NO_VOCABULARY),
        json.dumps(NO_DECODER),
        json.dumps(BAD_REGEX),
        saved()[:-2000],
    ],
)
def test_garbage(tmp_path: Path, text: str) -> None:
    put(tmp_path, "tokenizer.json", text)
    with pytest.raises(InputError) as caught:
        from_folder(tmp_path)
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InputError, match="not valid UTF-8"):
        from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", []),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"500": "<new>"}}),
        ("tokenizer_config.json", {"chat_template": 5}),
        ("tokenizer_config.json", {"chat_template": [{"name": 1, "template": "a"}]}),
        ("special_tokens_map.json", "nonsense"),
        ("generation_config.json", {"eos_token_id": "2"}),
        ("generation_config.json", {"eos_token_id": [1, -2]}),
        ("config.json", {"eos_token_id": True}),
    ],
)
def test_damaged_configurations(folder: Path, name: str, value: object) -> None:
    put(folder, name, value)
    with pytest.raises(InputError) as caught:
        from_folder(folder)
    assert "\n" not in str(caught.value)


def test_an_added_token_that_takes_no_further_part(folder: Path) -> None:
    """A token that is named but in no vocabulary has no id."""
    put(folder, "tokenizer_config.json", {"pad_token": "[PAD]", "eos_token": None})
    ours = from_folder(folder)
    assert ours.vocab_size == 500
    assert ours.special_tokens == {"pad_token": "[PAD]"}
    assert AddedToken("[PAD]").content not in ours.added.values()
