"""Draft trees. A chain is a tree with one branch, plain decoding a tree with only a root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]

NONE_DRAWN: Mapping[int, DoubleArray] = MappingProxyType({})


class DraftTree:
    """Guesses for what follows the last emitted token. Not to be changed.

    Node 0, the root, is the last emitted token itself: it is in no cache yet. Node i > 0 guesses the token
    after its parent, and parents come before their children. Siblings may repeat a token: the first wins.

        tokens  = [the, cat, sat, dog]          the --- cat --- sat
        parents = [ -1,   0,   1,   0]              `-- dog

    A step has a tree or several, of a few nodes, so trees are lists; the arrays are made when they are asked
    for.

    Args:
        tokens: int [n].
        parents: int [n]; parents[0] = -1 and 0 <= parents[i] < i.
        origins: who drafted each node, [n] names, or empty: the drafter that proposed the tree.
        chances: float [n], the drafter's own opinion how probable it is that the text goes through a node
            (1 at the root, never above the parent's), or None.
        proposals: for the rejection rule: node -> float64 [vocabulary], the distribution its children were
            drawn from, one after the other without replacement, in the order of their indices. A node that is
            missing here had its children chosen, not drawn (each is a point mass). The coupled rule never
            looks.

    Attributes:
        ids, above, odds: tokens, parents and chances as lists.

    Raises:
        ValueError: the arrays are not such a tree.
    """

    ids: list[int]
    above: list[int]
    origins: tuple[str, ...]
    proposals: Mapping[int, DoubleArray]
    odds: list[float] | None

    def __init__(
        self,
        tokens: npt.ArrayLike,
        parents: npt.ArrayLike,
        origins: tuple[str, ...] = (),
        proposals: Mapping[int, DoubleArray] = NONE_DRAWN,
        chances: npt.ArrayLike | None = None,
    ) -> None:
        ids, above = np.asarray(tokens), np.asarray(parents)
        if ids.ndim != 1 or ids.shape != above.shape or ids.size == 0:
            raise ValueError(f"a tree needs as many parents as tokens: {above.shape} and {ids.shape}")
        if ids.dtype.kind not in "iu" or above.dtype.kind not in "iu":
            raise ValueError("a tree's tokens and parents are whole numbers")
        self.ids, self.above = ids.tolist(), above.tolist()
        if self.above[0] != -1 or not all(0 <= up < node for node, up in enumerate(self.above[1:], start=1)):
            raise ValueError("a tree's root has parent -1 and every other node a parent before itself")
        if origins and len(origins) != ids.size:
            raise ValueError(f"{len(origins)} origins for {ids.size} nodes")
        self.origins, self.proposals, self.odds = origins, proposals, None
        if chances is not None:
            opinions = np.asarray(chances, dtype=np.float32)
            if opinions.shape != ids.shape:
                raise ValueError(f"{opinions.shape} chances for {ids.size} nodes")
            self.odds = opinions.tolist()

    @classmethod
    def made(
        cls,
        ids: list[int],
        above: list[int],
        origins: tuple[str, ...] = (),
        proposals: Mapping[int, DoubleArray] = NONE_DRAWN,
        odds: list[float] | None = None,
    ) -> DraftTree:
        """A tree of lists that are one for certain: nothing is checked."""
        tree = cls.__new__(cls)
        tree.ids, tree.above, tree.origins, tree.proposals, tree.odds = ids, above, origins, proposals, odds
        return tree

    @classmethod
    def chain(cls, root: int, guesses: Sequence[int] = ()) -> DraftTree:
        """One branch: `guesses[0]` follows the root, and so on. Without guesses, plain decoding."""
        if not len(guesses):
            return cls.made([int(root)], [-1])
        return cls.made([int(root), *map(int, guesses)], list(range(-1, len(guesses))))

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def tokens(self) -> IntArray:
        """int32 [n]. What is no int32 is -1: `fit` drops such nodes before anything is computed."""
        ids = self.ids
        if min(ids) < -(2**31) or max(ids) >= 2**31:
            ids = [token if -(2**31) <= token < 2**31 else -1 for token in ids]
        return np.array(ids, dtype=np.int32)

    @cached_property
    def parents(self) -> IntArray:
        """int32 [n]."""
        return np.array(self.above, dtype=np.int32)

    @cached_property
    def chances(self) -> FloatArray | None:
        """float32 [n], or None."""
        return None if self.odds is None else np.array(self.odds, dtype=np.float32)

    @cached_property
    def depths(self) -> list[int]:
        """[n]: steps from the root, which has depth 0."""
        depths = [0]
        for parent in self.above[1:]:
            depths.append(depths[parent] + 1)
        return depths

    @cached_property
    def children(self) -> list[list[int]]:
        """[n] lists: each node's children in the order of their indices."""
        children: list[list[int]] = [[] for _ in self.ids]
        for node, parent in enumerate(self.above[1:], start=1):
            children[parent].append(node)
        return children

    def path(self, node: int) -> list[int]:
        """Node indices from the root to `node`, both included."""
        path = [node]
        while path[-1]:
            path.append(self.above[path[-1]])
        return path[::-1]

    def fit(self, root: int, *, nodes: int, depth: int, vocab_size: int) -> DraftTree:
        """This tree made safe to verify: whatever a drafter proposed, what is left can be computed.

        The root becomes `root`. Nodes below `depth`, nodes with tokens outside the vocabulary, the nodes
        under either, and whatever then exceeds `nodes` (the root not counted) are dropped.
        """
        ids = self.ids
        small = len(ids) <= nodes + 1 and len(ids) <= depth + 1
        if small and ids[0] == root and min(ids) >= 0 and max(ids) < vocab_size:
            return self
        fine = [True]
        for node in range(1, len(ids)):
            good = 0 <= ids[node] < vocab_size and self.depths[node] <= depth
            fine.append(good and fine[self.above[node]])
        kept = self.only([node for node, good in enumerate(fine) if good][: nodes + 1])
        return DraftTree.made([root, *kept.ids[1:]], kept.above, kept.origins, kept.proposals, kept.odds)

    def only(self, nodes: Sequence[int]) -> DraftTree:
        """The tree of these nodes, in ascending order: the root is among them, and with each its parent."""
        if len(nodes) == len(self.ids):
            return self
        place = {node: at for at, node in enumerate(nodes)}
        drawn = self.proposals and {place[node]: q for node, q in self.proposals.items() if node in place}
        return DraftTree.made(
            [self.ids[node] for node in nodes],
            [-1, *(place[self.above[node]] for node in nodes[1:])],
            tuple([self.origins[node] for node in nodes]) if self.origins else (),
            drawn,
            None if self.odds is None else [self.odds[node] for node in nodes],
        )
