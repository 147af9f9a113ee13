"""Texts that tokenizers trip over, and small vocabularies in the shape of GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = (
    "",
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    "\n\n\n  \t x",
    "Hello world",
    " Hello  world ",
    "   leading",
    "trailing   ",
    "def f(x):\n    if x:\n\treturn  x**2  # hi\n\n\n",
    "for(int i=0;i<10;++i){a[i]+=1.5e-3;}",
    "1234567 89 0 007 \u00bd \u00b2 \u2167 \u0663\u0664\u0665",
    "  1   22    333\nx  1\n  2\n\t3",
    "I'm you're WE'LL don't '\u017f it'S",
    "日本語のテキスト、中文字符。한국어 텍스트!",
    "Привет, мир! Ελληνικά עברית العربية हिन्दी ภาษาไทย ខ្មែរ",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ✅🚀🦙",
    "e\u0301 \u00e9 \ufb01 \u212b A\u030a",
    "a\u00a0b\u2003c\u3000d\u200be",
    "\u0000\u0001\u007f\u0080\ufeff",
    '{"a": [1, 2.50, null], "b": "\\u00e9"}',
    "!!!???...---===",
    "path.\n/etc;\r\n//x =/= /",
    "naïve café – “quotes” … €",
    "a" * 200,
    " \n \n",
    "\u2581under\u2581 \u2581",
    "\U0010ffff \ud7ff \ue000",
)
CORPUS = [
    *TEXTS,
    *(f"the {word} of that {word}s in it's  {i}" for i in range(120) for word in ("cat", "run", "日本")),
]

PIECES = [
    *"aeiotnr  \n\t.,'\"019_-(){}<>|/",
    "the",
    "  ",
    "é",
    "e\u0301",
    "ß",
    "б",
    "你",
    "日本",
    "한",
    "ع",
    "😀",
    "\u200d",
]
texts = st.one_of(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), st.text(max_size=25))
"""Texts of the kinds above, and any other."""

Metadata = dict[str, object]


def train(pre_tokenizer: pre_tokenizers.PreTokenizer, size: int = 500) -> Tokenizer:
    """A byte-level BPE tokenizer as published models have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level_metadata(tokenizer: Tokenizer, pre: str) -> Metadata:
    """The metadata that a converter would write for a tokenizer of `train`."""
    tokens = spellings(tokenizer)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "tokenizer.ggml.merges": merges(tokenizer),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
    }


def spellings(tokenizer: Tokenizer) -> list[str]:
    return sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)


def merges(tokenizer: Tokenizer) -> list[str]:
    return [" ".join(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def sentencepiece_tokenizer(prefix: bool = True, size: int = 700) -> Tokenizer:
    """A tokenizer.json like Llama 2's: SentencePiece BPE with bytes for what has no piece."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # no merges across spaces
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        limit_alphabet=60,
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    pairs = [(left, right) for left, right in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    marks = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def sentencepiece_metadata(tokens: Sequence[str], prefix: bool = True) -> Metadata:
    """Metadata with `tokens` of `sentencepiece_tokenizer`, the earlier of them with the better score."""
    types = [2, 3, 3] + [6] * 256
    types += [1] * (len(tokens) - len(types))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": [-float(max(0, i - 258)) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
