"""The C++ core survives what happens: threads, forks, shutdown, lack of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from forerun import _core
from forerun.backends.cpu import CpuBackend, load_backend
from forerun.errors import InputError
from forerun.models.rows import Cache, Rows
from support.random_models import random_checkpoint, random_config

CHECKPOINT = random_checkpoint(random_config(), "F32")
NOTHING = np.zeros(0, np.int32)
SETUP = """
import numpy as np, os, threading, time
from forerun.backends.cpu import load_backend
from forerun.models.rows import Rows
from support.random_models import random_checkpoint, random_config
backend = load_backend(random_checkpoint(random_config(), "F32"), dtype="bf16", threads=2)
chain = np.arange(40, dtype=np.int32)
def logits():
    return backend.forward(Rows.chain(chain, backend.new_cache(100)), chain).logits.tobytes()
"""


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return load_backend(CHECKPOINT, dtype="bf16", threads=2)


def ints(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    failures: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_forwards_of_several_threads_take_turns(backend: CpuBackend) -> None:
    every = ints(*range(30))

    def logits(seed: int) -> bytes:
        tokens = np.random.default_rng(seed).integers(0, 300, 30).astype(np.int32)
        rows = Rows.chain(tokens, backend.new_cache(30))
        return backend.forward(rows, every, (0, 2)).logits.tobytes()

    expected = [logits(i) for i in range(4)]

    def work(i: int) -> None:
        for _ in range(25):
            assert logits(i) == expected[i]
            assert backend.profile()["linear"] >= 0

    in_threads(work)


def test_a_cache_that_another_thread_is_using_is_refused_or_whole(backend: CpuBackend) -> None:
    cache, chain = backend.new_cache(100), Rows.chain(ints(*range(40)), backend.new_cache(1))
    outcomes: set[str] = set()

    def work(i: int) -> None:
        for k in range(100):
            try:
                if i < 2:
                    backend.forward(Rows(chain.tokens, chain.parents, [cache], chain.owner), NOTHING)
                elif k % 2:
                    cache.truncate(0)
                else:
                    cache.commit(ints(0, 1, 2))
            except (RuntimeError, ValueError) as error:
                outcomes.add(str(error))

    in_threads(work)
    assert outcomes <= {
        "cache: another thread is using it",
        "commit: not a path of the rows last computed",
        "commit: beyond the cache's capacity",
        "forward: position 100 is beyond the cache's capacity",
    }
    cache.truncate(0)
    fresh = backend.new_cache(100)
    got, expected = (
        backend.forward(Rows(chain.tokens, chain.parents, [c], chain.owner), ints(39)).logits.copy()
        for c in (cache, fresh)
    )
    np.testing.assert_array_equal(got, expected)


def test_a_list_of_caches_may_change_meanwhile(backend: CpuBackend) -> None:
    chain = Rows.chain(ints(*range(60)), backend.new_cache(1))
    caches: list[Cache] = []
    refusals: set[str] = set()
    stop = threading.Event()

    def forget() -> None:
        while not stop.is_set():
            caches.clear()

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        for _ in range(50):
            caches.append(backend.new_cache(100))
            try:
                backend.forward(Rows(chain.tokens, chain.parents, caches, chain.owner), NOTHING)
            except ValueError as error:
                refusals.add(str(error))
    finally:
        stop.set()
        thread.join()
    assert refusals <= {"forward: a row names no cache"}  # it was cleared before


def test_results_outlive_their_model() -> None:
    one = load_backend(CHECKPOINT, dtype="f32", threads=2)
    outputs = [one.forward(Rows.chain(ints(1, 2), one.new_cache(5)), ints(1), (2,)) for _ in range(9)]
    expected = outputs[0].logits.tobytes()
    del one
    assert {output.logits.tobytes() for output in outputs} == {expected}


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([os.path.dirname(os.path.dirname(__file__)), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", SETUP + code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_computes_with_threads_of_its_own() -> None:
    done = python(
        """
import gc, warnings
warnings.simplefilter("ignore")  # Python 3.12 and newer warn of threads
expected = logits()
stop = []
def work():
    while not stop: assert logits() == expected
other = threading.Thread(target=work)
other.start()  # forks happen in the middle of its forwards
for generation in range(10):
    child = os.fork()
    if child == 0:
        assert logits() == logits() == expected
        threads = len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 2
        assert threads == 2, threads
        del backend
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert logits() == expected
stop.append(1)
other.join()
print("whole")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")


def test_the_interpreter_ends_while_daemon_threads_compute() -> None:
    done = python(
        """
def work():
    while True: logits()
for _ in range(4): threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
print("end", flush=True)
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_threads_that_the_system_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(threads: int) -> _core.Team:
        raise RuntimeError(f"team: the system does not start {threads} threads")

    monkeypatch.setattr(_core, "Team", refuse)
    with pytest.raises(InputError, match="the system does not start 3 threads"):
        load_backend(CHECKPOINT, threads=3)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are kept by Linux only")
def test_lack_of_memory_leaves_everything_as_it_was() -> None:
    done = python(
        """
import resource
every = np.arange(3000, dtype=np.int32)
expected = logits()
attempts = [backend.new_cache(4000) for _ in range(60)]
for cache in attempts:
    backend.forward(Rows.chain(chain[:3], cache), chain[:1])
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
for spare, cache in enumerate(attempts):  # MiB
    resource.setrlimit(resource.RLIMIT_AS, (used + (spare << 20), resource.RLIM_INFINITY))
    try:
        backend.forward(Rows.chain(every % 300, cache), every, (0, 1, 2))
        break
    except MemoryError:
        cache.commit(chain[:3])  # the stage before is still there
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert 2 < spare < 59, spare
assert logits() == expected
try:
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    backend.new_cache(1 << 24)
except MemoryError:
    print("whole")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")
