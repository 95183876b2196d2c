"""When a command began: its time limit counts from there, since who typed it waits for imports, too."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tangram_sim.planners.deadline import Deadline

_STARTTIME = 19  # field 22 of the file, the 20th behind the command's name
_MOST_TIMES = 4.0  # the CPU seconds of a start, on a machine that others use; a second more in any case
_BEGUN_S: ContextVar[float | None] = ContextVar("begun", default=None)  # by time.monotonic


def process_start_s() -> float:
    """When this process began, by `time.monotonic`.

    As the kernel tells where it does (Linux: proc(5), `starttime`); else so long ago as the process has used
    CPU seconds, which is later on a busy machine. A script that waited and then became this program by `exec`
    is older than the command: it is told by having used few seconds for its age.
    """
    used_s = time.process_time()
    try:
        told = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        ticks = int(told.rpartition(")")[2].split()[_STARTTIME])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        age_s = used_s
    # Clocks of a container may not be those of its kernel.
    plausible = used_s <= age_s <= _MOST_TIMES * used_s + 1.0
    return time.monotonic() - (age_s if plausible else used_s)


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
