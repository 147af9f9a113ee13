"""A tokenizer out of a GGUF file's metadata (the keys `tokenizer.ggml.*`).

`tokenizer.ggml.model` names one of two kinds:

gpt2    byte-level BPE: tokens, merges, and the name of the pre-tokenizer that splits words
llama   SentencePiece BPE: tokens and scores. Its merges are not in the file: each way to cut a token into
        two tokens is one, and the token with the higher score is made first.

Tokens have types. Control tokens (and the unknown token) are matched in text before anything else and
stand for no text; user-defined ones are matched and stand for theirs; a byte token ("<0x0A>") is never
matched in text, only its byte is. This is what transformers and llama.cpp do.

A SentencePiece vocabulary's space prefix is put before every stretch of text between added tokens, spaces
or not. So do SentencePiece, llama.cpp and the tokenizer.json files of Llama 2, Mistral and Phi-3;
transformers' own GGUF reader (5.24) drops it where the text begins with a space or follows a token.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from forerun.errors import InputError
from forerun.text.guard import refused
from forerun.text.pieces import SPACE, PieceRules
from forerun.text.pretokenizers import GPT2_PATTERN, PreTokenizer, pre_tokenizer
from forerun.text.tokenizer import Tokenizer
from forerun.words import counted

if TYPE_CHECKING:
    import tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
LONGEST_PIECE = 256  # characters; published pieces stay far below, and cutting one is quadratic in its length

# Texts of tokens that end a turn or a text: files often declare only one of those their model uses.
END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "</s>", "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip


def from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """The tokenizer that GGUF key-values describe. InputError, one line, for anything they get wrong."""
    keys = _Keys(metadata)
    with _no_collections():
        return _assemble(keys, _kind(keys))


@contextmanager
def _no_collections() -> Iterator[None]:
    """A hundred thousand small objects are made, none of them garbage: looking for some takes a quarter of
    the time."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def _kind(keys: _Keys) -> _Kind:
    model = keys.text("tokenizer.ggml.model")
    if model == "gpt2":
        return _byte_level(keys)
    if model == "llama":
        return _sentencepiece(keys)
    if model is None:
        raise InputError("the GGUF file has no tokenizer (tokenizer.ggml.model is missing); use one that has")
    raise InputError(f"the GGUF file's tokenizer is of the kind {model!r}; forerun reads 'gpt2' and 'llama'")


@dataclass(frozen=True)
class _Kind:
    """What differs between the two kinds."""

    backend: tokenizers.Tokenizer
    rules: PieceRules
    tokens: list[str]
    types: np.ndarray  # int [vocabulary]
    defaults: Mapping[str, int]  # ids of special tokens where the file is silent
    add_bos: bool


def _damaged(key: str, how: str) -> InputError:
    return InputError(f"the GGUF file's {key} {how}; fetch or convert the model again")


class _Keys:
    """Metadata, read with its types checked."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self.metadata = metadata

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, str):
            raise _damaged(key, "is not a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(key, default)
        if not isinstance(value, (bool, np.bool_)):
            raise _damaged(key, "is not true or false")
        return bool(value)

    def token_id(self, name: str, size: int) -> int | None:
        """The id under tokenizer.ggml.{name}_token_id."""
        key = f"tokenizer.ggml.{name}_token_id"
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < size:
            raise _damaged(key, f"is {value!r} and the vocabulary has {counted(size, 'token')}")
        return int(value)

    def strings(self, key: str, fewest: int = 1) -> list[str]:
        value = self.metadata.get(key)
        if not isinstance(value, (list, tuple, np.ndarray)) or len(value) < fewest:
            raise _damaged(key, "is missing or not a list of texts")
        kinds = set(map(type, value))
        if kinds == {str} and isinstance(value, list):
            return value
        try:
            strings = [v.decode() if isinstance(v, bytes) else v for v in value]
        except UnicodeDecodeError as error:
            raise _damaged(key, "is not valid UTF-8") from error
        if not all(issubclass(kind, str) for kind in set(map(type, strings))):
            raise _damaged(key, "is missing or not a list of texts")
        return strings

    def numbers(self, key: str, size: int) -> np.ndarray | None:
        """The numbers under `key`, [size], one for each token; None when the key is missing."""
        value = self.metadata.get(key)
        if value is None:
            return None
        numbers = np.asarray(value) if isinstance(value, (Sequence, np.ndarray)) else np.empty(0, object)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iuf" or np.isnan(numbers).any():
            raise _damaged(key, "is not a list of numbers")
        if len(numbers) != size:
            raise _damaged(key, f"has {counted(len(numbers), 'value')} for {counted(size, 'token')}")
        return numbers


def _vocabulary(keys: _Keys) -> tuple[list[str], np.ndarray, dict[str, int]]:
    """Tokens, their types, and the id of each token."""
    tokens = keys.strings("tokenizer.ggml.tokens")
    if "" in tokens:
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    types = keys.numbers("tokenizer.ggml.token_type", len(tokens))
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise _damaged("tokenizer.ggml.tokens", f"has {twice!r} twice")
    return tokens, np.full(len(tokens), NORMAL) if types is None else types, ids


def _byte_level(keys: _Keys) -> _Kind:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    tokens, types, ids = _vocabulary(keys)
    words = pre_tokenizer(keys.text("tokenizer.ggml.pre") or "default")
    halves = map(str.partition, keys.strings("tokenizer.ggml.merges", fewest=0), repeat(" "))
    merges = [(left, right) for left, _, right in halves]
    with refused("the GGUF file's tokenizer.ggml.merges do not fit its tokens; convert the model again"):
        backend = Backend(models.BPE(vocab=ids, merges=merges, ignore_merges=words.whole_words))
    _split_words(backend, words)
    return _Kind(backend, PieceRules(byte_level=True), tokens, types, {}, words.add_bos)


def _split_words(backend: tokenizers.Tokenizer, words: PreTokenizer) -> None:
    from tokenizers import Regex, normalizers, pre_tokenizers

    *splits, last = words.splits
    if last != GPT2_PATTERN:
        splits.append(last)
    steps: list[pre_tokenizers.PreTokenizer] = []
    steps += [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=last == GPT2_PATTERN))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if words.nfc:
        backend.normalizer = normalizers.NFC()


def _sentencepiece(keys: _Keys) -> _Kind:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, normalizers

    tokens, types, ids = _vocabulary(keys)
    scores = keys.numbers("tokenizer.ggml.scores", len(tokens))
    if scores is None:
        raise _damaged("tokenizer.ggml.scores", "is missing")
    defaults = {name: i for name, i in (("unknown", 0), ("bos", 1), ("eos", 2)) if i < len(tokens)}
    unknown = keys.token_id("unknown", len(tokens))
    unknown_piece = tokens[defaults["unknown"] if unknown is None else unknown]
    merges = _merges_by_score(tokens, types, scores, ids)
    with refused("the GGUF file's tokens cannot be used as a vocabulary; convert the model again"):
        backend = Backend(
            models.BPE(vocab=ids, merges=merges, unk_token=unknown_piece, fuse_unk=True, byte_fallback=True)
        )
    prefix = keys.flag("tokenizer.ggml.add_space_prefix", True)
    marks: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", SPACE)])
    rules = PieceRules(byte_fallback=True, replacements=((SPACE, " "),), strip=int(prefix))
    return _Kind(backend, rules, tokens, types, defaults, add_bos=True)


def _merges_by_score(
    tokens: list[str], types: np.ndarray, scores: np.ndarray, ids: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Every cut of a normal token in two, best score first; ties as transformers' `generate_merges`."""
    merges: list[tuple[str, str]] = []
    rank: list[tuple[float, int, int]] = []  # the score, the lengths of the two parts
    values = scores.tolist()
    for i in np.flatnonzero(types == NORMAL).tolist():
        token, score = tokens[i], values[i]
        length = len(token)
        for at in range(1, length if length <= LONGEST_PIECE else 0):
            if (left := token[:at]) in ids and (right := token[at:]) in ids:
                merges.append((left, right))
                rank.append((score, at, length - at))
    columns = np.array(rank, np.float64).reshape(-1, 3)
    return [merges[i] for i in np.lexsort(-columns.T[::-1]).tolist()]


def _assemble(keys: _Keys, kind: _Kind) -> Tokenizer:
    """Add the special tokens, and what the file says about using them."""
    from tokenizers import AddedToken

    tokens, types = kind.tokens, kind.types
    special = np.flatnonzero((types == CONTROL) | (types == UNKNOWN)).tolist()
    plain = np.flatnonzero(types == USER_DEFINED).tolist()
    kind.backend.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in special])
    kind.backend.add_tokens([AddedToken(tokens[i], special=False, normalized=False) for i in plain])

    declared = {name: keys.token_id(name, len(tokens)) for name in ("bos", "eos", "unknown", "eot", "eom")}
    named = dict(kind.defaults) | {name: i for name, i in declared.items() if i is not None}
    bos, eos = named.get("bos"), named.get("eos")
    ends = [named[name] for name in ("eos", "eot", "eom") if name in named]
    added = {i: tokens[i] for i in (*special, *plain)}
    ids = {text: i for i, text in added.items()}
    ends += [ids[text] for text in END_TEXTS if text in ids]
    add_bos = keys.flag("tokenizer.ggml.add_bos_token", kind.add_bos)
    add_eos = keys.flag("tokenizer.ggml.add_eos_token", False)
    names = {"bos_token": bos, "eos_token": eos, "unk_token": named.get("unknown")}
    return Tokenizer(
        backend=kind.backend,
        rules=kind.rules,
        vocab_size=len(tokens),
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(ends)),
        special_ids=frozenset([*special, *ends, *([] if bos is None else [bos])]),
        added=added,
        prefix=(bos,) if add_bos and bos is not None else (),
        suffix=(eos,) if add_eos and eos is not None else (),
        special_tokens={name: tokens[i] for name, i in names.items() if i is not None},
        chat_templates=_chat_templates(keys),
    )


def _chat_templates(keys: _Keys) -> dict[str, str]:
    sources = {
        "default": keys.text("tokenizer.chat_template"),
        "tool_use": keys.text("tokenizer.chat_template.tool_use"),
    }
    return {name: source for name, source in sources.items() if source}
