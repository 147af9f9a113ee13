"""How byte-level vocabularies split text into words, by the name that `tokenizer.ggml.pre` gives it.

The names and what stands behind them are llama.cpp's (src/llama-vocab.cpp); the patterns are those of the
models' own tokenizer.json files, where the letter case of contractions is `(?i:...)`. A text is split by
each pattern in turn: what matches is a piece, and so is what lies between.

`nfc`: the model's own tokenizer normalises to NFC first. GGUF has no word for that and llama.cpp does
without; transformers, on the model's own files, does it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from forerun.errors import InputError


@dataclass(frozen=True)
class PreTokenizer:
    """How words are found.

    splits       patterns, applied in turn
    nfc          normalise first
    whole_words  a word that is a token needs no merges
    add_bos      a start token goes before a text unless the file says otherwise
    """

    splits: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|" + _SPACES
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_DIGIT = r"\p{N}"
_DIGITS = r"\p{N}{1,3}"
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
"""The pattern that `tokenizers` has built in."""

# The letters that DeepSeek LLM's tokenizer counts as such.
_DEEPSEEK_LETTERS = (
    "\\s?[A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-"
    "\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57"
    "\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-"
    "\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-"
    "\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
    "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-"
    "\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-"
    "\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+"
)
_DEEPSEEK_SYMBOLS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"

_GPT2 = PreTokenizer((GPT2_PATTERN,))
_DIGITS_GPT2 = PreTokenizer((_DIGIT, GPT2_PATTERN))
_LLAMA3 = PreTokenizer((rf"{_SUFFIX}|{_LETTERS}|{_DIGITS}|{_SYMBOLS}|{_LINES}",))
_QWEN2 = PreTokenizer((rf"{_SUFFIX}|{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_LINES}",))
_TEKKEN = PreTokenizer((rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_SYMBOLS}|{_LINES}",))
_GPT4O = PreTokenizer((rf"{_CASED[0]}{_SUFFIX}?|{_CASED[1]}{_SUFFIX}?|{_DIGITS}|{_CASED_SYMBOLS}|{_LINES}",))
_DEEPSEEK3 = PreTokenizer(
    (
        _DIGITS,
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _LINES,
    )
)
_QWEN35 = PreTokenizer(
    (
        rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}",
    )
)
_BAILING = PreTokenizer(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + _SPACES,
    )
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

_FAMILIES: tuple[tuple[PreTokenizer, str], ...] = (
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2_PATTERN, r"\p{N}+", "[0-9][0-9][0-9]")), "default"),
    (_GPT2, "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling"),
    (replace(_GPT2, nfc=True), "mpt olmo"),
    (_DIGITS_GPT2, "smollm starcoder refact codeshell exaone minerva-7b mellum2"),
    (replace(_DIGITS_GPT2, nfc=True), "command-r"),
    (
        replace(_LLAMA3, whole_words=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    (_LLAMA3, "dbrx smaug-bpe chatglm-bpe"),
    (replace(_LLAMA3, whole_words=True), "glm4 glm5"),
    (replace(_QWEN2, nfc=True), "qwen2"),
    (_QWEN2, "deepseek-r1-qwen kormo megrez f2llmv2 stablelm2 hunyuan solar-open grok-2"),
    (replace(_QWEN35, nfc=True), "qwen35"),
    (replace(_TEKKEN, whole_words=True, add_bos=True), "tekken"),
    (_GPT4O, "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (
        PreTokenizer(("[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_SYMBOLS, r"\s+$", _HAN, r"\p{N}+")),
        "deepseek-llm",
    ),
    (PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, _DIGIT)), "deepseek-coder"),
    (_DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm"),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2_PATTERN, "[0-9][0-9][0-9]")), "falcon"),
    (_BAILING, "bailingmoe bailingmoe2 llada-moe"),
    (PreTokenizer((_BLOOM,)), "poro-chat bloom gpt3-finnish"),
    (PreTokenizer((_BLOOM, _DIGIT)), "viking"),
    (PreTokenizer((rf"{_SUFFIX}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}",)), "seed-coder"),
)

PRE_TOKENIZERS = {name: family for family, names in _FAMILIES for name in names.split()}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer that a GGUF file names. InputError for a name that is not known."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise InputError(
            f"the GGUF file's pre-tokenizer {name!r} is not known; use the model's Hugging Face folder"
        ) from None
