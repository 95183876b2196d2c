"""Start time of a command: its time limit counts from there, since the user also waits for imports."""

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
_BEGUN_S: ContextVar[tuple[float, float] | None] = ContextVar("begun", default=None)  # clock, CPU seconds
# Time is over earlier on a machine that others use: answering takes so many CPU seconds after a search (the
# plan is played with shared links, gets its interval, is printed), which last longer there.
_ANSWERING_CPU_S = 0.8
_MOST_EARLY = 0.3  # of the limit
_TELLING_CPU_S = 0.2  # of which on the pace of a machine can be told


def process_start_s() -> float:
    """Start time of this process, on the clock of `time.monotonic`.

    From the kernel where possible (Linux: proc(5), `starttime`); else now less the CPU seconds used, which is
    later on a busy machine. A script that waited and then became this program by `exec` is older than the
    command; this is detected by its few CPU seconds for its age.
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
def since(begun_s: float, cpu_s: float = 0.0) -> Iterator[None]:
    """Inside the block the command's start time is `begun_s`, on the clock of `time.monotonic`.

    `cpu_s`: CPU seconds that the process had used then.
    """
    before = _BEGUN_S.set((begun_s, cpu_s))
    try:
        yield
    finally:
        _BEGUN_S.reset(before)


def deadline(limit_s: float) -> "Deadline":
    """A deadline `limit_s` seconds after the command's start; after now if the start is unknown.

    On a busy machine it ends earlier, so that the answer is no later than on an idle one.
    """
    from tangram_sim.planners.deadline import Deadline

    begun = _BEGUN_S.get()
    if begun is None:
        return Deadline(limit_s)
    used_s, cpu_s = time.monotonic() - begun[0], time.process_time() - begun[1]
    return Deadline(limit_s, used_s + early_s(limit_s, used_s, cpu_s))


def left_s(limit_s: float | None) -> float | None:
    """Seconds left of a limit that counts from the command's start; None if there is no limit."""
    return None if limit_s is None else deadline(limit_s).left_s()


def early_s(limit_s: float, used_s: float, cpu_s: float) -> float:
    """Seconds before the limit at which a search must end, after `used_s` with `cpu_s` CPU seconds used.

    This covers the extra time to print the answer at the rate the command has been running; 0 if it had a
    core of its own or used too little CPU to tell; at most a fixed share of the limit.
    """
    if cpu_s < _TELLING_CPU_S:
        return 0.0
    return min(_ANSWERING_CPU_S * max(used_s / cpu_s - 1.0, 0.0), _MOST_EARLY * limit_s)
