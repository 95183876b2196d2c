"""How much a verb says: `--quiet` and `--verbose`, offered by every verb that prints a table."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Annotated

import typer


class Verbosity(Enum):
    """How much is printed beside the answer; JSON and files are never touched."""

    QUIET = "quiet"  # the answer and its table
    NORMAL = "normal"  # the gravest notes, and what fits the window
    VERBOSE = "verbose"  # every note and every column


_CHOSEN: ContextVar[Verbosity] = ContextVar("verbosity", default=Verbosity.NORMAL)

Quiet = Annotated[bool, typer.Option("--quiet", help="Print the answer and its table, no notes.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Print every note, and every column however narrow the window.")
]


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
