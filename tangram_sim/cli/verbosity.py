"""How much a verb prints next to its answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum


class Verbosity(Enum):
    """How much is printed next to the answer; JSON and files do not depend on it."""

    QUIET = "quiet"  # the answer and its table
    NORMAL = "normal"  # the gravest notes, and what fits the window
    VERBOSE = "verbose"  # every note and every column


_CHOSEN: ContextVar[Verbosity] = ContextVar("verbosity", default=Verbosity.NORMAL)


def chosen() -> Verbosity:
    """How much the running verb should print."""
    return _CHOSEN.get()


@contextmanager
def saying(verbosity: Verbosity) -> Iterator[None]:
    """Set how much is printed inside the block."""
    before = _CHOSEN.set(verbosity)
    try:
        yield
    finally:
        _CHOSEN.reset(before)
