"""Conversations from stores to batches of nearly equal length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from forerun.errors import InputError
from forerun.training.store import Conversation, Store
from forerun.weights.bfloat16 import Halves, all_finite

LEAST_HELD_OUT = 20
MOST_APART = 50
"""One request in MOST_APART and its follow-up are kept for judging; more of few, so that LEAST_HELD_OUT are,
but never more than one in five."""


ALIGNED = 32
"""Rows are padded to a multiple of this: matrix products of odd sizes are slow."""


@dataclass(frozen=True)
class Batch:
    """Conversations side by side; row i of one stands for its token i and the hidden states there.

    Attributes:
        tokens: int64 [conversations, rows + 1].
        features: bfloat16 [conversations, rows, taps, hidden].
        wanted: bool [conversations, rows]: token i + 2 belongs to the answer and token i + 1 has features, so
            that what row i says of token i + 2 can be judged.
    """

    tokens: torch.Tensor
    features: torch.Tensor
    wanted: torch.Tensor

    @property
    def size(self) -> int:
        """Rows of text, padding included."""
        return int(self.wanted.numel())

    def to(self, device: torch.device) -> Batch:
        """The same there."""
        return Batch(self.tokens.to(device), self.features.to(device), self.wanted.to(device))

    @property
    def positions(self) -> torch.Tensor:
        """Of all rows in their conversations, which lie one after the other: int64 [conversations * rows]."""
        conversations, rows = self.wanted.shape
        return torch.arange(rows, device=self.wanted.device).repeat(conversations)


@dataclass(frozen=True)
class Place:
    """Where a conversation is, how long, and how much of it comes before its answer."""

    store: int
    place: int
    tokens: int
    answer: int

    @property
    def first(self) -> int:
        """The first row that is wanted."""
        return max(self.answer - 2, 0)

    @property
    def wanted(self) -> int:
        """How many rows are wanted."""
        return max(self.tokens - 2 - self.first, 0)


class Conversations:
    """A fixed choice of what stores hold; stores may grow meanwhile.

    Args:
        stores: of one model.
        counts: how many conversations of each to use; all that are there by default.
        least, longest: tokens of a conversation; longer ones are cut.
        recorder: computes hidden states that the stores have not kept.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        counts: Sequence[int] | None = None,
        least: int = 8,
        longest: int = 1024,
        recorder: Callable[[npt.NDArray[np.int32]], Halves] | None = None,
    ) -> None:
        self.stores, self.longest, self._recorder = stores, longest, recorder
        self.counts = [len(store) for store in stores] if counts is None else list(counts)
        self.training: list[Place] = []
        self.held_out: list[Place] = []
        self.greedy_held_out: list[Place] = []
        apart = min(max(sum(self.counts) // LEAST_HELD_OUT, 5), MOST_APART)
        for s, (store, count) in enumerate(zip(stores, self.counts, strict=True)):
            index = store.index[:count]
            group = groups(store, index)
            # by number: an interrupted writer leaves them in another order
            for at in np.argsort(index["number"], kind="stable").tolist():
                record = index[at]
                if record["tokens"] < least or record["answer"] >= min(record["tokens"], longest):
                    continue
                place = Place(s, at, min(int(record["tokens"]), longest), int(record["answer"]))
                if group[at] % apart:
                    self.training.append(place)
                else:
                    (self.held_out if record["temperature"] else self.greedy_held_out).append(place)

    @property
    def tokens(self) -> int:
        """Of the training part."""
        return sum(place.tokens for place in self.training)

    def epoch(self, seed: int, number: int, rows: int) -> list[list[Place]]:
        """The batches of an epoch, of at most about `rows` rows: shuffled, neighbours in length together."""
        draw = np.random.default_rng((seed, number))
        order = [self.training[i] for i in draw.permutation(len(self.training))]
        groups: list[list[Place]] = []
        for start in range(0, len(order), 512):
            groups += grouped(sorted(order[start : start + 512], key=lambda place: place.tokens), rows)
        return [groups[i] for i in draw.permutation(len(groups))]

    def batch(self, places: Sequence[Place], *, checked: bool = False) -> Batch:
        """Read these conversations. `checked`: InputError, which names the folder, for a hidden state that is
        not finite."""
        rows = -(-(max(place.tokens for place in places) - 1) // ALIGNED) * ALIGNED
        store = self.stores[0]
        tokens = np.zeros((len(places), rows + 1), np.int64)
        features = np.zeros((len(places), rows, len(store.taps), store.hidden), np.uint16)
        wanted = np.zeros((len(places), rows), bool)
        for at, place in enumerate(places):
            one, n = self.stores[place.store].conversation(place.place), place.tokens
            tokens[at, :n] = one.tokens[:n]
            features[at, : n - 1] = self._states(one, n)
            if checked and not all_finite(features[at]):
                folder = self.stores[place.store].folder
                raise InputError(f"{folder} holds hidden states that are not finite; write the data again")
            wanted[at, place.first : place.first + place.wanted] = True
        bits = torch.from_numpy(features.view(np.int16)).view(torch.bfloat16)
        return Batch(torch.from_numpy(tokens), bits, torch.from_numpy(wanted))

    def _states(self, one: Conversation, tokens: int) -> Halves:
        """Of all but the last of so many tokens."""
        if one.features is not None:
            return one.features[: tokens - 1]
        if self._recorder is None:
            raise InputError("the data lacks hidden states; train with the model at hand, or write it again")
        return self._recorder(one.tokens[:tokens])

    def token_counts(self, vocab_size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """How often each token occurs in the answers of the training part, int64 [vocabulary]."""
        counts = np.zeros(vocab_size, np.int64)
        for place in self.training:
            one = self.stores[place.store].conversation(place.place)
            counts += np.bincount(one.tokens[one.answer : place.tokens], minlength=vocab_size)[:vocab_size]
        return counts


def groups(store: Store, index: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """What of a store must be held out together, by numbers, int64 [n]: a request and the one about its
    answer; or a user's prompt at all temperatures."""
    numbers = index["number"].astype(np.int64)
    if store.about.get("prompts") is None:
        return numbers // 2
    _, which = np.unique(index["request_hash"], return_inverse=True)
    first = np.full(which.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, which, numbers)
    return np.argsort(np.argsort(first))[which]


def grouped(places: Sequence[Place], rows: int) -> list[list[Place]]:
    """Neighbours together, as many as fill `rows` when padded to the longest."""
    groups: list[list[Place]] = []
    longest = 0
    for place in places:
        longest = max(longest, place.tokens)
        if not groups or longest * (len(groups[-1]) + 1) > rows:
            groups.append([])
            longest = place.tokens
        groups[-1].append(place)
    return groups


def in_batches(conversations: Conversations, places: Sequence[Place], rows: int) -> Iterator[Batch]:
    """Batches of these conversations, in order of length, checked."""
    for group in grouped(sorted(places, key=lambda place: place.tokens), rows):
        yield conversations.batch(group, checked=True)


def following(batch: Batch) -> torch.Tensor:
    """The target's final state one row on, from which token i + 2 is chosen: [batch, rows, hidden]."""
    return F.pad(batch.features[:, 1:, -1], (0, 0, 0, 1))


def later(x: torch.Tensor, rows: int) -> torch.Tensor:
    """[conversations, rows, ...] as it is `rows` rows further on, zeros (False) at the end."""
    if not rows:
        return x
    return torch.cat([x[:, rows:], torch.zeros_like(x[:, :rows])], 1)
