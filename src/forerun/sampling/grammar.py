"""Grammars that an answer must follow: JSON schemas, regular expressions, Lark and GBNF grammars.

They are compiled by llguidance (https://github.com/guidance-ai/llguidance), an Earley parser over a lexer of
derivatives, which knows for any text which tokens may follow. Its masks, and nothing else of it, decide.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from forerun.errors import InputError
from forerun.sampling.params import SamplingParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NAMES = {"json_schema": "JSON schema", "regex": "regular expression", "grammar": "grammar"}

MOST_KEPT = 32
"""Compiled grammars an engine keeps."""

WHITESPACE = r"[ ]|\n{1,2}[ \t]{0,40}"
"""Between the parts of a JSON text: as people and models write it, but no endless stretch of it."""

SLICES = [rf'[^"\\\x00-\x1F\x7F]{many}' for many in ("{1,6}", "{1,12}", "+")]
"""Sets of tokens that are looked at as a whole where all of them may follow: parts of JSON strings, short
ones also for strings with a greatest length. More sets make masks faster, and take longer to prepare."""

MEANINGS = {
    "NoExtension": "no token of the vocabulary fits it",
    "ff_tokens": "it has a stretch of text without any choice that never ends, or is too long",
    "Too many items": "it can be read in too many ways at once; make it simpler",
    "too many expressions": "it is too large; let it repeat less",
    "too many states": "it is too large; let it repeat less",
}
"""What messages of llguidance with these words mean, of a limit that was exceeded."""

POSITION = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
EXCERPT = re.compile(r"\s*(\d+ \|.*|\^+\s*)$")


class Vocabulary(Protocol):
    """What a tokenizer says about its tokens."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> Collection[int]:
        """Tokens that stand for no text."""

    def token_bytes(self, token: int) -> bytes: ...

    def encode(self, text: str, add_special: bool) -> list[int]: ...


class Grammar:
    """A compiled grammar over the tokens of a vocabulary.

    Attributes:
        name: what it was written as, for messages.
        vocab_size: of the vocabulary; the bit after its tokens' in a mask says that the text may end.
    """

    def __init__(self, name: str, matcher: LLMatcher, vocab_size: int) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self._matcher = matcher

    def matcher(self) -> LLMatcher:
        """A matcher of its own, at the beginning of a text."""
        return self._matcher.deep_copy()


class Grammars:
    """Compiles grammars for a tokenizer, and keeps those used last.

    Args:
        vocabulary: the tokenizer.
        end_tokens: tokens that end a text; no grammar takes them for text.
    """

    def __init__(self, vocabulary: Vocabulary, end_tokens: Collection[int]) -> None:
        self._vocabulary = vocabulary
        self._end_tokens = end_tokens
        self._tokens: LLTokenizer | None = None
        self._kept: OrderedDict[tuple[str, str], Grammar] = OrderedDict()

    def of(self, params: SamplingParams) -> Grammar | None:
        """The grammar that is asked for, if one is.

        Raises:
            InputError: it cannot be used; the message says why.
        """
        asked = _asked(params)
        if asked is None:
            return None
        if asked not in self._kept:
            self._kept[asked] = self._compile(*asked)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(asked)
        return self._kept[asked]

    def _compile(self, kind: str, text: str) -> Grammar:
        matchers = _matchers(kind)
        if self._tokens is None:
            self._tokens = _tokens_for(self._vocabulary, self._end_tokens)
        matcher = matchers(self._tokens, _definition(kind, text), log_level=0)
        if matcher.is_error():
            raise InputError(f"the {NAMES[kind]} cannot be used: {reason(matcher.get_error())}")
        size = self._vocabulary.vocab_size
        first = _first_tokens(matcher, size)
        if not first:
            why = reason(matcher.get_error()) if matcher.is_error() else "it allows no text"
            raise InputError(f"the {NAMES[kind]} cannot be used: {why}")
        _refuse_what_exceeds_limits(kind, matcher, size)
        probe = matcher.deep_copy()
        if probe.try_consume_tokens(first) and not probe.rollback(1):
            raise InputError(
                f"the {NAMES[kind]} cannot be used: it has max_tokens= or stop=, which cannot be taken back "
                "when a draft is wrong; use lazy or suffix="
            )
        return Grammar(NAMES[kind], matcher, size)


def check_grammar(params: SamplingParams) -> None:
    """Refuse what no vocabulary makes right, before a model is read.

    Raises:
        InputError: the grammar that is asked for cannot be read.
    """
    asked = _asked(params)
    if asked is None:
        return
    kind, text = asked
    matchers = _matchers(kind)
    message = matchers.validate_grammar(_definition(kind, text), None)
    if message:
        raise InputError(f"the {NAMES[kind]} cannot be used: {reason(message)}")


def _matchers(kind: str) -> type[LLMatcher]:
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise InputError(
            f"to follow a {NAMES[kind]} the package llguidance is needed, and it cannot be imported "
            f"({error}); install it with: pip install llguidance"
        ) from error
    return LLMatcher


def reason(message: str) -> str:
    """What matters of a message of llguidance.

    Raises:
        KeyboardInterrupt: Ctrl-C came while it asked Python for something, which it takes for a fault.
    """
    if "PyErr { type: <class 'KeyboardInterrupt'>" in message:
        raise KeyboardInterrupt
    lines = [line.strip() for line in message.partition("<state>")[0].splitlines()]
    lines = [line for line in lines if line and not EXCERPT.fullmatch(line)]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    text = errors[-1] if errors else " ".join(lines)
    for sign, meaning in MEANINGS.items():
        if sign in text:
            return meaning
    return POSITION.sub(r"line \1, column \2: ", text) or "it is not understood"


def _asked(params: SamplingParams) -> tuple[str, str] | None:
    """What it is written as, and its text."""
    if params.json_schema is not None:
        schema = params.json_schema
        return "json_schema", schema if isinstance(schema, str) else _dumped(schema)
    if params.regex is not None:
        return "regex", params.regex
    if params.grammar is not None:
        return "grammar", params.grammar
    return None


def _dumped(schema: Mapping[str, object]) -> str:
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the JSON schema is no JSON: {error}") from error


def _definition(kind: str, text: str) -> str:
    """The grammar as llguidance takes it."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if kind == "grammar" and not text.strip():
        raise InputError(
            "the grammar cannot be used: it is empty; give Lark with a rule start or GBNF with a rule root"
        )
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(_schema(text))
    try:
        return any_to_lark(text)
    except Exception as error:
        raise InputError(
            f"the grammar cannot be used: {error}; it must be Lark with a rule start or GBNF with a rule root"
        ) from error


def _schema(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the JSON schema is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InputError("the JSON schema is no object; {} allows any JSON")
    if "x-guidance" not in schema:  # a schema may say itself how its JSON is to be written
        schema["x-guidance"] = {"whitespace_pattern": WHITESPACE}
    return json.dumps(schema)


def _first_tokens(matcher: LLMatcher, vocab_size: int) -> list[int]:
    """A token that a text may begin with, if there is one."""
    mask = int.from_bytes(matcher.compute_bitmask(), "little") & ((1 << vocab_size) - 1)
    return [mask.bit_length() - 1] if mask else []


def _refuse_what_exceeds_limits(kind: str, matcher: LLMatcher, vocab_size: int) -> None:
    """Say before an answer that a grammar is too much for its parser, which shows after a token or two."""
    probe = matcher.deep_copy()
    for _ in range(2):
        probe.try_consume_tokens(_first_tokens(probe, vocab_size))
    if probe.is_error() and "NoExtension" not in probe.get_error():  # which other first tokens may not meet
        raise InputError(f"the {NAMES[kind]} cannot be used: {reason(probe.get_error())}")


class _Words:
    """Tokens as llguidance wants to be told of them (see its `TokenizerWrapper`).

    The end of a text is a token of its own behind the vocabulary's, so that a mask says by itself whether the
    text may end, whichever end tokens a model has.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, end_tokens: Collection[int]) -> None:
        size = vocabulary.vocab_size
        special = {token for token in (*vocabulary.special_ids, *end_tokens) if token < size}
        self.eos_token_id = size
        self.tokens = [*map(vocabulary.token_bytes, range(size)), b"<end>"]
        self.special_token_ids = [*sorted(special), size]
        self.greedy: LLTokenizer | None = None
        self._special = special
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> Sequence[int]:
        """The tokens of a text that goes on from an earlier one, as the tokenizer would cut it."""
        data = text.encode()
        for before in ("", "\n"):  # what a tokenizer puts before a text of its own ends up before the newline
            ids = self._encode(before + text, add_special=False)
            for skip in range(min(len(ids), 4)):
                rest = ids[skip:]
                same = b"".join([self.tokens[token] for token in rest]) == data
                if same and self._special.isdisjoint(rest):
                    return rest
        assert self.greedy is not None
        return self.greedy.greedy_tokenize(text)


def _tokens_for(vocabulary: Vocabulary, end_tokens: Collection[int]) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    words = _Words(vocabulary, end_tokens)
    words.greedy = LLTokenizer(TokenizerWrapper(words), slices=SLICES)
    return words.greedy
