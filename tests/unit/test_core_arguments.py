"""What contradicts itself, or is of another type, the C++ core refuses: arrays, caches, sizes, tensors."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import pytest

from forerun import _core
from forerun.backends.cpu import CpuBackend, load_backend
from forerun.models.rows import Rows
from support.random_models import random_checkpoint, random_config

NOTHING = np.zeros(0, np.int32)


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return load_backend(random_checkpoint(random_config(), "F32"), dtype="bf16", threads=2)


def ints(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def forward(backend: CpuBackend, **changed: object) -> object:
    """One row of a new cache, with some arguments replaced."""
    arguments: dict[str, object] = {
        "tokens": ints(1),
        "parents": ints(-1),
        "owners": ints(0),
        "caches": [backend.new_cache(10)],
        "logits": ints(0),
        "taps": NOTHING,
    }
    return backend._model.forward(**{**arguments, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tokens", "parents", "owners", "logits", "taps"])
@pytest.mark.parametrize(
    "wrong",
    [None, 0, [0], "0", np.zeros(1), np.zeros(1, np.int64), np.zeros((1, 1), np.int32), np.zeros(1, ">i4")],
    ids=lambda wrong: type(wrong).__name__ + str(getattr(wrong, "dtype", "")),
)
def test_arrays_of_another_type_are_refused(backend: CpuBackend, name: str, wrong: object) -> None:
    with pytest.raises(TypeError):
        forward(backend, **{name: wrong})


@pytest.mark.parametrize("wrong", [None, 3, "cache", _core.Cache, _core.Team(1)])
def test_what_is_not_a_cache_is_refused(backend: CpuBackend, wrong: object) -> None:
    with pytest.raises(TypeError, match="not a cache"):
        forward(backend, caches=[wrong])
    with pytest.raises(TypeError):
        forward(backend, caches=wrong)


@pytest.mark.filterwarnings("ignore:nanobind")
def test_objects_that_were_never_made_are_refused(backend: CpuBackend) -> None:
    blank = _core.Cache.__new__(_core.Cache)
    with pytest.raises(TypeError):
        forward(backend, caches=[blank])
    with pytest.raises(TypeError):
        blank.truncate(0)
    with pytest.raises(TypeError):
        copy.copy(backend.new_cache(1))
    for make in (lambda team: _core.Weights(1, team), lambda team: _core.read_bandwidth(team, 1, 1)):
        with pytest.raises(TypeError):
            make(None)
        with pytest.raises(TypeError):
            make(_core.Team.__new__(_core.Team))


def test_arrays_of_any_stride_and_alignment_are_read_right(backend: CpuBackend) -> None:
    tokens = np.random.default_rng(0).integers(0, 300, 20).astype(np.int32)
    cache = backend.new_cache(30)
    expected = backend.forward(Rows.chain(tokens, cache), ints(*range(20))).logits.copy()
    raw = bytearray(1 + tokens.nbytes)
    raw[1:] = tokens.tobytes()
    parents, owner, every = np.arange(-1, 19, dtype=np.int32), np.zeros(20, np.int32), ints(*range(20))
    for same in (
        tokens[::-1].copy()[::-1],
        np.repeat(tokens, 3)[::3],
        np.frombuffer(raw, np.int32, offset=1),
    ):
        got = backend.forward(Rows(same, parents, [cache], owner), every).logits
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"tokens": ints(1, 2)}, "different lengths"),
        ({"owners": NOTHING}, "different lengths"),
        ({"owners": ints(1)}, "names no cache"),
        ({"owners": ints(-1)}, "names no cache"),
        ({"caches": []}, "names no cache"),
        ({"logits": ints(0, 0)}, "more rows than there are"),
        ({"logits": ints(-1)}, "not there"),
        ({"taps": ints(-1)}, "hidden state"),
        ({"taps": ints(0, 0, 0, 0)}, "hidden states"),
        ({"tokens": np.zeros(1 << 21, np.int32)}, "too many rows"),
    ],
)
def test_contradictions_are_refused(backend: CpuBackend, changed: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        forward(backend, **changed)


def test_one_cache_twice_and_another_models_cache_are_refused(backend: CpuBackend) -> None:
    cache = backend.new_cache(10)
    with pytest.raises(ValueError, match="named twice"):
        forward(backend, caches=[cache, cache])
    with pytest.raises(ValueError, match="another model"):
        forward(backend, caches=[_core.Cache(2, 2, 16, "f16", 10)])
    assert cache.length == 0
    forward(backend, caches=[cache])


def test_sizes_that_no_machine_holds() -> None:
    most = (1 << 31) - 1
    with pytest.raises(MemoryError):
        _core.Cache(most, most, 4096, "f32", 1 << 28)
    with pytest.raises(MemoryError):
        _core.Cache(1 << 20, 1 << 20, 64, "f16", 1 << 20)
    for arguments in (
        (0, 1, 1, "f16", 1),
        (1, 1, 1 << 20, "f16", 1),
        (1, 1, 1, "f16", most),
        (1, 1, 1, "f8", 1),
    ):
        with pytest.raises(ValueError, match="cache"):
            _core.Cache(*arguments)
    for threads in (0, -1, 1025, most):
        with pytest.raises(ValueError, match="threads"):
            _core.Team(threads)
    for layers in (0, -1, most):
        with pytest.raises(ValueError, match="layers"):
            _core.Weights(layers, _core.Team(1))


def set_linear(**changed: object) -> object:
    arguments: dict[str, object] = {
        "layer": 0,
        "name": "q_proj",
        "kind": "F32",
        "data": np.zeros(64, np.uint8),
        "outputs": 4,
        "inputs": 4,
        "format": "f32",
    }
    return _core.Weights(1, _core.Team(1)).set_linear(**{**arguments, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"layer": 1},
        {"name": "x"},
        {"layer": -1},
        {"kind": "Q9"},
        {"format": "f8"},
        {"outputs": 5},
        {"inputs": 5},
        {"outputs": 0},
        {"inputs": -4},
        {"outputs": (1 << 31) - 1, "inputs": (1 << 31) - 1},
        {"inputs": (1 << 24) + 1},
        {"kind": "Q4_0"},
        {"row_order": ints(0, 1, 2)},
        {"row_order": ints(0, 1, 2, 4)},
        {"row_order": ints(0, 1, 2, -1)},
        {"bias": np.zeros(5, np.float32)},
    ],
)
def test_tensors_that_contradict_their_shape_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"weights|row|format"):
        set_linear(**changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"data": np.zeros(16, np.float32)},
        {"data": np.zeros((8, 8), np.uint8)},
        {"data": np.zeros(128, np.uint8)[::2]},
        {"row_order": np.arange(4)},
        {"bias": np.zeros(4)},
    ],
)
def test_tensors_of_another_type_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        set_linear(**changed)


def test_tensors_may_lie_anywhere() -> None:
    raw = np.zeros(65, np.uint8)
    assert set_linear(data=raw[1:]) == ("f32", 256)
