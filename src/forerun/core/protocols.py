"""What the loop asks of a target, a drafter, a stop condition and a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from forerun.core.report import Report
from forerun.core.tree import DraftTree, FloatArray, IntArray


class Verdict(Protocol):
    """What the target says about a tree it has computed. Choices are made on demand: only nodes that the walk
    reaches are ever chosen at."""

    @property
    def features(self) -> FloatArray | None:
        """float32 [n, taps, hidden]: the target's hidden states at each node, or None without taps."""

    def walk(self) -> tuple[list[int], list[int], int] | None:
        """All of `core.accept.walk` at once, if that is possible: path, tokens and checked."""

    def choose(self, node: int, candidates: list[int]) -> int:
        """The token that follows `node`, chosen from that node's own path.

        `candidates` are the tokens of the node's children, in draft order. A rule that does not depend on the
        draft (the coupled one) ignores them.
        """


class Target(Protocol):
    """One sequence of the model whose text it is, with its own cache and its own rule of choice."""

    @property
    def context(self) -> int:
        """The most tokens prompt and answer may have together."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def length(self) -> int:
        """Committed tokens: all of the text but its last token."""

    @property
    def room(self) -> int:
        """Rows that can be staged now; at least 1 while `length` is below `context`."""

    def extend(self, tokens: IntArray) -> FloatArray | None:
        """Compute and commit tokens of the prompt; their features, float32 [n, taps, hidden], or None."""

    def verify(self, tree: DraftTree) -> Verdict:
        """Stage root and nodes in one forward. What is not committed afterwards never happened."""

    def commit(self, path: list[int]) -> None:
        """Keep these nodes of the last verified tree (root first, each the child of the one before)."""

    def truncate(self, length: int) -> None:
        """Forget committed tokens from `length` on."""


class Budget(NamedTuple):
    """What a drafter may propose this step: at most `nodes` besides the root, at most `depth` deep.

    `beside` is what other drafters have proposed already, which the guesses will be merged with; None where
    nobody was asked before. A drafter to which every look further takes time need not look below guesses
    that are less likely than `least_chance`.
    """

    nodes: int
    depth: int
    beside: DraftTree | None = None
    least_chance: float = 0.0


class Drafter(Protocol):
    """Guesses what the target will say. May be wrong at will: that costs time, never text."""

    @property
    def name(self) -> str: ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Target hidden states it reads (0 = embedding output, ..., layers = after the final norm)."""

    def begin(self, tokens: IntArray, features: FloatArray | None) -> None:
        """A new sequence starts with `tokens` [n]; `features` [n - 1, taps, hidden] belong to tokens[:-1].

        Everything of an earlier sequence is forgotten.
        """

    def propose(self, budget: Budget) -> DraftTree:
        """A tree whose root is the last token begun or observed. Must not rely on being called each step."""

    def observe(self, tokens: Sequence[int], features: FloatArray | None) -> None:
        """`tokens` [k] were appended; features[j] [k, taps, hidden] are of the token *before* tokens[j]."""

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on; at least one stays."""


class Policy(Protocol):
    """Decides each step's budget. Its decisions change time, never text."""

    def plan(self, report: Report, room: int) -> Budget:
        """`report` holds what was drafted, accepted and spent so far; `room` is how many tokens may still be
        emitted (the answer's limit and the context's, whichever is nearer; at least 1)."""

    def trim(self, tree: DraftTree, seconds: float) -> DraftTree:
        """The part of a proposed tree that is verified, the root at least; `seconds`: what proposing took."""

    def learn(self, tree: DraftTree, tokens: Sequence[int], rows: int, seconds: float | None) -> None:
        """What came of a step: the tree as it was proposed, the emitted tokens, the rows of the forward and
        what it took, or None if it had other sequences' rows too."""


class Stop(Protocol):
    """Knows where an answer ends. Asked once for every emitted token, in order, never about later ones."""

    def __call__(self, token: int) -> str | None:
        """A reason to end with this token included, or None."""
