"""The C++ core: kernels, caches and the decoder. Mistakes raise ValueError, lack of memory MemoryError."""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

def available_kernels() -> list[str]:
    """Names of the kernels that this machine can run, the best first."""

def read_bandwidth(team: Team, megabytes: int = 256, repeats: int = 5) -> float:
    """Bytes per second that the team reads from memory: the best of `repeats` passes over `megabytes`."""

class Team:
    """Threads that compute together."""

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
    def commit(self, path: Ints) -> None: ...
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
    def set_norm(self, layer: int, name: str, values: Floats) -> None: ...

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
        self, tokens: Ints, parents: Ints, owners: Ints, caches: list[Cache], logits: Ints, taps: Ints
    ) -> tuple[Floats, Floats]:
        """Compute and stage rows; logits [wanted, vocab] and features [rows, taps, hidden]."""
    def argmax(self, row: Floats) -> int: ...
    @property
    def kernels(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def profile(self) -> dict[str, float]: ...
