"""Deadlines of a search: a wall-clock limit, or an interrupt by Ctrl-C."""

import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.memory_limit import reached

LEAST_GRACE_S = 0.3
# What may be computed beyond a limit while there is no answer at all: on a machine that others use that takes
# longer by the clock, and late is better than nothing.
ANSWERLESS_CPU_S = 1.5
BY_HAND = declare("stopped-by-hand", Severity.STOPPED, "stopped by hand: the best plan so far")
BY_MEMORY = declare(
    "stopped-by-memory-limit", Severity.STOPPED, "stopped by the {limit}: the best plan so far"
)
BY_LIMIT = declare(
    "stopped-by-time-limit",
    Severity.STOPPED,
    "stopped by the time limit of {limit_s:g} s: the best plan so far",
)
BY_SHARE = declare(
    "stopped-by-share-of-time-limit",
    Severity.STOPPED,
    "stopped by its share of the time limit, {share_s:g} of {limit_s:g} s: the best plan so far",
)


@dataclass
class Deadline:
    """A wall-clock limit of `limit_s` seconds from now; searches check between steps whether it has passed.

    No search runs longer than about a third of a second between two checks: compiled loops work in slices.
    Pickling sends the seconds left to another process; on the same machine, time spent waiting there for a
    worker counts too. `used_s` seconds of the limit have passed already, e.g. the imports of a program.
    """

    limit_s: float = float("inf")
    used_s: float = 0.0
    stopped: bool = field(init=False, default=False)  # somebody asked when it was over, and left off there
    interrupted: bool = field(init=False, default=False)  # by hand
    _waiting: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._until_s = time.monotonic() + self.limit_s - self.used_s

    def __reduce__(self) -> tuple[Callable[[float, float, str], "Deadline"], tuple[float, float, str]]:
        return _arrived, (self.left_s(), time.monotonic(), platform.node())

    def left_s(self) -> float:
        """Seconds left, 0 when the deadline has passed or the search was interrupted."""
        return 0.0 if self.interrupted else max(self._until_s - time.monotonic(), 0.0)

    @classmethod
    def of(cls, limit_s: float | None) -> "Deadline":
        """A deadline `limit_s` seconds from now; without limit for None."""
        return cls(float("inf") if limit_s is None else limit_s)

    def turn_s(self, turns: int = 1) -> float | None:
        """Seconds for the next of `turns` pieces of work; None where there is no limit."""
        left_s = self.left_s() / max(turns, 1)
        return None if left_s == float("inf") else left_s

    def over(self) -> bool:
        """Whether the search must stop now with the best plan so far; sets `stopped` if so."""
        self.stopped = self.stopped or self.left_s() <= 0
        return self.stopped

    def findings(self) -> list[Finding]:
        """Findings that say what stopped the search early; empty where the search completed."""
        if self.interrupted:
            limit = reached()
            return [BY_MEMORY(limit=limit) if limit else BY_HAND()]
        return [BY_LIMIT(limit_s=round(self.limit_s, 2))] if self.stopped else []

    def share(self, limit_s: float) -> "Deadline":
        """A deadline for a part of the work: passes after `limit_s` seconds, or together with this one."""
        return _Share(limit_s, whole=self)

    def grace(self, grace_s: float) -> "Deadline":
        """A deadline for work that must be done after this one has passed: `grace_s` after its end.

        If this deadline has not passed yet, `grace_s` starts now. A search that falls back on simple plans
        several times shares one `grace_s` among them, but gets at least LEAST_GRACE_S (0.3 s) each time: an
        answer so late is worth more than none.
        """
        late_s = max(time.monotonic() - self._until_s, 0.0)
        return _Grace(max(grace_s - late_s, min(LEAST_GRACE_S, grace_s)))

    def over_without_answer(self) -> bool:
        """Whether the search must stop now although it has found no plan."""
        return self.over()

    @property
    def asked_s(self) -> float:
        """Seconds of the limit that the user asked for; a share reports the limit of the whole search."""
        return self.limit_s

    def why(self) -> str:
        """Reason for stopping, in words: the memory limit, an interrupt by hand, or the time limit."""
        if self.interrupted:
            return reached() or "stopped by hand"
        return f"time limit of {round(self.limit_s, 2):g} s"

    @contextmanager
    def hearing_interrupts(self) -> Iterator["Deadline"]:
        """Let Ctrl-C end the search with the best plan so far; a second Ctrl-C raises KeyboardInterrupt.

        Signals reach only the main thread: in other threads this changes nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        def heard(*_: object) -> None:
            again, self.interrupted = self.interrupted, True
            self._until_s = min(self._until_s, time.monotonic())
            if again or self._waiting:
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, heard)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context around a call that cannot check the deadline: in it the first Ctrl-C raises
        KeyboardInterrupt."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False


def _arrived(left_s: float, sent_s: float, host: str) -> Deadline:
    """Rebuild a deadline that another process sent; on the same host the time since sending is deducted."""
    waited_s = time.monotonic() - sent_s if host == platform.node() else 0.0
    return Deadline(left_s, max(waited_s, 0.0))


class _Grace(Deadline):
    """A short extension after a deadline; without any answer, at least some seconds of CPU time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begun_s = time.thread_time()

    def over_without_answer(self) -> bool:
        """Whether the extension is over both by the clock and by the CPU seconds of this thread."""
        return self.over() and time.thread_time() - self._begun_s >= min(ANSWERLESS_CPU_S, self.limit_s * 5)


class NoSearch(Deadline):
    """A deadline that has passed, so that no search runs; fallbacks are limited by work, not the clock.

    For studies that plan many times and whose results must not depend on how busy the machine is.
    """

    def __init__(self) -> None:
        super().__init__(0.0)

    def grace(self, grace_s: float) -> Deadline:
        """A deadline without limit, so that fallbacks always finish."""
        del grace_s
        return Deadline()


@dataclass
class _Share(Deadline):
    """A share of another deadline: passes after `limit_s` seconds, or when the `whole` deadline does."""

    whole: Deadline = field(default_factory=Deadline)

    def left_s(self) -> float:
        """Seconds left of the share or of the whole deadline, the smaller of the two."""
        return min(super().left_s(), self.whole.left_s())

    @property
    def asked_s(self) -> float:
        """Seconds of the limit that the user asked for, as the whole deadline has it."""
        return self.whole.asked_s

    def why(self) -> str:
        """Reason for stopping: the whole deadline's if it has passed, since users do not know of shares."""
        return self.whole.why() if self.whole.left_s() <= 0 else f"share of the time limit, {self._own()}"

    def grace(self, grace_s: float) -> Deadline:
        """The grace of the whole deadline: a part of the work takes no grace for running out of its share."""
        return self.whole.grace(grace_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """As for the whole deadline, which handles interrupts."""
        with self.whole.waiting():
            yield

    def findings(self) -> list[Finding]:
        """Findings of the whole deadline if it has passed; else that its share of time is used up."""
        if self.stopped and self.whole.over():
            return self.whole.findings()
        figures = {"share_s": round(self.limit_s, 2), "limit_s": round(self.asked_s, 2)}
        return [BY_SHARE(**figures)] if self.stopped else []

    def _own(self) -> str:
        return f"{round(self.limit_s, 2):g} of {round(self.asked_s, 2):g} s"
