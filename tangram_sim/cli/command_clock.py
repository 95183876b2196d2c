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
_BEGUN_S: ContextVar[tuple[float, float] | None] = ContextVar("begun", default=None)  # clock, CPU seconds
# Time is over earlier on a machine that others use: answering takes so many CPU seconds after a search (the
# plan is played with shared links, gets its interval, is printed), which last longer there.
_ANSWERING_CPU_S = 0.8
_MOST_EARLY = 0.3  # of the limit
_TELLING_CPU_S = 0.2  # of which on the pace of a machine can be told


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
def since(begun_s: float, cpu_s: float = 0.0) -> Iterator[None]:
    """Inside the block the command is one that began at `begun_s`, by `time.monotonic`.

    `cpu_s`: what the process had used then.
    """
    before = _BEGUN_S.set((begun_s, cpu_s))
    try:
        yield
    finally:
        _BEGUN_S.reset(before)


def deadline(limit_s: float) -> "Deadline":
    """A deadline of `limit_s` seconds from when the command began; from now on where nobody knows that.

    Where the machine is busy it ends earlier, so that the answer is as little late as on one that is not.
    """
    from tangram_sim.planners.deadline import Deadline

    begun = _BEGUN_S.get()
    if begun is None:
        return Deadline(limit_s)
    used_s, cpu_s = time.monotonic() - begun[0], time.process_time() - begun[1]
    return Deadline(limit_s, used_s + early_s(limit_s, used_s, cpu_s))


def left_s(limit_s: float | None) -> float | None:
    """Seconds that are left of a limit that counts from when the command began; None where none was given."""
    return None if limit_s is None else deadline(limit_s).left_s()


def early_s(limit_s: float, used_s: float, cpu_s: float) -> float:
    """Seconds before a limit at which a search has to end, after `used_s` in which `cpu_s` were computed.

    What answering takes beyond its CPU seconds at the pace that the command has had so far; 0 where it had a
    core of its own or too little was computed to tell, at most a share of the limit.
    """
    if cpu_s < _TELLING_CPU_S:
        return 0.0
    return min(_ANSWERING_CPU_S * max(used_s / cpu_s - 1.0, 0.0), _MOST_EARLY * limit_s)
