"""The law that exactness stands on: a position's logits are the same bits however they are computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun import _core
from forerun.backends.cpu import CpuBackend, load_backend
from forerun.models.rows import Cache, Rows
from support.random_models import random_checkpoint, random_config

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
MODELS = {
    "grouped": random_config(),
    "window": random_config(window=37),
    "biases": random_config(qkv_bias=True, tied=False),
    "head norms": random_config(qk_norm=True),
    "odd head": random_config(head_dim=24, heads=5, kv_heads=5),
    "many queries": random_config(heads=28, kv_heads=1, head_dim=16),
}
Bits = npt.NDArray[np.uint32]
relaxed = settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def all_rows(n: int) -> npt.NDArray[np.int32]:
    return np.arange(n, dtype=np.int32)


def bits(x: npt.NDArray[np.float32]) -> Bits:
    return np.ascontiguousarray(x).view(np.uint32)


def one_at_a_time(backend: CpuBackend, tokens: npt.NDArray[np.int32], cache: Cache | None = None) -> Bits:
    """Logits [n, vocab] of plain decoding, as bits."""
    cache = backend.new_cache(600) if cache is None else cache
    found = []
    for token in tokens:
        output = backend.forward(Rows.chain(np.array([token], dtype=np.int32), cache), all_rows(1))
        found.append(bits(output.logits[0]).copy())
        cache.commit(all_rows(1))
    return np.array(found)


def in_chunks(backend: CpuBackend, tokens: npt.NDArray[np.int32], cuts: list[int]) -> Bits:
    cache = backend.new_cache(600)
    found = []
    for chunk in np.split(tokens, sorted({cut for cut in cuts if 0 < cut < len(tokens)})):
        output = backend.forward(Rows.chain(chunk, cache), all_rows(len(chunk)))
        found.append(bits(output.logits).copy())
        cache.commit(all_rows(len(chunk)))
    return np.concatenate(found)


def path_to(parents: npt.NDArray[np.int32], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    return path[::-1]


def check_tree(
    backend: CpuBackend, draw: np.random.Generator, before: int, size: int, plain: CpuBackend
) -> None:
    """A random tree behind a random prefix, computed at once and in two forwards: each node's logits against
    plain decoding of its path, then a path is committed and decoding goes on."""
    vocab = backend.config.vocab_size
    prefix = draw.integers(0, vocab, before).astype(np.int32)
    tokens = draw.integers(0, vocab, size).astype(np.int32)
    parents = np.array([draw.integers(-1, i) if i else -1 for i in range(size)], dtype=np.int32)
    cache = backend.new_cache(600)
    if before:
        backend.forward(Rows.chain(prefix, cache), all_rows(0))
        cache.commit(all_rows(before))
    rows = Rows(tokens, parents, [cache], np.zeros(size, dtype=np.int32))
    staged = bits(backend.forward(rows, all_rows(size)).logits).copy()
    owner, found = np.zeros(size, dtype=np.int32), []
    cut = int(draw.integers(size))
    for part in filter(len, np.split(all_rows(size), [cut])):
        rows = Rows(tokens[part], parents[part], [cache], owner[part], continues=bool(found))
        found.append(bits(backend.forward(rows, all_rows(len(part))).logits).copy())
    np.testing.assert_array_equal(np.concatenate(found), staged)
    for node in draw.choice(size, size=min(size, 4), replace=False):
        path = path_to(parents, int(node))
        expected = one_at_a_time(plain, np.concatenate([prefix, tokens[path]]))[-1]
        np.testing.assert_array_equal(staged[node], expected)
    path = path_to(parents, int(draw.integers(size)))
    cache.commit(np.array(path, dtype=np.int32))
    after = one_at_a_time(backend, prefix[:3] if before > 3 else tokens[:1], cache)
    whole = np.concatenate([prefix, tokens[path], prefix[:3] if before > 3 else tokens[:1]])
    np.testing.assert_array_equal(after, one_at_a_time(plain, whole)[-len(after) :])


@pytest.fixture(scope="module", params=MODELS)
def backends(request: pytest.FixtureRequest) -> tuple[CpuBackend, CpuBackend]:
    """The same model at two threads and at one."""
    checkpoint = random_checkpoint(MODELS[request.param], "F32")
    return load_backend(checkpoint, dtype="bf16", threads=2), load_backend(
        checkpoint, dtype="bf16", threads=1
    )


@relaxed
@given(seed=st.integers(0, 2**32), length=st.integers(1, 300), cuts=st.lists(st.integers(1, 299), max_size=6))
def test_any_chunking_gives_the_bits_of_plain_decoding(
    backends: tuple[CpuBackend, CpuBackend], seed: int, length: int, cuts: list[int]
) -> None:
    two, one = backends
    tokens = np.random.default_rng(seed).integers(0, two.config.vocab_size, length).astype(np.int32)
    np.testing.assert_array_equal(in_chunks(two, tokens, cuts), one_at_a_time(one, tokens))


@relaxed
@given(seed=st.integers(0, 2**32), before=st.integers(0, 280), size=st.integers(1, 40))
def test_a_node_of_any_tree_has_the_bits_of_its_path(
    backends: tuple[CpuBackend, CpuBackend], seed: int, before: int, size: int
) -> None:
    two, one = backends
    check_tree(two, np.random.default_rng(seed), before, size, plain=one)


@pytest.mark.parametrize("kernels", _core.available_kernels())
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_on_every_instruction_set(kind: str, kernels: str) -> None:
    checkpoint = random_checkpoint(random_config(), kind)
    backend = load_backend(checkpoint, threads=2, kernels=kernels)
    draw = np.random.default_rng(7)
    check_tree(backend, draw, 20, 23, plain=backend)
    tokens = draw.integers(0, 300, 70).astype(np.int32)
    np.testing.assert_array_equal(in_chunks(backend, tokens, [1, 18, 35]), one_at_a_time(backend, tokens))


@pytest.mark.parametrize("kernels", _core.available_kernels())
@pytest.mark.parametrize("kv", ["f32", "bf16", "f16", "q8"])
def test_every_kind_of_cache(kv: str, kernels: str) -> None:
    checkpoint = random_checkpoint(random_config(window=150), "F32")
    backend = load_backend(checkpoint, dtype="f32", kv=kv, kernels=kernels)
    for before in (5, 127, 140, 300):
        check_tree(backend, np.random.default_rng(before), before, 30, plain=backend)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8", "q4"])
def test_every_dtype(dtype: str) -> None:
    backend = load_backend(random_checkpoint(random_config(), "F32"), dtype=dtype)
    check_tree(backend, np.random.default_rng(3), 40, 25, plain=backend)


def test_sequences_do_not_touch_each_other() -> None:
    """Trees of several caches in one forward, each at another length, give what each gives alone."""
    backend = load_backend(random_checkpoint(random_config(), "F32"), dtype="bf16")
    draw = np.random.default_rng(5)
    lengths, sizes = (3, 130, 0, 17), (5, 9, 1, 20)
    prefixes = [draw.integers(0, 300, n).astype(np.int32) for n in lengths]
    trees = [draw.integers(0, 300, n).astype(np.int32) for n in sizes]
    parents = [np.array([draw.integers(-1, i) if i else -1 for i in range(n)], dtype=np.int32) for n in sizes]

    def caches() -> list[Cache]:
        made = []
        for prefix in prefixes:
            cache = backend.new_cache(200)
            if len(prefix):
                backend.forward(Rows.chain(prefix, cache), all_rows(0))
                cache.commit(all_rows(len(prefix)))
            made.append(cache)
        return made

    starts = np.cumsum([0, *sizes])
    shifted = [np.where(p < 0, -1, p + s).astype(np.int32) for p, s in zip(parents, starts, strict=False)]
    owner = np.repeat(np.arange(4, dtype=np.int32), sizes)
    rows = Rows(np.concatenate(trees), np.concatenate(shifted), caches(), owner)
    together = bits(backend.forward(rows, all_rows(starts[-1])).logits).copy()
    for i, cache in enumerate(caches()):
        alone = backend.forward(
            Rows(trees[i], parents[i], [cache], np.zeros(sizes[i], dtype=np.int32)), all_rows(sizes[i])
        )
        np.testing.assert_array_equal(bits(alone.logits), together[starts[i] : starts[i + 1]])


def test_features_are_the_same_bits_too() -> None:
    backend = load_backend(random_checkpoint(random_config(), "F32"), dtype="bf16")
    tokens = np.random.default_rng(2).integers(0, 300, 50).astype(np.int32)
    whole = backend.forward(
        Rows.chain(tokens, backend.new_cache(100)), all_rows(0), (0, 1, 2)
    ).features.copy()
    cache = backend.new_cache(100)
    for i, token in enumerate(tokens):
        row = Rows.chain(np.array([token], dtype=np.int32), cache)
        np.testing.assert_array_equal(
            bits(backend.forward(row, all_rows(0), (0, 1, 2)).features[0]), bits(whole[i])
        )
        cache.commit(all_rows(1))


@pytest.mark.parametrize("taps", [(), (0, 1), (2,)])
def test_rows_are_the_same_bits_whichever_are_asked_for(taps: tuple[int, ...]) -> None:
    """What is left out of the last layer because nobody asks for it changes nothing, then or later."""
    backend = load_backend(random_checkpoint(random_config(), "F32"), dtype="bf16")
    tokens = np.random.default_rng(4).integers(0, 300, 150).astype(np.int32)
    whole = backend.forward(Rows.chain(tokens, backend.new_cache(200)), all_rows(150), taps)
    logits, features = bits(whole.logits).copy(), bits(whole.features).copy()
    for asked in ([149], [140, 70], [3, 2, 149], []):
        cache = backend.new_cache(200)
        found = backend.forward(
            Rows.chain(tokens[:149], cache), np.array([a - 1 for a in asked], dtype=np.int32), taps
        )
        np.testing.assert_array_equal(bits(found.logits), logits[[a - 1 for a in asked]])
        np.testing.assert_array_equal(bits(found.features), features[:149])
        cache.commit(all_rows(149))
        np.testing.assert_array_equal(one_at_a_time(backend, tokens[149:], cache)[0], logits[149])


def test_mistakes_are_refused_and_stage_nothing() -> None:
    backend = load_backend(random_checkpoint(random_config(), "F32"), dtype="bf16")
    cache = backend.new_cache(10)
    one = all_rows(1)

    def rows(tokens: list[int], parents: list[int]) -> Rows:
        n = len(tokens)
        return Rows(np.array(tokens, np.int32), np.array(parents, np.int32), [cache], np.zeros(n, np.int32))

    for tokens, parents in (
        ([300], [-1]),
        ([-1], [-1]),
        ([1, 1], [-1, 1]),
        ([1], [0]),
        ([1], [-2]),
        ([], []),
    ):
        with pytest.raises(ValueError, match="forward"):
            backend.forward(rows(tokens, parents), all_rows(0))
    with pytest.raises(ValueError, match="capacity"):
        backend.forward(rows([1] * 11, list(range(-1, 10))), all_rows(0))
    with pytest.raises(ValueError, match="logits"):
        backend.forward(rows([1], [-1]), np.array([1], np.int32))
    with pytest.raises(ValueError, match="hidden state"):
        backend.forward(rows([1], [-1]), one - 0, (9,))
    with pytest.raises(ValueError, match="path"):
        cache.commit(one)
    backend.forward(rows([1, 2, 3], [-1, 0, 0]), all_rows(3))
    for path in ([1], [0, 1, 2], [2, 0], [0, 3]):
        with pytest.raises(ValueError, match="path"):
            cache.commit(np.array(path, np.int32))
    cache.commit(np.array([0, 2], np.int32))
    assert cache.length == 2
    with pytest.raises(ValueError, match="holds 2"):
        cache.truncate(3)
