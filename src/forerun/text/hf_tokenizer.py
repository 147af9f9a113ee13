"""A tokenizer out of a Hugging Face folder.

tokenizer.json             the tokenizer itself, read by `tokenizers`
tokenizer_config.json      names of special tokens, further added tokens, chat templates
special_tokens_map.json    the same names, in older folders
chat_template.jinja, additional_chat_templates/*.jinja, chat_template.json    other places for templates
config.json, generation_config.json    the ids that end a text

Where these disagree the rules are those of transformers (5.24): what goes around a text is up to
tokenizer.json alone, templates in files of their own come before those in tokenizer_config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.errors import InputError
from forerun.text.guard import refused
from forerun.text.pieces import rules_from_decoder
from forerun.text.reading import read_text
from forerun.text.tokenizer import Tokenizer
from forerun.weights.files import LARGEST_JSON, read_json

if TYPE_CHECKING:
    import tokenizers

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")


def from_folder(path: Path) -> Tokenizer:
    """The tokenizer in a folder. InputError, one line, when it is missing or cannot be used."""
    backend = _read_backend(path / "tokenizer.json")
    config = _read_optional(path / "tokenizer_config.json")
    names = _special_tokens({**_read_optional(path / "special_tokens_map.json"), **config})
    _add_tokens(backend, config, names, path / "tokenizer_config.json")
    with refused(f"{path / 'tokenizer.json'} cannot be used"):
        rules = rules_from_decoder(json.loads(backend.decoder.__getstate__()) if backend.decoder else None)
        added = backend.get_added_tokens_decoder()
        vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        prefix, suffix = _around(backend)
    ids = {name: i for name, text in names.items() if (i := backend.token_to_id(text)) is not None}
    ends = [*([ids["eos_token"]] if "eos_token" in ids else []), *_declared_ends(path)]
    return Tokenizer(
        backend=backend,
        rules=rules,
        vocab_size=vocab_size,
        bos_id=ids.get("bos_token"),
        eos_ids=tuple(dict.fromkeys(ends)),
        special_ids=frozenset([*(i for i, token in added.items() if token.special), *ids.values()]),
        added={i: token.content for i, token in added.items()},
        prefix=prefix,
        suffix=suffix,
        special_tokens=names,
        chat_templates=_chat_templates(path, config),
    )


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend

    if not path.is_file():
        raise InputError(
            f"{path} is missing; write it with transformers (AutoTokenizer.from_pretrained, save_pretrained) "
            "or use a GGUF file of the model"
        )
    text = _read_file(path)
    with refused(f"{path} is not a tokenizer that can be read; fetch it again"):
        backend = Backend.from_str(text)
        backend.no_truncation()
        backend.no_padding()
        return backend


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_JSON + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > LARGEST_JSON:
        raise InputError(f"{path} is larger than {LARGEST_JSON >> 20} MB, too large for a file of its kind")
    try:
        return read_text(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read_optional(path: Path) -> dict[str, object]:
    return read_json(path) if path.is_file() else {}


def _text_of(token: object) -> str | None:
    """The text of a token that a configuration gives as text or as an object with "content"."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) and content else None


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """Name -> text of the named special tokens, those named by the model itself ("image_token") too."""
    keys = [*NAMES, *(key for key in config if key.endswith("_token") and not key.startswith("add_"))]
    return {key: text for key in keys if (text := _text_of(config.get(key))) is not None}


def _add_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, object], names: Mapping[str, str], source: Path
) -> None:
    """Make the tokens that the configuration declares added tokens, where tokenizer.json has not done so."""
    from tokenizers import AddedToken

    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder", {})
    if not isinstance(declared, Mapping):
        raise InputError(f"{source}: added_tokens_decoder is not an object; fetch the file again")
    with refused(f"{source}: added_tokens_decoder does not fit tokenizer.json; fetch both again"):
        tokens = (
            sorted((int(i), token) for i, token in declared.items()) if isinstance(declared, Mapping) else []
        )
        for i, token in tokens:
            text = _text_of(token)
            if text is None or text in known:
                continue
            known.add(text)
            flags = {flag: bool(token.get(flag)) for flag in FLAGS}
            backend.add_tokens([AddedToken(text, **flags)])
            if backend.token_to_id(text) != i:
                raise ValueError(f"the token {text!r} cannot have the id {i}")
        others = {text for text in names.values() if backend.token_to_id(text) is not None} - known
        backend.add_special_tokens(
            [AddedToken(text, special=True, normalized=False) for text in sorted(others)]
        )


def _around(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text."""
    probe = "a"
    bare = backend.encode(probe, add_special_tokens=False).ids
    full = backend.encode(probe, add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise InputError("its post-processor changes the tokens of a text, which forerun does not support")


def _declared_ends(path: Path) -> list[int]:
    """The ids of the model's configurations that end a text. Padding rows may have ids no token has."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_optional(path / name).get("eos_token_id")
        for i in value if isinstance(value, list) else [] if value is None else [value]:
            if isinstance(i, bool) or not isinstance(i, int) or i < 0:
                raise InputError(
                    f"{path / name}: eos_token_id is {value!r}, not a token id or a list of them"
                )
            found.append(i)
    return found


def _chat_templates(path: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Name -> source of the chat templates."""
    files = {"default": path / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    templates = {name: _read_file(file) for name, file in files.items() if file.is_file()}
    if templates:
        return templates
    source = config.get("chat_template", _read_optional(path / "chat_template.json").get("chat_template"))
    if source is None:
        return {}
    if isinstance(source, str):
        return {"default": source}
    if isinstance(source, list):
        source = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, Mapping)}
    texts = [text for pair in source.items() for text in pair] if isinstance(source, Mapping) else [None]
    if not isinstance(source, Mapping) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{path}: its chat_template is neither a text nor a list of named texts")
    return {str(name): str(text) for name, text in source.items()}
