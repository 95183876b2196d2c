"""When a command began: its time limit counts from there, since who typed it waits for imports, too."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tangram_sim.planners.deadline import Deadline

_BEGUN_S: ContextVar[float | None] = ContextVar("begun", default=None)  # by time.monotonic


def process_start_s() -> float:
    """When this process began, by `time.monotonic`: so long ago as it has used CPU seconds, or longer.

    No clock of Python's knows when a process was started.
    """
    return time.monotonic() - time.process_time()


@contextmanager
def since(begun_s: float) -> Iterator[None]:
    """Inside the block the command is one that began at `begun_s`, by `time.monotonic`."""
    before = _BEGUN_S.set(begun_s)
    try:
        yield
    finally:
        _BEGUN_S.reset(before)


def deadline(limit_s: float) -> "Deadline":
    """A deadline of `limit_s` seconds from when the command began; from now on where nobody knows that."""
    from tangram_sim.planners.deadline import Deadline

    begun_s, now_s = _BEGUN_S.get(), time.monotonic()
    return Deadline(limit_s, 0.0 if begun_s is None else now_s - begun_s)
