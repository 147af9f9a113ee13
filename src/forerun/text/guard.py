"""Around calls into libraries that are handed data nobody vouches for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forerun.errors import ForerunError, InputError


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
