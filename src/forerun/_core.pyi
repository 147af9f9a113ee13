"""The C++ core: kernels, caches and the decoder.

Arrays must be of the very type that is asked for (TypeError). Other mistakes raise ValueError, lack of memory
MemoryError, a cache that another thread is using RuntimeError. All may be called from any thread; forwards of
one team take turns.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint32]

def available_kernels() -> list[str]:
    """Names of the kernels that this machine can run, the best first."""

def read_bandwidth(team: Team, megabytes: int = 256, repeats: int = 5) -> float:
    """Bytes per second that the team reads from memory: the best of `repeats` passes over `megabytes`."""

class Team:
    """Threads that compute together. RuntimeError when the system does not start so many."""

    def __init__(self, threads: int) -> None: ...
    @property
    def size(self) -> int: ...

class Cache:
    """Keys and values of one sequence; `type` is f32, f16 or q8."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, type: str, capacity: int) -> None: ...
    @property
    def length(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def bytes_per_token(self) -> int: ...
    def commit(self, path: Ints | list[int]) -> None: ...
    def truncate(self, length: int) -> None: ...

class Weights:
    """A decoder's weights while they are gathered; `layer` is -1 for what belongs to no layer."""

    def __init__(self, layers: int, team: Team) -> None: ...
    def set_linear(
        self,
        layer: int,
        name: str,
        kind: str,
        data: Bytes,
        outputs: int,
        inputs: int,
        format: str,
        row_order: Ints | None = None,
        bias: Floats | None = None,
    ) -> tuple[str, int]:
        """Pack one tensor; returns the format it is executed in and its bytes."""
    def share(self, name: str, linear: Linear) -> None:
        """Another model's embedding or head."""
    def set_entry(self, kind: str, residual_is_normed: bool, hands_on_normed: bool) -> None:
        """The weights become a drafting head's: eagle or eagle3."""
    def set_norm(self, layer: int, name: str, values: Floats) -> None: ...

class Output:
    """What a forward gives: logits [n, vocabulary] and features [n, taps, hidden], arrays that are made when
    they are asked for."""

    @property
    def logits(self) -> Floats: ...
    @property
    def features(self) -> Floats: ...

class Model:
    """A decoder over packed weights, which it takes from `weights`."""

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        vocab: int,
        norm_eps: float,
        window: int,
        rope_scale: float,
        inv_freq: Floats,
        weights: Weights,
        team: Team,
        kernels: str,
    ) -> None: ...
    def forward(
        self,
        tokens: Ints,
        parents: Ints,
        owners: Ints,
        caches: list[Cache],
        logits: Ints,
        taps: Ints,
        continues: bool = False,
    ) -> tuple[Floats, Floats]:
        """Compute and stage rows; logits [wanted, vocab] and features [rows, taps, hidden]."""
    def verify(self, tree: DraftTree, cache: Cache, taps: Sequence[int]) -> Output:
        """Compute and stage a tree's nodes behind what the cache holds; the logits of all of them."""
    def first_layers(self, layers: int) -> Model:
        """The first layers, then the norm and the head; the weights are shared."""
    @property
    def embedding(self) -> Linear: ...
    @property
    def head(self) -> Linear: ...
    @property
    def team(self) -> Team: ...
    def argmax(self, row: Floats) -> int: ...
    @property
    def kernels(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def profile(self) -> dict[str, float]: ...

class DraftTree:
    """Guesses for what follows the last emitted token. Not to be changed.

    Node 0, the root, is the last emitted token itself: it is in no cache yet. Node i > 0 guesses the token
    after its parent, and parents come before their children. Siblings may repeat a token: the first wins.

        tokens  = [the, cat, sat, dog]          the --- cat --- sat
        parents = [ -1,   0,   1,   0]              `-- dog

    Lists, tuples and arrays are made each time they are asked for.

    Args:
        tokens: int [n]. What is no int32 becomes -1: `fit` drops such nodes before anything is computed.
        parents: int [n]; parents[0] = -1 and 0 <= parents[i] < i.
        origins: who drafted each node, [n] names, or empty: the drafter that proposed the tree.
        proposals: for the rejection rule: node -> float64 [vocabulary], the distribution its children were
            drawn from, one after the other without replacement, in the order of their indices. A node that is
            missing here had its children chosen, not drawn (each is a point mass). The coupled rule never
            looks.
        chances: float [n], the drafter's own opinion how probable it is that the text goes through a node
            (1 at the root, never above the parent's), or None.

    Raises:
        ValueError: the arrays are not such a tree.
    """

    def __init__(
        self,
        tokens: npt.ArrayLike,
        parents: npt.ArrayLike,
        origins: Sequence[str] = (),
        proposals: Mapping[int, Doubles] = ...,
        chances: npt.ArrayLike | None = None,
    ) -> None: ...
    @staticmethod
    def chain(root: int, guesses: npt.ArrayLike = ...) -> DraftTree:
        """One branch: `guesses[0]` follows the root, and so on. Without guesses, plain decoding."""
    def __len__(self) -> int: ...
    @property
    def ids(self) -> list[int]:
        """The tokens."""
    @property
    def above(self) -> list[int]:
        """The parents."""
    @property
    def odds(self) -> list[float] | None:
        """The chances."""
    @property
    def origins(self) -> tuple[str, ...]: ...
    @property
    def proposals(self) -> dict[int, Doubles]: ...
    @property
    def drawn(self) -> bool:
        """Whether there are proposals."""
    @property
    def tokens(self) -> Ints: ...
    @property
    def parents(self) -> Ints: ...
    @property
    def chances(self) -> Floats | None: ...
    @property
    def depths(self) -> list[int]:
        """[n]: steps from the root, which has depth 0."""
    @property
    def children(self) -> list[list[int]]:
        """[n] lists: each node's children in the order of their indices."""
    def path(self, node: int) -> list[int]:
        """Node indices from the root to `node`, both included."""
    def only(self, nodes: Sequence[int]) -> DraftTree:
        """The tree of these nodes in this order: the root is the first, and each comes after its parent."""
    def likely_first(self) -> DraftTree:
        """The same nodes in an order in which the likeliest child and what is below it come first: the path
        that is accepted is then mostly a beginning, which a cache keeps without moving anything. Drawn
        candidates stay as they are."""
    def fit(self, root: int, *, nodes: int, depth: int, vocab_size: int) -> DraftTree:
        """This tree made safe to verify: whatever a drafter proposed, what is left can be computed.

        The root becomes `root`. Nodes below `depth`, nodes with tokens outside the vocabulary, the nodes
        under either, and whatever then exceeds `nodes` (the root not counted) are dropped.
        """
    def named(self, name: str) -> DraftTree:
        """With origins and chances, if it had none: an unknown chance halves with each depth."""

def merge(first: DraftTree, second: DraftTree, nodes: int) -> DraftTree:
    """The nodes of both trees, at most the `nodes` most probable below the root. A node that both have is
    the one's that is surer of it. Both are `named`.

    Drawn candidates are left as they are (others beside them would need a rule of their own), and dropped for
    a first tree that promises an accepted guess.
    """

def likely_leaf(tree: DraftTree) -> int:
    """The leaf that a walk along the most probable children comes to."""

class CostCurve:
    """t(n), seconds of a target forward over n rows, as measured beforehand, kept right by what the steps of
    a generation really take (contexts grow, machines get busy).

    Args:
        points: seconds by rows, at least for one row; between them t is linear, beyond them it goes on as
            between the last two (or in proportion, if there is only one).
        most: the widest forward asked about.
    """

    def __init__(self, points: Mapping[int, float], most: int = 64) -> None: ...
    @property
    def most(self) -> int: ...
    def __call__(self, n: int) -> float: ...
    def saw(self, n: int, seconds: float) -> None:
        """A forward over n rows took so long. It tells of widths near by, too: none stays wrong for not being
        tried."""

class Account:
    """What one drafter that takes time is worth, in this text and earlier ones.

    Args:
        promising: whether it is likely to pay, before anything is known.
    """

    def __init__(self, promising: bool) -> None: ...
    @property
    def levels(self) -> dict[int, list[tuple[float, float, int]]]:
        """By how much others promise (0: nothing), by depth: tokens that its guesses are worth, seconds that
        asking takes, and how often that was seen."""
    @property
    def nodes(self) -> float:
        """Of its guesses that are verified where it pays, lately."""

class Pace:
    """Decides how deep a drafter is asked in one text; see `core.account`."""

    def __init__(self, account: Account, plain: float) -> None: ...
    @property
    def hopeful(self) -> bool: ...
    def ask(self, price: float, nodes: int, depth: int, beside: DraftTree | None) -> tuple[int, int] | None:
        """Nodes and depth of what it is asked for, or None."""
    def gained(self, gains: Sequence[float], nodes: int, seconds: float) -> None: ...
    def passed(self, price: float, seconds: float, right: bool) -> None: ...

class Judged:
    """A tree, and what its nodes are likely to come to."""

    @property
    def chances(self) -> list[float]:
        """[n]: that the text goes through a node, 1 at the root."""
    def worth_most(self, curve: CostCurve, price: float) -> list[int]:
        """The nodes but the root that are worth most verified, ascending; see `core.cost_budget`. Drawn
        candidates are kept or dropped a whole depth at a time."""
    def worth(self, kept: Sequence[int], curve: CostCurve, price: float) -> float:
        """Tokens that verifying these nodes gives, less what it costs."""
    def part_of(
        self, name: str, kept: Sequence[int], curve: CostCurve, price: float, without: float
    ) -> tuple[list[float], int]:
        """One drafter's part of `kept`: tokens that its nodes are worth, by depth, as deep as it guessed, and
        how many they are. Together they gain no more than `kept` is worth beyond `without`, what could be had
        without that drafter."""

class Records:
    """What became of guesses, by kind: their drafter, and how sure it was in tenths (where it has no opinion,
    how deep they are).

    Args:
        reliance: the part of what drafters promise that comes true, before anything is known of them.
    """

    def __init__(self, reliance: float = 1.0) -> None: ...
    @property
    def reliance(self) -> float: ...
    def begin(self) -> None:
        """Another text begins."""
    def judge(self, tree: DraftTree) -> Judged:
        """Of drawn candidates the chances depend on their depths alone: which are verified must not depend on
        what was drawn."""
    def learn(self, judged: Judged, tokens: Sequence[int]) -> str | None:
        """The text went on with `tokens` after the tree's root. Who guessed the first of them ("" in a tree
        without origins), or None."""

class SamplingSettings:
    """How a text's tokens are chosen; `sampling/fused.py` makes it from a pipeline."""

    def __init__(
        self,
        vocab_size: int,
        prompt_length: int,
        temperature: float,
        top_k: int,
        top_p: float,
        log_min_p: float | None,
        coupled: bool,
        counts_history: bool,
        repetition: float,
        presence: float,
        frequency: float,
        bias_tokens: Ints,
        bias: Floats,
        forbidden: Ints,
        end_tokens: Ints,
        min_tokens: int,
        seed: int,
    ) -> None: ...

class Chooser:
    """Chooses tokens, by either rule."""

    def __init__(self, settings: SamplingSettings, kernels: str = "") -> None: ...
    def choose(self, logits: Floats, history: Ints, path: list[int], allowed: Bits | None = None) -> int:
        """The token that follows; -1: a logit is not a number; -2: nothing is allowed."""
    def choose_by_rejection(
        self,
        logits: Floats,
        history: Ints,
        path: list[int],
        candidates: list[int],
        proposal: Doubles | None,
        allowed: Bits | None = None,
    ) -> int:
        """As `choose`, by the rejection rule."""
    def walk(
        self, logits: Output | Floats, history: Ints, tree: DraftTree, by_rejection: bool
    ) -> tuple[list[int], list[int], int] | None:
        """Acceptance along a tree (see `core.accept`): the accepted nodes, the tokens chosen at them, and how
        many of them had children. None: nothing can be chosen at the root.

        Args:
            logits: [nodes or more, vocabulary].
            history: what is before the root.
        """
    def rank(
        self, logits: Floats, history: Ints, path: list[int], count: int, allowed: Bits | None = None
    ) -> tuple[int, list[int], list[float]]:
        """What `choose` would say of the same mistakes, else 0; the best tokens with noise, their chances."""
    def draw(
        self,
        logits: Floats,
        history: Ints,
        path: list[int],
        count: int,
        serial: int,
        allowed: Bits | None = None,
    ) -> tuple[int, list[int], Doubles]:
        """What `choose` would say of the same mistakes, else 0; tokens drawn without replacement, in that
        order, and the distribution that they were drawn from, [vocabulary]."""
    def probabilities(
        self, logits: Floats, history: Ints, path: list[int], allowed: Bits | None = None
    ) -> tuple[int, Doubles]:
        """What `choose` would say of the same mistakes, else 0, and the distribution, [vocabulary]."""

def gumbel(seed: int, position: int, tokens: Ints) -> Doubles:
    """Gumbel noise of these tokens at this position, [n]."""

def log_probabilities(
    logits: Floats, token: int, top: int, kernels: str = ""
) -> tuple[float, list[tuple[int, float]]] | None:
    """A token's log-probability, and the most probable tokens with theirs; None: a logit is NaN or +inf."""

class SuffixIndex:
    """A suffix automaton of past texts, with counts."""

    def __init__(self) -> None: ...
    def add_text(self, tokens: Ints) -> None: ...
    @property
    def tokens(self) -> int: ...
    @property
    def bytes(self) -> int:
        """Memory held."""

class SuffixDrafter:
    """Drafts trees from what followed the longest endings of its text, and of the texts in `past`, before."""

    def __init__(
        self,
        past: SuffixIndex | None,
        doubt: float,
        shorter: float,
        prior: float,
        window: float,
        recent: float,
        span: float,
        least_chance: float,
    ) -> None: ...
    def observe(self, tokens: Ints | Sequence[int]) -> None: ...
    def truncate(self, length: int) -> None: ...
    def propose(self, nodes: int, depth: int) -> DraftTree:
        """A tree below the text's last token."""
    def extend(self, tree: DraftTree, node: int, nodes: int, depth: int, name: str) -> DraftTree:
        """The tree with at most `nodes` guesses more below `node`, by that name."""
    @property
    def length(self) -> int: ...
    @property
    def bytes(self) -> int:
        """Memory held, `past` aside."""

class Linear:
    """A packed linear layer."""

    def __init__(
        self,
        team: Team,
        kind: str,
        data: Bytes,
        outputs: int,
        inputs: int,
        format: str,
        bias: Floats | None = None,
    ) -> None: ...
    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    def rows(self, team: Team, rows: Ints, format: str) -> Linear:
        """Some outputs as a layer of their own."""

class TargetRows:
    """Where heads that guess by the target's output layer have rows from for tokens of a text that they lack:
    of `source`, executed in `format`, `most` of a text."""

    def __init__(self, source: Linear, format: str, most: int) -> None: ...

class EagleHead:
    """An EAGLE head; `weights` have an entry, `fc` reduces the target's features where it is not the
    entry's."""

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        vocab: int,
        outputs: int,
        norm_eps: float,
        rope_scale: float,
        inv_freq: Floats,
        weights: Weights,
        fc: Linear | None,
        fc_norm: Floats,
        fc_norms: int,
        tokens: Ints,
        rows: TargetRows | None,
        team: Team,
        kernels: str,
    ) -> None: ...
    @property
    def features(self) -> int:
        """Values of a token's features."""

class EagleDrafter:
    """An EAGLE head's drafts for one text; `kv` is f32 or f16."""

    def __init__(self, head: EagleHead, settings: SamplingSettings, kv: str, capacity: int) -> None: ...
    def begin(self) -> None: ...
    def observe(self, tokens: Sequence[int], features: Floats | None, reads: bool = True) -> None:
        """Tokens that follow, and the features of the token before each, [n, ...]; None for the first.
        Without `reads` nothing is computed of them until a proposal is asked for."""
    def truncate(self, length: int) -> None: ...
    def propose(self, nodes: int, depth: int, least_chance: float) -> DraftTree:
        """A tree below the text's last token."""
    @property
    def length(self) -> int: ...
    @property
    def computed(self) -> int:
        """Rows in the cache."""
    @property
    def rare(self) -> list[int]:
        """Tokens of the text that the head lacks, and that the last proposal could say all the same."""
    @property
    def logits(self) -> Floats:
        """Of the token that follows the text, as the last proposal had them; empty if there are none."""

class MedusaHeads:
    """Medusa's heads: the blocks of each, and its output layer."""

    def __init__(
        self,
        heads: list[tuple[list[Linear], Linear]],
        tokens: Ints,
        rows: TargetRows | None,
        team: Team,
        kernels: str,
    ) -> None: ...
    def logits(self, head: int, state: Floats) -> Floats: ...

class MedusaDrafter:
    """Medusa's drafts for one text."""

    def __init__(self, heads: MedusaHeads, settings: SamplingSettings) -> None: ...
    def begin(self) -> None: ...
    def observe(self, tokens: Sequence[int], features: Floats | None, reads: bool = True) -> None: ...
    def truncate(self, length: int) -> None: ...
    def propose(self, nodes: int, depth: int, least_chance: float) -> DraftTree:
        """A tree below the text's last token."""
    @property
    def length(self) -> int: ...
    @property
    def rare(self) -> list[int]:
        """Tokens of the text that the head lacks, and that the last proposal could say all the same."""

class HydraHeads:
    """Hydra's heads: of each its first block, whose outputs are those of `linear` and then those of the
    residual connection, further blocks, and its output layer."""

    def __init__(
        self,
        heads: list[tuple[Linear, list[Linear], Linear]],
        embedding: Linear,
        tokens: Ints,
        rows: TargetRows | None,
        team: Team,
        kernels: str,
    ) -> None: ...
    def logits(self, state: Floats, tokens: Sequence[int]) -> Floats:
        """Of the token after these, the first of which follows the state's."""

class HydraDrafter:
    """Hydra's drafts for one text."""

    def __init__(self, heads: HydraHeads, settings: SamplingSettings) -> None: ...
    def begin(self) -> None: ...
    def observe(self, tokens: Sequence[int], features: Floats | None, reads: bool = True) -> None: ...
    def truncate(self, length: int) -> None: ...
    def propose(self, nodes: int, depth: int, least_chance: float) -> DraftTree:
        """A tree below the text's last token."""
    @property
    def length(self) -> int: ...
    @property
    def rare(self) -> list[int]:
        """Tokens of the text that the heads lack, and that the last proposal could say all the same."""
