"""Wrong types from Python callers: one clear line that names what is accepted, and no word of the inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_api import ENGINE, TOKENIZER

import forerun
from conformance.tiny_model import TinyBackend
from forerun import InputError, SamplingParams, SpeculativeEngine
from forerun.core.tree import DraftTree
from forerun.drafters.lookup import LookupDrafter
from forerun.engine import Engine

ANY: Any = ENGINE  # whose types a careless caller does not look at
LOAD: Any = forerun.load
PARAMS: Any = SamplingParams
STEPS: Any = SpeculativeEngine


def ended_elsewhere() -> Any:
    """An answer of another engine."""
    stream = Engine(TinyBackend(), TOKENIZER, context=80).stream("a", SamplingParams(max_tokens=1))
    stream.close()
    return stream


def reading(taps: Any) -> LookupDrafter:
    """A drafter that asks for these hidden states."""
    drafter = LookupDrafter()
    drafter.taps = taps  # type: ignore[misc]
    return drafter


def called(name: Any) -> LookupDrafter:
    """A drafter of this name."""
    drafter = LookupDrafter()
    drafter.name = name
    return drafter


def proposing(tree: Any) -> LookupDrafter:
    """A drafter that proposes this, whatever it is."""
    drafter = LookupDrafter()
    drafter.propose = lambda budget: tree  # type: ignore[method-assign]
    return drafter


def making(make: Callable[[], Any]) -> LookupDrafter:
    """A drafter that makes its tree like this."""
    drafter = LookupDrafter()
    drafter.propose = lambda budget: make()  # type: ignore[method-assign]
    return drafter


def drawing(proposal: Any) -> LookupDrafter:
    """A drafter that says it drew its guess from this."""
    return proposing(DraftTree([1, 2], [-1, 0], proposals={0: np.array(proposal, dtype=np.float64)}))


CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "params as a dict": (lambda: ANY.generate("a", {"max_tokens": 3}), "params is of type dict; give a Samp"),
    "params as a number": (lambda: ANY.stream("a", 3), "params is of type int"),
    "prompt None": (lambda: ANY.generate(None), "the prompt is None; give a text, or a list of chat"),
    "prompt a number": (lambda: ANY.generate(5), "give a text, or a list of chat messages"),
    "prompt bytes": (lambda: ANY.generate(b"a"), "the prompt is of type bytes"),
    "prompt one message": (
        lambda: ANY.generate({"role": "user", "content": "a"}),
        "the prompt is of type dict",
    ),
    "prompt ids": (lambda: ANY.generate([1, 2]), "stream_tokens takes token ids"),
    "prompt texts": (lambda: ANY.generate(["a"]), "a chat message must be an object"),
    "message without content": (lambda: ANY.generate([{"role": "user"}]), '"content"'),
    "message with a number": (lambda: ANY.generate([{"role": "user", "content": 5}]), '"content"'),
    "message with None": (lambda: ANY.generate([{"role": "user", "content": None}]), '"content"'),
    "message with a picture": (
        lambda: ANY.generate([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        "this one is of type 'image_url'",
    ),
    "message of texts": (lambda: ANY.generate([{"role": "user", "content": ["a"]}]), "this one is not"),
    "message without role": (lambda: ANY.generate([{"content": "a"}]), '"role"'),
    "no messages": (lambda: ANY.generate([]), "no chat messages"),
    "batch of a text": (lambda: ANY.generate_batch("a"), "prompts is of type str; give a list of prompts"),
    "batch of None": (lambda: ANY.generate_batch(None), "prompts is None"),
    "batch of one message": (lambda: ANY.generate_batch([{"role": "user", "content": "a"}]), "type dict"),
    "batch params": (lambda: ANY.generate_batch(["a"], {"max_tokens": 3}), "params is of type dict"),
    "batch params inside": (lambda: ANY.generate_batch(["a"], [{"max_tokens": 3}]), "give a SamplingParams"),
    "tokens as a text": (lambda: ANY.stream_tokens("abc"), "give a list of token ids"),
    "tokens None": (lambda: ANY.stream_tokens(None), "give a list of token ids"),
    "tokens with half": (lambda: ANY.stream_tokens([1, 2.5]), "give whole numbers"),
    "tokens outside": (lambda: ANY.stream_tokens([1, 24]), "vocabulary of 24"),
    "tokens of no axis": (lambda: ANY.stream_tokens(np.array(3)), "give a list of token ids"),
    "tokens below": (lambda: ANY.stream_tokens([-1]), "vocabulary of 24"),
    "drafter a number": (lambda: ANY.generate("a", drafter=5), "drafter is of type int"),
    "drafter a list": (lambda: ANY.check_drafter(["lookup"]), "drafter is of type list"),
    "drafter empty": (lambda: ANY.generate("a", drafter=""), "there is no drafter ''"),
    "drafter no list": (lambda: ANY.generate("a", drafter=[]), "drafter is of type list"),
    "drafter in a batch": (lambda: ANY.generate_batch(["a"], drafter=""), "there is no drafter ''"),
    "drafter of a class": (lambda: ANY.generate("a", drafter=LookupDrafter), "drafter is of type type"),
    "drafter that only proposes": (
        lambda: ANY.generate("a", drafter=SimpleNamespace(propose=len)),
        "give a name, or an object with name, taps, begin, propose, observe, truncate",
    ),
    "drafter of no name": (
        lambda: ANY.generate("a", drafter=called(None)),
        "name is None; it must be a text",
    ),
    "drafter of no layer": (lambda: ANY.generate("a", drafter=reading((0, 99))), "taps are (0, 99)"),
    "drafter of no tuple": (lambda: ANY.generate("a", drafter=reading(None)), "taps are None"),
    "chance no number": (
        lambda: ANY.generate("a", drafter=making(lambda: DraftTree([1, 2], [-1, 0], chances=[1.0, np.nan]))),
        "drafter 'lookup' could not propose: a tree's chances are numbers from 0 to 1",
    ),
    "proposal no number": (
        lambda: ANY.generate("a", drafter=drawing([np.nan, *[0.04] * 23])),
        "drafter 'lookup': its proposal at node 0 has probabilities that are not finite",
    ),
    "proposal infinite": (lambda: ANY.generate("a", drafter=drawing([np.inf] * 24)), "are not finite"),
    "proposal below 0": (
        lambda: ANY.generate("a", drafter=drawing([-0.5, 1.5, *[0.0] * 22])),
        "has a negative probability, -0.5",
    ),
    "proposal of logits": (lambda: ANY.generate("a", drafter=drawing([2.0] * 24)), "add up to 48; they must"),
    "proposal too short": (lambda: ANY.generate("a", drafter=drawing([1.0])), "is over 1 token; the model"),
    "drafter an array": (lambda: ANY.check_drafter(np.zeros(0)), "drafter is of type ndarray"),
    "drafter unknown": (lambda: ANY.check_drafter("sufix"), "eagle:DIR, eagle3:DIR, medusa:DIR"),
    "decode None": (lambda: ANY.tokenizer.decode(None), "a list of token ids is needed, not None"),
    "decode a text": (lambda: ANY.tokenizer.decode("a"), "token ids is needed, not of type str"),
    "decode no axis": (lambda: ANY.tokenizer.decode(np.array(3)), "token ids is needed, not of type ndarray"),
    "decode texts": (lambda: ANY.tokenizer.decode(["a"]), "whole numbers; one is of type str"),
    "decode halves": (lambda: ANY.tokenizer.decode([1.5]), "whole numbers; one is of type float"),
    "encode None": (lambda: ANY.tokenizer.encode(None, True), "a text to encode is needed, not None"),
    "progress": (lambda: ANY.stream("a", progress=3), "progress is of type int; give a function"),
    "progress of loading": (lambda: LOAD(progress="x"), "progress is of type str; give a function"),
    "after a text": (lambda: ANY.stream_tokens([1], after="a"), "after is of type str; give an answer"),
    "after what is unfinished": (
        lambda: ANY.stream_tokens([1], after=ANY.stream("a")),
        "an answer of this engine that has ended",
    ),
    "after another engine's": (lambda: ANY.stream_tokens([1], after=ended_elsewhere()), "of this engine"),
    "acceptance an array": (lambda: PARAMS(acceptance=np.array(["a", "b"])), "acceptance is array"),
    "kv an array": (lambda: LOAD(kv=np.array(["a", "b"])), "no cache type"),
    "kernels none": (lambda: LOAD(kernels=()), "no kernels ()"),
    "tuned": (lambda: LOAD(tuned="x"), "tuned is of type str; give True or False"),
    "ignore end": (lambda: PARAMS(ignore_end="no"), "ignore_end is 'no'; it must be True or False"),
    "least above most": (
        lambda: PARAMS(min_tokens=10, max_tokens=5),
        "min_tokens is 10; it must be at most max_tokens, which is 5",
    ),
    "remember a text": (lambda: ANY.remember("abc"), "texts is of type str; give a list of texts"),
    "remember numbers": (lambda: ANY.remember([1]), "a text to remember is of type int"),
    "half a surrogate pair": (lambda: ANY.generate("a\ud800"), "not valid Unicode"),
    "load a number": (lambda: LOAD(5), "model is of type int; give a file"),
    "load nothing": (lambda: LOAD(Path("/no/such/model")), "there is no model"),
    "threads": (lambda: LOAD(threads="2"), "threads is of type str; give a whole number from 1 to"),
    "threads a truth": (lambda: LOAD(threads=True), "threads is of type bool; give a whole number"),
    "no threads": (lambda: LOAD(threads=0), "0 threads cannot be used"),
    "many threads": (lambda: LOAD(threads=1000), "1000 threads cannot be used"),
    "context": (lambda: LOAD(context="long"), "context is of type str; give a whole number"),
    "short context": (lambda: LOAD(context=1), "context is 1; it must be at least 2"),
    "draft tokens": (lambda: LOAD(draft_tokens=1.5), "draft_tokens is of type float"),
    "dtype": (lambda: LOAD(dtype=8), "no dtype 8; choose one of"),
    "load drafter": (lambda: LOAD(drafter=None), "drafter is None"),
    "logit bias None": (
        lambda: PARAMS(logit_bias=None),
        "logit_bias is None; it must be numbers by token id",
    ),
    "logit bias texts": (lambda: PARAMS(logit_bias={1: "a"}), "numbers by token id"),
    "logit bias list": (lambda: PARAMS(logit_bias=[1]), "numbers by token id"),
    "stop None": (lambda: PARAMS(stop=None), "a tuple of strings"),
    "stop numbers": (lambda: PARAMS(stop=(1,)), "a tuple of strings"),
    "stop surrogate": (lambda: PARAMS(stop=("\udce9",)), "not valid Unicode"),
    "regex surrogate": (lambda: PARAMS(regex="\udce9"), "not valid Unicode"),
    "schema number": (lambda: PARAMS(json_schema=5), "an object or its text"),
    "schema key": (lambda: ANY.generate("a", PARAMS(json_schema={1: {2}})), "JSON"),
    "banned text": (lambda: ANY.generate("a", PARAMS(banned_tokens=("a",))), "which is no token"),
    "steps of a name": (lambda: STEPS("a", ENGINE), "target is of type str; give an engine"),
    "steps of none": (lambda: STEPS(ENGINE, None), "draft is None; give an engine"),
    "steps ahead": (lambda: STEPS(ENGINE, ENGINE, "4"), "lookahead_k is of type str"),
    "steps ahead none": (lambda: STEPS(ENGINE, ENGINE, None), "lookahead_k is None"),
    "steps params": (lambda: STEPS(ENGINE, ENGINE, 4, {}), "params is of type dict"),
    "step of a text": (lambda: STEPS(ENGINE, ENGINE).generate_step("a"), "give a list of token ids"),
    "step of nothing": (lambda: STEPS(ENGINE, ENGINE).generate_step([]), "there are no token ids"),
    "step outside": (lambda: STEPS(ENGINE, ENGINE).generate_step([99]), "vocabulary of 24"),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused(name: str) -> None:
    call, words = CALLS[name]
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert words in message
    assert not any(inside in message for inside in ("NoneType", "expected str", "attribute", "Traceback"))


def test_accepted_besides() -> None:
    ids = np.array(TOKENIZER.encode("ab", add_special=False), dtype=np.int32)
    few = SamplingParams(max_tokens=3, seed=1)
    with ANY.stream_tokens(ids, few) as stream:
        for _ in stream:
            pass
    assert stream.result.tokens == ENGINE.generate("ab", few).tokens
    call = {"role": "assistant", "tool_calls": [{"name": "f"}]}
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    assert ENGINE.generate([call, parts, {"role": "user", "content": "a"}], few).tokens
    assert ENGINE.generate_batch((prompt for prompt in ("a", "b")), few)


def test_numbers_of_numpy_are_numbers() -> None:
    numpys = SamplingParams(
        max_tokens=np.int32(3),  # type: ignore[arg-type]
        seed=np.uint64(2**63),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        repetition_penalty=np.float64(1.5),
        logit_bias={np.int64(1): np.float32(2)},  # type: ignore[dict-item]
    )
    plain = SamplingParams(
        max_tokens=3, seed=2**63, temperature=0.5, repetition_penalty=1.5, logit_bias={1: 2.0}
    )
    assert numpys == plain
    assert ENGINE.generate("ab", numpys).tokens == ENGINE.generate("ab", plain).tokens


class Vandal(LookupDrafter):
    """Writes into what it is given."""

    def begin(self, tokens: Any, features: Any) -> None:
        with pytest.raises(ValueError, match="read-only"):
            tokens[:] = 0
        super().begin(tokens, features)

    def observe(self, tokens: Any, features: Any) -> None:
        super().observe(tokens, features)
        if isinstance(tokens, list):
            tokens.clear()


def test_a_drafter_that_writes_into_what_it_is_given_changes_no_text() -> None:
    params = SamplingParams(max_tokens=12, ignore_end=True)
    plain = ENGINE.generate("abcabc", params, drafter="none")
    assert ENGINE.generate("abcabc", params, drafter=Vandal()).tokens == plain.tokens


@pytest.mark.parametrize("tree", [None, [1]])
def test_a_drafter_that_proposes_no_tree(tree: Any) -> None:
    with pytest.raises(InputError, match=r"'lookup' proposed .* in place of a DraftTree"):
        ENGINE.generate("a", drafter=proposing(tree))
