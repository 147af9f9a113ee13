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
from forerun import engine as engine_module
from forerun.engine import Engine
from forerun.text import Tokenizer
from forerun.text.pieces import BYTE_OF, PieceRules

END = 23
PIECES = ["a", "b", "c", "ab", " ", " c", "é", "é", "好", "好", "好", "bc", "abc", "\n"]


def tiny_tokenizer(renamed: dict[str, str] | None = None) -> Tokenizer:
    """24 byte-level tokens, some of them parts of characters, the last one an end token."""
    spell = {byte: character for character, byte in BYTE_OF.items()}
    parts = [piece.encode() for piece in PIECES]
    parts[7], parts[9], parts[10] = "é".encode()[:1], "好".encode()[:2], "好".encode()[2:]
    parts[8] = "é".encode()[1:]
    parts += [bytes([byte]) for byte in b"defghijkl"]
    parts = [(renamed or {}).get(part.decode(errors="replace"), "").encode() or part for part in parts]
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


def load_other(name: str) -> tuple[TinyBackend, Tokenizer]:
    return TinyBackend(sharpness=4.0, seed=len(name)), TOKENIZER


ENGINE = Engine(TinyBackend(sharpness=4.0), TOKENIZER, context=80, load_draft=load_other)
DRAFTERS = (
    "auto",
    "none",
    "lookup",
    "suffix",
    "draft:other",
    "suffix,draft:other",
    "lookup,suffix",
)

many = settings(max_examples=30, deadline=None)
params = st.builds(
    SamplingParams,
    max_tokens=st.integers(5, 40),
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
    assert set(result.origins) <= {"suffix", "target"}
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
    for name, problem in (
        ("medium", "lookup"),
        ("", "auto"),
        ("none,lookup", "no other"),
        ("draft:", "needs a model"),
        ("skip:0", "layers"),
        ("skip:2", "from 1 to 1"),
        ("skip:x", "layers"),
        ("skip", "first layers"),
    ):
        with pytest.raises(InputError, match=problem):
            ENGINE.check_drafter(name)
        with pytest.raises(InputError, match=problem):
            Engine(ENGINE.backend, TOKENIZER, context=9, drafter=name)
    with pytest.raises(InputError, match=r"forerun\.load"):
        Engine(ENGINE.backend, TOKENIZER, context=9, drafter="draft:other")


def test_a_draft_model_of_another_vocabulary() -> None:
    swapped = tiny_tokenizer({"a": "b", "b": "a"})
    other = Engine(ENGINE.backend, TOKENIZER, context=9, load_draft=lambda name: (ENGINE.backend, swapped))
    with pytest.raises(InputError, match=r"2 of 24 ids .*the first, 0, is 'b' there and 'a' here"):
        other.check_drafter("draft:x")


@many
@given(prompt=prompts, params=params, name=st.sampled_from(DRAFTERS))
def test_every_drafter_by_name(prompt: str, params: SamplingParams, name: str) -> None:
    plain = ENGINE.generate(prompt, params, drafter="none")
    result = ENGINE.generate(prompt, params, drafter=name)
    assert (result.text, result.tokens, result.logprobs) == (plain.text, plain.tokens, plain.logprobs)
    assert set(result.origins) <= {"target", "lookup", "suffix", "draft"}


@many
@given(
    asked=st.lists(st.tuples(prompts, params, st.sampled_from(DRAFTERS)), min_size=2, max_size=4),
    longer=st.booleans(),
)
def test_an_answer_may_take_over_the_cache_of_another(
    asked: list[tuple[str, SamplingParams, str]], longer: bool
) -> None:
    """Whatever the two have in common, and whoever drafted for either."""
    last = None
    for prompt, chosen, drafter in asked:
        text = asked[0][0] + prompt if longer else prompt
        alone = ENGINE.generate(text, chosen, drafter=drafter)
        with ENGINE.stream_tokens(ENGINE.encode(text), chosen, drafter=drafter, after=last) as last:
            for _ in last:
                pass
        found = last.result
        assert (found.text, found.tokens, found.logprobs) == (alone.text, alone.tokens, alone.logprobs)
        assert found.report.target_forwards == alone.report.target_forwards


@many
@given(
    prompts=st.lists(prompts, max_size=4), several=st.lists(params, min_size=4, max_size=4), one=st.booleans()
)
def test_batches(prompts: list[str], several: list[SamplingParams], one: bool) -> None:
    each = [several[0]] * len(prompts) if one else several[: len(prompts)]
    alone = [ENGINE.generate(prompt, chosen) for prompt, chosen in zip(prompts, each, strict=True)]
    together = ENGINE.generate_batch(prompts, several[0] if one else each)
    for a, b in zip(alone, together, strict=True):
        assert (a.text, a.tokens, a.origins, a.logprobs) == (b.text, b.tokens, b.origins, b.logprobs)
        assert (a.finish_reason, a.report.target_forwards) == (b.finish_reason, b.report.target_forwards)


def test_a_batch_with_too_few_parameters() -> None:
    with pytest.raises(InputError, match="2 SamplingParams for 1 prompt;"):
        ENGINE.generate_batch(["a"], [SamplingParams(), SamplingParams()])


def test_remembered_texts_are_drafted_from() -> None:
    engine = Engine(ENGINE.backend, TOKENIZER, context=80, drafter="suffix")
    letters = tuple(TOKENIZER.encode("abc defghijkl", add_special=False))
    params = SamplingParams(max_tokens=40, temperature=1.5, seed=3, allowed_tokens=letters)
    before = engine.generate("abc", params)
    engine.remember(["cab", before.text])
    after = engine.generate("abc", params)
    assert after.tokens == before.tokens
    assert after.report.target_forwards < before.report.target_forwards / 2


def test_there_is_a_limit_to_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MOST_REMEMBERED", 5)
    engine = Engine(ENGINE.backend, TOKENIZER, context=80)
    with pytest.raises(InputError, match="5 tokens"):
        engine.remember(["abc", "dededede"])


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_reference_interface(acceptance: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=6, acceptance=acceptance)  # type: ignore[arg-type]
    draft = Engine(TinyBackend(sharpness=4.0, seed=1), TOKENIZER, context=80)
    stepper = forerun.SpeculativeEngine(ENGINE, draft, 3, params)
    prompt = [1, 2, 3]
    text = list(prompt)
    went_back = False
    while new := stepper.generate_step(text):
        assert 1 <= len(new) <= 4
        assert stepper.report.tokens == len(new)
        text += new
        if len(text) > 30 and not went_back:
            went_back, text = True, text[:25]
    assert len(text) == 80
    if acceptance == "coupled":
        free = replace(params, ignore_end=True)
        with ENGINE.stream_tokens(prompt, free, drafter="none") as stream:
            list(stream)
        assert text == prompt + stream.result.tokens
    with pytest.raises(InputError, match="context"):
        stepper.generate_step([1] * 81)


def test_the_reference_interface_with_itself() -> None:
    stepper = forerun.SpeculativeEngine(ENGINE, ENGINE, 4, SamplingParams(temperature=1.0, seed=2))
    text = [1, 2]
    for _ in range(5):
        text += stepper.generate_step(text)
    assert len(text) == 2 + 5 * 5
    with pytest.raises(InputError, match="lookahead"):
        forerun.SpeculativeEngine(ENGINE, ENGINE, 0)


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


@pytest.mark.parametrize("name", DRAFTERS)
def test_nothing_of_an_answer_stays(name: str) -> None:
    """After others an answer has the tokens, and takes the forwards, that it has and takes on a new one."""
    params = SamplingParams(max_tokens=30, temperature=0.7, seed=5, repetition_penalty=1.1)
    found = []
    for before in ([], ["abc abc abc", "b"], ["好 好", "abc"]):
        engine = Engine(TinyBackend(sharpness=4.0), TOKENIZER, context=80, load_draft=load_other)
        for prompt in before:
            engine.generate(prompt, replace(params, seed=8), drafter=name)
        result = engine.generate("abc ab", params, drafter=name)
        found.append((result.tokens, result.origins, result.report.target_forwards))
    assert found[0] == found[1] == found[2]


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


def test_a_stream_has_one_reader() -> None:
    stream = ENGINE.stream("ab", SamplingParams(max_tokens=3), progress=lambda *_: next(stream))
    with pytest.raises(InputError, match="being read already"):
        next(stream)
