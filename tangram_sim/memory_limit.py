"""An upper bound on the memory of one command: at the limit its search ends with the best answer so far.

Ten times a second a thread adds up the resident memory of this process and of those that it has started.
At the limit it interrupts the command as Ctrl-C does, so a search answers with the best it has; a command
that goes on growing is ended with a message. Without a limit of the user's it is nine tenths of what the
machine or the container has free when the command begins: past that, the kernel kills a process of its own
choice.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tangram_sim.errors import BadInputError, shown

LOOK_S = 0.1  # between two looks
GRACE_SHARE = 1.25  # of the limit, beyond which a command is ended at once
GRACE_S = 30.0  # in which a command at its limit has to answer
FREE_SHARE = 0.9  # of the free memory that one command may take where nobody set a limit
LEAST_BYTES = 256 * 2**20  # what the interpreter and its libraries take before any question
_SIZES = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_CGROUP = Path("/sys/fs/cgroup")
_reached: list[float] = []  # the limit in bytes, once the running command has come to it


def bytes_of(text: str) -> float:
    """The bytes in `4GiB`, `4G`, `800MB` or `4294967296` (all powers of two). Raises BadInputError."""
    digits = text.strip().lower().removesuffix("b").removesuffix("i")
    size = _SIZES.get(digits[-1:], 1)
    try:
        found = float(digits[:-1] if size > 1 else digits) * size
    except ValueError:
        found = 0.0
    if not LEAST_BYTES <= found < 2**60:
        raise BadInputError(
            f"{shown(text)} is no limit on memory; give a number with K, M, G or T, at least 256M, e.g. 4G"
        )
    return found


def used_bytes() -> float:
    """Resident bytes of this process and all that it has started; its peak where the system tells no more."""
    own = os.getpid()
    if found := _resident_bytes(own):
        return found + sum(map(_resident_bytes, _descendants(own)))
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:  # Windows
        return 0.0
    peak = getrusage(RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def free_bytes() -> float:
    """Bytes that the machine, or this container where it has less, could still give; endless if unknown."""
    found = [float("inf")]
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found.append(
            next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        )
    with suppress(OSError, ValueError):
        most, now = ((_CGROUP / f"memory.{item}").read_text(encoding="ascii") for item in ("max", "current"))
        found.append(max(float(most) - float(now), 0.0))
    return min(found)


def reached() -> str:
    """The limit that the running command has come to, in words; empty where it has not."""
    return f"memory limit of {_reached[-1] / 2**30:.3g} GiB" if _reached else ""


@contextmanager
def watched(limit_bytes: float | None = None) -> Iterator[None]:
    """Interrupt the block at `limit_bytes`, by default nine tenths of free and own memory.

    Raises BadInputError, in place of MemoryError or that interrupt, where it left no answer.
    """
    most = (
        max(LEAST_BYTES, FREE_SHARE * (free_bytes() + used_bytes())) if limit_bytes is None else limit_bytes
    )
    done = threading.Event()
    if most < float("inf") and threading.current_thread() is threading.main_thread():
        threading.Thread(target=_watch, args=(most, done), daemon=True).start()
    try:
        yield
    except (MemoryError, KeyboardInterrupt):
        if not _reached and sys.exc_info()[0] is KeyboardInterrupt:
            raise
        raise BadInputError(refusal(_reached[-1] if _reached else most)) from None
    finally:
        done.set()
        _reached.clear()


def refusal(limit_bytes: float) -> str:
    """What is said of a command that came to its limit without an answer."""
    return (
        f"the memory limit of {limit_bytes / 2**30:.3g} GiB was reached before there was an answer; raise "
        "`memory_limit`, or ask for less: `effort=quick`, whole islands (`sub_islands=False`), one process "
        "(`jobs=1`)"
    )


def _watch(limit_bytes: float, done: threading.Event) -> None:
    while not done.wait(LOOK_S):
        if used_bytes() > limit_bytes:
            _reached.append(limit_bytes)
            os.kill(os.getpid(), signal.SIGINT)
            break
    waited_s = 0.0
    while not done.wait(LOOK_S):
        waited_s += LOOK_S
        if waited_s > GRACE_S or used_bytes() > GRACE_SHARE * limit_bytes:
            os.write(2, f"error: {refusal(limit_bytes)}\n".encode())
            os._exit(2)


def _resident_bytes(pid: int) -> float:
    """Resident bytes of one process; 0 if it is gone or the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return float(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    return 0.0


def _descendants(pid: int) -> Iterator[int]:
    """Processes that `pid` has started, and those that these have."""
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text(encoding="ascii").split()):
                yield child
                yield from _descendants(child)
