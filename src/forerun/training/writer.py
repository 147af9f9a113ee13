"""The target writes training data: many conversations at once, each a row of one forward.

What a conversation says depends on the seed and its number alone, not on which others are written beside it
(the forward is width-invariant) or on interruptions. The hidden states that the forwards compute anyway are
kept: they are the drafter's inputs, from the very kernels that will serve it.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from forerun import _core
from forerun.engine import Engine
from forerun.models.rows import Cache, Rows
from forerun.sampling.fused import new_chooser
from forerun.sampling.params import SamplingParams
from forerun.sampling.pipeline import Pipeline
from forerun.training import requests
from forerun.training.prompts import Frame
from forerun.training.requests import Request
from forerun.training.store import Conversation, Store
from forerun.weights.bfloat16 import Halves, to_bfloat16

MOST_REQUEST = 160
"""Tokens that the model may add to a request."""

LEAST_REQUEST = 4
REQUEST_SAMPLING = SamplingParams(temperature=0.9, min_p=0.03)
"""Requests as people would make them: at temperature 1 small models lose the thread."""

CHUNK = 64
"""Tokens of one conversation that a forward reads at most, so that the others are not kept waiting."""

GIVEN_TEMPERATURES = (0.0, 1.0, 0.7)
"""Of the answers to a user's own prompts, round by round."""


@dataclass
class Running:
    """A conversation being written.

    Attributes:
        text: int32 [capacity]; the first `length` are its tokens.
        computed: how many of them went through the model.
        answer: tokens before the answer; 0 while the request is being written.
        start: tokens before what is being written now.
    """

    request: Request
    cache: Cache
    text: npt.NDArray[np.int32]
    length: int
    chooser: _core.Chooser
    answer: int
    start: int
    computed: int = 0
    request_hash: int = 0
    features: list[Halves] = field(default_factory=list)

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        return self.text[: self.length]

    def push(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        self.text[self.length : self.length + len(tokens)] = tokens
        self.length += len(tokens)


class Writer:
    """Writes conversations into a store.

    Args:
        engine: the target.
        store: takes what is finished, and says what is there already.
        seed: of everything.
        rows: conversations written at once.
        prompts: the user's own requests; None lets the model make them.
        longest_answer: tokens of an answer at most.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        *,
        seed: int,
        rows: int = 64,
        prompts: Sequence[str] | None = None,
        longest_answer: int = 400,
    ) -> None:
        self._engine, self._store, self._seed, self._rows = engine, store, seed, rows
        self._prompts, self._longest_answer = prompts, longest_answer
        self._frame = Frame.of(engine.tokenizer, engine.end_tokens)
        self._context = min(engine.context, engine.backend.config.context)
        self._seen: set[int] = {int(x) for x in store.index["request_hash"]}
        self._waiting: deque[Request] = deque()
        self._fresh = self._unwritten()
        self._running: list[Running] = []
        self.tokens = store.tokens_written
        """In the store."""

    def write(self, tokens: int, progress: Callable[[int, int], None] | None = None) -> None:
        """Write until the store holds so many tokens, or until there is nothing more to write about."""
        while self.tokens < tokens:
            self._fill()
            if not self._running:
                return
            self._step()
            if progress is not None:
                progress(self.tokens, tokens)

    def _unwritten(self) -> Iterator[Request]:
        """Requests that are not in the store, follow-ups of written answers first."""
        done = {int(x): place for place, x in enumerate(self._store.index["number"])}
        if self._prompts is not None:
            for number in range(len(self._prompts) * len(GIVEN_TEMPERATURES)):
                if number not in done:
                    round, place = divmod(number, len(self._prompts))
                    yield requests.given(self._seed, number, self._prompts[place], GIVEN_TEMPERATURES[round])
            return
        for number, place in done.items():
            if number % 2 == 0 and number + 1 not in done:
                one = self._store.conversation(place)
                yield from self._follow_up(number, one.tokens[one.answer :])
        number = 0
        while True:
            if number not in done:
                yield requests.fresh(self._seed, number)
            number += 2

    def _follow_up(self, number: int, answer: npt.NDArray[np.int32]) -> Iterator[Request]:
        if number % 2 == 0 and self._prompts is None and self._frame is not None:
            second = requests.follow_up(self._seed, number, self._engine.tokenizer.decode(answer.tolist()))
            if second is not None:
                yield second

    def _fill(self) -> None:
        """Begin conversations until all rows are taken."""
        refused = 0
        while len(self._running) < self._rows and refused < 10_000:
            request = self._waiting.popleft() if self._waiting else next(self._fresh, None)
            if request is None:
                return
            one = self._begin(request)
            if one is None:  # a repeated or empty request, or a text that does not fit
                refused += 1
            else:
                self._running.append(one)

    def _begin(self, request: Request) -> Running | None:
        tokenizer, frame = self._engine.tokenizer, self._frame
        if frame is None:
            tokens = tokenizer.encode(request.text, add_special=True) or list(self._engine.end_tokens[:1])
        else:
            tokens = tokenizer.encode(frame.before + request.text, add_special=False)
        capacity = len(tokens) + MOST_REQUEST + len(frame.after if frame else ()) + self._longest_answer
        capacity = min(capacity, self._context)
        if not tokens or len(tokens) + MOST_REQUEST + LEAST_REQUEST > capacity:
            return None
        one = Running(
            request,
            self._engine.backend.new_cache(capacity),
            np.zeros(capacity, np.int32),
            0,
            self._chooser(REQUEST_SAMPLING, request.seed),
            answer=0,
            start=len(tokens),
        )
        one.push(tokens)
        if not request.open or frame is None:
            return one if self._open_answer(one) else None
        return one

    def _chooser(self, params: SamplingParams, seed: int) -> _core.Chooser:
        return new_chooser(Pipeline(params, self._engine.backend.config.vocab_size, (), 0), seed)

    def _open_answer(self, one: Running) -> bool:
        """End the request and open the answer; False when the request is not worth one."""
        one.request_hash = zlib.crc32(one.tokens.tobytes())
        if self._frame is not None:
            if self._prompts is None and one.request_hash in self._seen:
                return False
            after = self._frame.after
            if one.length + len(after) + LEAST_REQUEST > len(one.text):
                return False
            one.push(after)
        self._seen.add(one.request_hash)
        one.answer = one.start = one.length
        one.chooser = self._chooser(SamplingParams(temperature=one.request.temperature), one.request.seed)
        return True

    def _step(self) -> None:
        """One forward over all running conversations, and what follows from it."""
        chunks = [one.tokens[one.computed : one.computed + CHUNK] for one in self._running]
        ready = [
            one.computed + len(chunk) == one.length for one, chunk in zip(self._running, chunks, strict=True)
        ]
        sizes = np.array([len(chunk) for chunk in chunks])
        ends = np.cumsum(sizes)
        parents = np.arange(-1, ends[-1] - 1, dtype=np.int32)
        parents[ends - sizes] = -1
        owner = np.repeat(np.arange(len(chunks), dtype=np.int32), sizes)
        rows = Rows(np.concatenate(chunks), parents, [one.cache for one in self._running], owner)
        wanted = (ends - 1)[ready].astype(np.int32)
        output = self._engine.backend.forward(rows, wanted, self._store.taps)
        features, logits = to_bfloat16(output.features), iter(output.logits)
        still = []
        for one, end, size, chosen in zip(self._running, ends, sizes, ready, strict=True):
            one.features.append(features[end - size : end])
            one.cache.commit(np.arange(size, dtype=np.int32))
            one.computed += int(size)
            if not chosen or self._extend(one, next(logits)):
                still.append(one)
        self._running = still

    def _extend(self, one: Running, logits: npt.NDArray[np.float32]) -> bool:
        """Choose the next token; whether the conversation goes on."""
        token = one.chooser.choose(logits, one.text[: one.length - 1], [int(one.text[one.length - 1])])
        written = one.length - one.start
        if not one.answer:
            assert self._frame is not None
            over = token in self._frame.ends or self._engine.tokenizer.is_special(token)
            if not over:
                one.push([token])
                over = written + 1 == MOST_REQUEST
            if not over:
                return True
            return one.length - one.start >= LEAST_REQUEST and self._open_answer(one)
        one.push([token])
        written += 1
        full = one.length == len(one.text) or written >= self._longest_answer
        if (
            full
            or token in self._engine.end_tokens
            or (written % 16 == 0 and repeats(one.tokens[one.answer :]))
        ):
            self._finish(one)
            return False
        return True

    def _finish(self, one: Running) -> None:
        features = np.concatenate(one.features)
        request = one.request
        self._store.add(
            Conversation(
                request.number,
                one.tokens.copy(),
                one.answer,
                request.temperature,
                one.request_hash,
                features,
            )
        )
        self.tokens += one.length
        self._waiting.extend(self._follow_up(request.number, one.tokens[one.answer :]))


def repeats(tokens: npt.NDArray[np.int32], length: int = 96, longest_period: int = 32) -> bool:
    """Whether the last `length` tokens go round in a circle: such text teaches nothing."""
    tail = tokens[-length:]
    return len(tail) == length and any(
        bool((tail[period:] == tail[:-period]).all()) for period in range(1, longest_period + 1)
    )
