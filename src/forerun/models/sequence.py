"""One sequence of a model: its cache, its tokens, and the rule that chooses its next ones."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forerun._core import DraftTree
from forerun.models.backend import Backend
from forerun.models.rows import FloatArray, IntArray, Output, Outputs, Rows

DoubleArray = npt.NDArray[np.float64]
NO_ROWS: IntArray = np.zeros(0, dtype=np.int32)


class Rule(Protocol):
    """Chooses the token that follows a text, from the model's logits there.

    One that can choose along a whole tree at once has a method `walk` too, as `sampling.fused` does.
    """

    def choose(
        self,
        logits: FloatArray,
        history: IntArray,
        path: list[int],
        candidates: list[int],
        proposal: DoubleArray | None,
    ) -> int:
        """The token at position len(history) + len(path).

        Args:
            logits: float32 [vocabulary], as the model gave them; not to be written to.
            history: int32, the committed tokens; the same at every call until more are committed.
            path: tokens after these, from the root to the node chosen at.
            candidates: tokens drafted for this position, in order.
            proposal: float64 [vocabulary], the distribution they were drawn from without replacement, or None
                where they were chosen.
        """


class Sequence:
    """Implements `core.protocols.Target` over a `Backend`.

    Args:
        backend: the model.
        rule: chooses tokens; may be replaced between generations.
        context: the most tokens the text may have; at most the model's own context.
        capacity: committed and staged rows that the cache holds; `context` unless the text is known to stay
            shorter.
        taps: hidden states to hand out as features.
    """

    def __init__(
        self,
        backend: Backend,
        rule: Rule,
        *,
        context: int,
        capacity: int | None = None,
        taps: tuple[int, ...] = (),
    ) -> None:
        self.backend = backend
        self.rule = rule
        self.context = context
        self.taps = taps
        self.vocab_size = backend.config.vocab_size
        self.cache = backend.new_cache(context if capacity is None else capacity)
        self._tokens = np.zeros(self.cache.capacity, dtype=np.int32)
        self._staged: list[int] = []

    @property
    def length(self) -> int:
        return self.cache.length

    @property
    def room(self) -> int:
        return self.cache.capacity - self.cache.length

    @property
    def tokens(self) -> IntArray:
        """int32 [length]: the committed tokens (a view)."""
        return self._tokens[: self.length]

    def extend(self, tokens: IntArray) -> FloatArray | None:
        """Compute and commit tokens in one forward; float32 [n, taps, hidden], or None without taps."""
        output = self.backend.forward(Rows.chain(tokens, self.cache), NO_ROWS, self.taps)
        self._staged = tokens.tolist()
        self.commit(list(range(len(tokens))))
        return output.features if self.taps else None

    def verify(self, tree: DraftTree) -> NodeChoices:
        output = self.backend.verify(tree, self.cache, self.taps)
        self._staged = tree.ids
        return NodeChoices(self, tree, output)

    def commit(self, path: list[int]) -> None:
        at, tokens, staged = self.cache.length, self._tokens, self._staged
        # tokens first: past `length` they mean nothing, so an interrupt in between leaves the sequence whole
        for row in path:
            tokens[at] = staged[row]
            at += 1
        self.cache.commit(path)

    def truncate(self, length: int) -> None:
        if length < self.length:
            self.cache.truncate(length)

    def stage(self, tokens: list[int]) -> None:
        """Remember the tokens of a forward, for `commit`."""
        self._staged = tokens


class NodeChoices:
    """Implements `core.protocols.Verdict`: one sequence's rows of a forward's output, chosen at on demand."""

    def __init__(self, sequence: Sequence, tree: DraftTree, output: Outputs) -> None:
        self._sequence = sequence
        self._tree = tree
        self._output = output

    @property
    def logits(self) -> FloatArray:
        """float32 [n, vocabulary], as the model gave them."""
        return self._output.logits

    @property
    def features(self) -> FloatArray | None:
        return self._output.features if self._sequence.taps else None

    def walk(self) -> tuple[list[int], list[int], int] | None:
        """All choices along the tree, if the rule can make them at once: the accepted nodes, the tokens
        chosen at them, and how many of them have children."""
        sequence = self._sequence
        walk: Callable[..., tuple[list[int], list[int], int]] | None = getattr(sequence.rule, "walk", None)
        return None if walk is None else walk(self._output, sequence.tokens, self._tree)

    def choose(self, node: int, candidates: list[int]) -> int:
        return self._sequence.rule.choose(
            self.logits[node],
            self._sequence.tokens,
            [self._tree.ids[i] for i in self._tree.path(node)],
            candidates,
            self._tree.proposals.get(node),
        )


def verify_together(sequences: list[Sequence], trees: Several[DraftTree]) -> list[NodeChoices]:
    """Verify one tree for each of several sequences of the same backend and taps in one forward."""
    sizes = [len(tree.tokens) for tree in trees]
    starts = np.cumsum([0, *sizes])
    parents = [
        np.where(tree.parents < 0, -1, tree.parents + start)
        for tree, start in zip(trees, starts[:-1], strict=True)
    ]
    rows = Rows(
        np.concatenate([tree.tokens for tree in trees]).astype(np.int32),
        np.concatenate(parents).astype(np.int32),
        [sequence.cache for sequence in sequences],
        np.repeat(np.arange(len(trees), dtype=np.int32), sizes),
    )
    taps = sequences[0].taps
    output = sequences[0].backend.forward(rows, np.arange(starts[-1], dtype=np.int32), taps)
    verdicts = []
    for sequence, tree, start, end in zip(sequences, trees, starts[:-1], starts[1:], strict=True):
        sequence.stage(tree.ids)
        part = Output(output.logits[start:end], output.features[start:end])
        verdicts.append(NodeChoices(sequence, tree, part))
    return verdicts
