"""Around calls into libraries that are handed data nobody vouches for."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from types import FrameType
from typing import TYPE_CHECKING

from forerun.errors import ForerunError, InputError

if TYPE_CHECKING:
    from _typeshed import TraceFunction


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Turn whatever is raised inside into InputError "`what`: its reason".

    A panic of Rust code derives from BaseException and has no public class, so everything is caught but
    what must pass: errors that are already clear, and interruption.
    """
    try:
        yield
    except (ForerunError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputError(f"{what}: {str(error) or type(error).__name__}") from error


@contextmanager
def bounded(what: str, seconds: float, memory: int) -> Iterator[None]:
    """Stop Python code that is called inside and computes longer, or takes more memory than the process ever
    had and `memory` bytes beyond: InputError "`what` takes ...", at the next line it comes to.

    The interpreter asks at every line, in this thread alone (a debugger's tracing rests meanwhile).
    """
    end, most = thread_time() + seconds, _peak_memory() + memory

    def watch(frame: FrameType, event: str, argument: object) -> TraceFunction:
        if thread_time() > end:
            raise InputError(f"{what} takes longer than {seconds:g} seconds of processor time")
        if _peak_memory() > most:
            raise InputError(f"{what} takes more than {memory >> 20} MB of memory")
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before)


def _peak_memory() -> int:
    """The most bytes of memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
