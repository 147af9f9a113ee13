"""Draft trees. A chain is a tree with one branch, plain decoding a tree with only a root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Guesses for what follows the last emitted token.

    Node 0, the root, is the last emitted token itself: it is in no cache yet. Node i > 0 guesses the token
    after its parent, and parents come before their children. Siblings may repeat a token: the first wins.

        tokens  = [the, cat, sat, dog]          the --- cat --- sat
        parents = [ -1,   0,   1,   0]              `-- dog

    Attributes:
        tokens: int32 [n].
        parents: int32 [n]; parents[0] = -1 and 0 <= parents[i] < i.
        origins: who drafted each node, [n] names, or empty: the drafter that proposed the tree.
        chances: float32 [n], the drafter's own opinion how probable it is that the text goes through a node
            (1 at the root, never above the parent's), or None.
        proposals: for the rejection rule: node -> float64 [vocabulary], the distribution its children were
            drawn from, one after the other without replacement, in the order of their indices. A node that is
            missing here had its children chosen, not drawn (each is a point mass). The coupled rule never
            looks.

    Raises:
        ValueError: the arrays are not such a tree.
    """

    tokens: IntArray
    parents: IntArray
    origins: tuple[str, ...] = ()
    proposals: Mapping[int, DoubleArray] = field(default_factory=dict)
    chances: FloatArray | None = None

    def __post_init__(self) -> None:
        tokens, parents = np.asarray(self.tokens), np.asarray(self.parents)
        if tokens.ndim != 1 or tokens.shape != parents.shape or tokens.size == 0:
            raise ValueError(f"a tree needs as many parents as tokens: {parents.shape} and {tokens.shape}")
        if tokens.dtype.kind not in "iu" or parents.dtype.kind not in "iu":
            raise ValueError("a tree's tokens and parents are whole numbers")
        above = parents.tolist()
        if above[0] != -1 or not all(0 <= parent < node for node, parent in enumerate(above[1:], start=1)):
            raise ValueError("a tree's root has parent -1 and every other node a parent before itself")
        if self.origins and len(self.origins) != tokens.size:
            raise ValueError(f"{len(self.origins)} origins for {tokens.size} nodes")
        if self.chances is not None and self.chances.shape != tokens.shape:
            raise ValueError(f"{self.chances.shape} chances for {tokens.size} nodes")
        if tokens.dtype != np.int32:
            wide = tokens.astype(np.int64)
            tokens = np.where(wide == wide.astype(np.int32), wide, -1)  # `fit` drops what is too big
        object.__setattr__(self, "tokens", np.ascontiguousarray(tokens, dtype=np.int32))
        object.__setattr__(self, "parents", np.ascontiguousarray(parents, dtype=np.int32))

    @classmethod
    def chain(cls, root: int, guesses: Sequence[int] = ()) -> DraftTree:
        """One branch: `guesses[0]` follows the root, and so on. Without guesses, plain decoding."""
        n = 1 + len(guesses)
        return cls(np.array([root, *guesses], dtype=np.int64), np.arange(-1, n - 1, dtype=np.int32))

    def __len__(self) -> int:
        return int(self.tokens.size)

    def depths(self) -> IntArray:
        """int32 [n]: steps from the root, which has depth 0."""
        depths = [0]
        for parent in self.parents.tolist()[1:]:
            depths.append(depths[parent] + 1)
        return np.array(depths, dtype=np.int32)

    def children(self) -> list[list[int]]:
        """[n] lists: each node's children in the order of their indices."""
        children: list[list[int]] = [[] for _ in range(len(self))]
        for node, parent in enumerate(self.parents.tolist()[1:], start=1):
            children[parent].append(node)
        return children

    def path(self, node: int) -> list[int]:
        """Node indices from the root to `node`, both included."""
        path = [node]
        while path[-1]:
            path.append(int(self.parents[path[-1]]))
        return path[::-1]

    def fit(self, root: int, *, nodes: int, depth: int, vocab_size: int) -> DraftTree:
        """This tree made safe to verify: whatever a drafter proposed, what is left can be computed.

        The root becomes `root`. Nodes below `depth`, nodes with tokens outside the vocabulary, the nodes
        under either, and whatever then exceeds `nodes` (the root not counted) are dropped.
        """
        if (
            self.tokens[0] == root
            and len(self) <= nodes + 1
            and len(self) <= depth + 1
            and bool(((self.tokens >= 0) & (self.tokens < vocab_size)).all())
        ):
            return self
        depths = self.depths()
        fine = (self.tokens >= 0) & (self.tokens < vocab_size) & (depths <= depth)
        fine[0] = True
        for node in range(1, len(self)):
            fine[node] &= fine[self.parents[node]]
        tokens = self.tokens.copy()
        tokens[0] = root
        return replace(self, tokens=tokens).only(np.flatnonzero(fine)[: nodes + 1].tolist())

    def only(self, nodes: Sequence[int]) -> DraftTree:
        """The tree of these nodes, in ascending order: the root is among them, and with each its parent."""
        kept = np.array(nodes, dtype=np.int64)
        place = np.full(len(self), -1, dtype=np.int32)
        place[kept] = np.arange(kept.size)
        parents = self.parents[kept]
        parents[1:] = place[parents[1:]]
        origins = tuple(self.origins[i] for i in kept) if self.origins else ()
        proposals = {int(place[i]): q for i, q in self.proposals.items() if place[i] >= 0}
        chances = None if self.chances is None else self.chances[kept]
        return DraftTree(self.tokens[kept], parents, origins, proposals, chances)
