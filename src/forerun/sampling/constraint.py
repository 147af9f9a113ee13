"""A grammar along a text that is being written: what may follow, at any node of a draft, and where it ends.

There is one matcher for a generation, and it stands at some text. To say what may follow another text it goes
back to where the two part, and on from there. So nothing has to be undone when drafts are refused, and what
is said depends on the text asked for alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forerun.core.tokens import TokenBuffer
from forerun.errors import ForerunError, InputError
from forerun.sampling.arithmetic import Doubles
from forerun.sampling.grammar import Grammar, reason
from forerun.sampling.pipeline import Bits, Floats, Ints
from forerun.sampling.ranking import Ranked
from forerun.words import counted

MOST_KNOWN = 64
"""Places whose masks are kept: more than a draft is deep."""


@dataclass(frozen=True)
class Place:
    """What may follow a text.

    Attributes:
        allowed: uint32 [model's vocabulary / 32, rounded up], token t's bit is t mod 32 of word t div 32; or
            None: all. End tokens are among them where the text may end.
        only: the one token that may follow where there is no choice, else -1.
        complete: the text must end here.
    """

    allowed: Bits | None
    only: int = -1
    complete: bool = False


OUTSIDE = Place(None)
"""A text that the grammar does not allow goes on behind an end, and is never emitted: all the same."""


class Constraint:
    """A grammar's word on the texts of one generation. `history` and `path` are as in `models.sequence.Rule`:
    what is committed, prompt included, and what is drafted after it.

    Args:
        grammar: that the answer follows.
        vocab_size: of the model.
        ends: tokens that end the answer without being text of it; allowed exactly where the text may end.
        prompt_length: tokens before the answer.

    Attributes:
        start: as prompt_length.
    """

    def __init__(self, grammar: Grammar, vocab_size: int, ends: Iterable[int], prompt_length: int) -> None:
        self._grammar = grammar
        self._ends = frozenset(token for token in ends if token < vocab_size)
        self.start = prompt_length
        words, self._mask_words = -(-vocab_size // 32), grammar.vocab_size // 32 + 1
        self._mask = np.zeros(max(words, self._mask_words), dtype=np.uint32)
        self._tokens = bits(range(min(vocab_size, grammar.vocab_size)), words)
        self._end_bits = bits(self._ends, words)
        self._restart()

    def place(self, history: Ints, path: list[int]) -> Place:
        """What may follow history + path.

        Raises:
            InputError: no token fits the grammar here, or it has become too complex.
        """
        text = self._answer(history, path)
        n = len(text)
        known = self._known.get(n) if n <= self._length else None
        if known is not None and np.array_equal(self._line[:n], text):
            return known
        if not self._go(text):
            return OUTSIDE
        if len(self._known) >= MOST_KNOWN:
            del self._known[min(self._known)]
        found = self._known[n] = self._look()
        return found

    def fitting(self, history: Ints, path: list[int]) -> int:
        """How many tokens of `path` may follow history, from its first on. End tokens are not judged."""
        text = self._answer(history, path)
        start = len(text) - len(path)
        at = max(self._shared(text), start)  # no further back than it must: what is known there stays known
        if not self._go(text[:at]):
            return 0
        count = at - start + self._matcher.validate_tokens(self._spelt(path[at - start :]))
        return count + (count < len(path) and path[count] in self._ends)

    def _answer(self, history: Ints, path: list[int]) -> Ints:
        """int32: what of the text belongs to the answer."""
        drafted = path[max(self.start - len(history), 0) :]
        answer: Ints = np.concatenate([history[self.start :], np.array(drafted, dtype=np.int32)])
        return answer

    def _restart(self) -> None:
        self._matcher = self._grammar.matcher()
        self._line = np.zeros(256, dtype=np.int32)
        self._length = 0
        self._known: dict[int, Place] = {}

    def _go(self, text: Ints) -> bool:
        """Take the matcher to this text; False if it is outside the grammar."""
        shared = self._shared(text)
        if shared < self._length:
            if not self._matcher.rollback(self._length - shared):
                self._restart()
                return self._go(text)
            self._length = shared
            self._known = {n: place for n, place in self._known.items() if n <= shared}
        rest = text[shared:]
        if not rest.size:
            return True
        count = self._matcher.try_consume_tokens(self._spelt(rest.tolist()))
        self._check()
        self._length = shared + count
        if self._length > self._line.size:
            self._line = np.concatenate([self._line, np.zeros(2 * self._length, dtype=np.int32)])
        self._line[shared : self._length] = rest[:count]
        return count == rest.size

    def _shared(self, text: Ints) -> int:
        """How many tokens the text has in common with where the matcher is."""
        shared = min(self._length, len(text))
        parted = np.flatnonzero(self._line[:shared] != text[:shared])
        return int(parted[0]) if parted.size else shared

    def _spelt(self, tokens: list[int]) -> list[int]:
        """Up to the first id that no token has."""
        size = self._grammar.vocab_size
        wrong = next((at for at, token in enumerate(tokens) if not 0 <= token < size), len(tokens))
        return tokens[:wrong]

    def _look(self) -> Place:
        """What may follow where the matcher is."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, 4 * self._mask_words)
        self._check()
        end = self._grammar.vocab_size
        may_end = int(self._mask[end // 32]) >> end % 32 & 1
        allowed = self._mask[: self._tokens.size] & self._tokens
        if not may_end:
            return Place(allowed, _only(allowed))
        if allowed.any():
            return Place(allowed | self._end_bits)
        return Place(self._end_bits if self._ends else None, complete=True)

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        message = self._matcher.get_error()
        self._restart()
        raise InputError(f"the answer cannot follow the {self._grammar.name} any further: {reason(message)}")


def bits(tokens: Iterable[int], words: int) -> Bits:
    """uint32 [words]: the set of these tokens, as in `Place`."""
    which = np.zeros(32 * words, dtype=np.bool_)
    which[list(tokens)] = True
    return np.packbits(which, bitorder="little").view("<u4").astype(np.uint32)


def _only(allowed: Bits) -> int:
    """The token whose bit is the only one, or -1."""
    if np.count_nonzero(allowed) != 1:
        return -1
    at = int(allowed.argmax())
    word = int(allowed[at])
    return 32 * at + word.bit_length() - 1 if word & (word - 1) == 0 else -1


class MaskedRule(Protocol):
    """A rule of choice that can be told what is allowed."""

    def choose(
        self,
        logits: Floats,
        history: Ints,
        path: list[int],
        candidates: list[int],
        proposal: Doubles | None,
        allowed: Bits | None = None,
    ) -> int: ...


class ConstrainedRule:
    """Implements `models.sequence.Rule`: another rule's choice among what a constraint allows.

    Args:
        rule: that chooses.
        constraint: of this generation.
        forbidden: ids that the rule itself never chooses; where the grammar leaves only one of these, it says
            so.
    """

    def __init__(self, rule: MaskedRule, constraint: Constraint, forbidden: npt.NDArray[np.int64]) -> None:
        self._rule = rule
        self._constraint = constraint
        self._forbidden = frozenset(forbidden.tolist())

    def choose(
        self, logits: Floats, history: Ints, path: list[int], candidates: list[int], proposal: Doubles | None
    ) -> int:
        place = self._constraint.place(history, path)
        if place.only >= 0 and place.only not in self._forbidden:
            return place.only
        return self._rule.choose(logits, history, path, candidates, proposal, place.allowed)


class Ranker(Protocol):
    """As in `drafters.model`: turns a draft model's logits into candidates."""

    @property
    def drawn(self) -> bool: ...

    def rank(
        self, logits: Floats, history: Ints, path: list[int], count: int, allowed: Bits | None = None
    ) -> Ranked: ...


class ConstrainedRanker:
    """A draft model's candidates, of those tokens only that a constraint allows: as the target will choose.

    Args:
        ranker: of the draft model.
        constraint: of this generation; the rule's may be shared.
    """

    def __init__(self, ranker: Ranker, constraint: Constraint) -> None:
        self.drawn = ranker.drawn
        self._ranker = ranker
        self._constraint = constraint

    def rank(self, logits: Floats, history: Ints, path: list[int], count: int) -> Ranked:
        """At most `count` candidates for what follows history + path."""
        try:
            allowed = self._constraint.place(history, path).allowed
            return self._ranker.rank(logits, history, path, count, allowed)
        except ForerunError:  # nothing can be chosen here; if the text gets here, that is said then
            return self._ranker.rank(logits, history, path, count)


class ConstrainedEnd:
    """Implements `core.protocols.Stop`: the answer also ends where its grammar lets nothing follow.

    Args:
        stop: what else ends it, and is asked first.
        constraint: of this generation.
        prompt: its tokens.
        min_tokens: that were asked for.
    """

    def __init__(
        self,
        stop: Callable[[int], str | None],
        constraint: Constraint,
        prompt: Sequence[int],
        min_tokens: int,
    ) -> None:
        self._stop = stop
        self._constraint = constraint
        self._text = TokenBuffer(prompt)
        self._prompt_length = len(prompt)
        self._min_tokens = min_tokens

    def __call__(self, token: int) -> str | None:
        self._text.extend((token,))
        return self._stop(token) or self._complete()

    def _complete(self) -> str | None:
        try:
            place = self._constraint.place(self._text.tokens, [])
        except ForerunError:  # nothing can follow: said where something is to
            return None
        count = self._text.length - self._prompt_length
        if place.complete and count < self._min_tokens:
            raise InputError(
                f"the answer is complete after {counted(count, 'token')} and min_tokens asks for "
                f"{self._min_tokens}; lower it, or let the grammar go on"
            )
        return "stop" if place.complete else None
