"""The front door over a tiny model: texts, tokens, origins, log-probabilities and endings belong together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import forerun
from conformance.tiny_model import TinyBackend
from forerun import InputError, Result, SamplingParams
from forerun.api import Engine
from forerun.text import Tokenizer
from forerun.text.pieces import BYTE_OF, PieceRules

END = 23
PIECES = ["a", "b", "c", "ab", " ", " c", "é", "é", "好", "好", "好", "bc", "abc", "\n"]


def tiny_tokenizer() -> Tokenizer:
    """24 byte-level tokens, some of them parts of characters, the last one an end token."""
    spell = {byte: character for character, byte in BYTE_OF.items()}
    parts = [piece.encode() for piece in PIECES]
    parts[7], parts[9], parts[10] = "é".encode()[:1], "好".encode()[:2], "好".encode()[2:]
    parts[8] = "é".encode()[1:]
    parts += [bytes([byte]) for byte in b"defghijkl"]
    vocab = {"".join(spell[byte] for byte in part): token for token, part in enumerate(parts)}
    assert len(vocab) == END
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab | {"<end>": END}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return Tokenizer(
        backend=backend,
        rules=PieceRules(byte_level=True),
        vocab_size=24,
        bos_id=None,
        eos_ids=(END,),
        special_ids=frozenset([END]),
        added={END: "<end>"},
        prefix=(),
        suffix=(),
        special_tokens={},
        chat_templates={"default": "{% for m in messages %}{{ m.content }}{% endfor %} "},
    )


TOKENIZER = tiny_tokenizer()
ENGINE = Engine(TinyBackend(sharpness=4.0), TOKENIZER, context=80)

many = settings(max_examples=60, deadline=None)
params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 40),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    seed=st.integers(0, 99),
    min_tokens=st.sampled_from([0, 5]),
    stop=st.lists(st.sampled_from(["a", "bc", "abc", "é", "\n", "好a", "cab"]), max_size=2).map(tuple),
    logprobs=st.just(3),
)
prompts = st.text(alphabet="abc é", min_size=1, max_size=10)


@many
@given(prompt=prompts, params=params)
def test_stream_joined_is_the_answer(prompt: str, params: SamplingParams) -> None:
    plain = ENGINE.generate(prompt, params, drafter="none")
    stream = ENGINE.stream(prompt, params)
    increments = list(stream)
    result = stream.result
    assert (result.text, result.tokens, result.finish_reason) == (
        plain.text,
        plain.tokens,
        plain.finish_reason,
    )
    assert result.logprobs == plain.logprobs
    assert "".join(part.text for part in increments) == result.text
    assert [token for part in increments for token in part.tokens] == result.tokens
    assert [origin for part in increments for origin in part.origins] == result.origins
    assert [entry for part in increments for entry in part.logprobs] == result.logprobs
    assert [entry.token for entry in result.logprobs] == result.tokens
    assert set(result.origins) <= {"lookup", "target"}
    assert len(result.origins) == len(result.tokens)
    assert set(plain.origins) <= {"target"}
    assert result.prompt_tokens == len(TOKENIZER.encode(prompt, add_special=True))
    consistent(result, params)


def consistent(result: Result, params: SamplingParams) -> None:
    """Text and tokens end together; nothing of a stop string is left."""
    whole = TOKENIZER.decode(result.tokens)
    if result.finish_reason == "length":
        assert len(result.tokens) == params.max_tokens
        assert result.text == whole
    if params.min_tokens == 0:
        assert not any(stop in result.text for stop in params.stop)
    if result.finish_reason == "stop" and result.tokens[-1:] != [END]:
        cut = whole[len(result.text) :]
        assert whole.startswith(result.text)
        assert any(stop.startswith(cut) for stop in params.stop) or "�" in cut
    for entry in result.logprobs:
        assert entry.logprob <= 0
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)
        assert len(entry.top) == 3


def test_context_ends_cleanly() -> None:
    small = Engine(ENGINE.backend, TOKENIZER, context=9)
    params = SamplingParams(banned_tokens=(END,))
    for drafter in ("none", "lookup"):
        result = small.generate("ababab", params, drafter=drafter)
        assert result.finish_reason == "context"
        assert len(result.tokens) == 3


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [("", "empty"), ("a" * 80, "context"), ("a" * 500, "context")],
)
def test_prompts_that_cannot_be(prompt: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ENGINE.generate(prompt)


def test_token_ids_of_no_token() -> None:
    with pytest.raises(InputError, match="vocabulary"):
        ENGINE.stream_tokens([1, 24])


def test_unknown_drafters() -> None:
    with pytest.raises(InputError, match="lookup"):
        ENGINE.generate("a", drafter="medium")
    with pytest.raises(InputError, match="auto"):
        Engine(ENGINE.backend, TOKENIZER, context=9, drafter="medium")


def test_a_stream_can_be_left() -> None:
    with ENGINE.stream("abc", SamplingParams(max_tokens=40, banned_tokens=(END,))) as stream:
        first = next(stream)
        assert first.tokens
    assert stream.result.finish_reason is None
    assert stream.result.tokens == first.tokens
    assert list(stream) == []


def test_streams_may_be_interleaved() -> None:
    one, two = (SamplingParams(max_tokens=20, temperature=1.0, seed=seed) for seed in (1, 2))
    streams = [ENGINE.stream("abc", one), ENGINE.stream("cba", two)]
    texts = ["", ""]
    for _ in range(25):
        for place, stream in enumerate(streams):
            texts[place] += "".join(part.text for part in [next(stream, None)] if part)
    assert texts == [ENGINE.generate("abc", one).text, ENGINE.generate("cba", two).text]


def test_seeds() -> None:
    params = SamplingParams(max_tokens=30, temperature=1.5, banned_tokens=(END,))
    one, two = ENGINE.generate("abc", params), ENGINE.generate("abc", params)
    assert one.seed != two.seed
    assert one.tokens != two.tokens
    assert ENGINE.generate("abc", replace(params, seed=one.seed)).tokens == one.tokens


def test_messages_go_through_the_template() -> None:
    stream = ENGINE.stream([{"role": "user", "content": "ab"}], SamplingParams(max_tokens=1))
    list(stream)
    assert stream.result.prompt_tokens == len(TOKENIZER.encode("ab ", add_special=False))


def test_progress_while_the_prompt_is_read() -> None:
    heard: list[tuple[int, int]] = []
    list(ENGINE.stream("abcabc", SamplingParams(max_tokens=1), progress=lambda *pair: heard.append(pair)))
    length = len(TOKENIZER.encode("abcabc", add_special=True)) - 1
    assert heard == [(length, length)]


def test_what_the_package_gives() -> None:
    for name in forerun.__all__:
        assert getattr(forerun, name).__doc__
    assert not hasattr(forerun, "everything")
