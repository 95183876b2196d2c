"""When a search has to have answered: a limit on the wall clock, or somebody's Ctrl-C."""

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
    """`limit_s` seconds from now on, by the clock on the wall; searches ask between steps if it is over.

    Nothing between two questions takes longer than about a third of a second: compiled loops work in slices.
    It travels to other processes as the time that is left; on this machine what it waits there for a process
    counts, too. `used_s` of the limit were gone before: whoever started a program waits for its imports, too.
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
        """Seconds that are left, 0 where it is over."""
        return 0.0 if self.interrupted else max(self._until_s - time.monotonic(), 0.0)

    @classmethod
    def of(cls, limit_s: float | None) -> "Deadline":
        """A deadline in so many seconds; None: never."""
        return cls(float("inf") if limit_s is None else limit_s)

    def turn_s(self, turns: int = 1) -> float | None:
        """Seconds for the next of `turns` pieces of work; None where there is no limit."""
        left_s = self.left_s() / max(turns, 1)
        return None if left_s == float("inf") else left_s

    def over(self) -> bool:
        """Whether to stop now with the best plan so far."""
        self.stopped = self.stopped or self.left_s() <= 0
        return self.stopped

    def findings(self) -> list[Finding]:
        """What ended the search; nothing where it came to its end."""
        if self.interrupted:
            limit = reached()
            return [BY_MEMORY(limit=limit) if limit else BY_HAND()]
        return [BY_LIMIT(limit_s=round(self.limit_s, 2))] if self.stopped else []

    def share(self, limit_s: float) -> "Deadline":
        """A deadline for a part of the work: over after `limit_s` seconds, or when this one is."""
        return _Share(limit_s, whole=self)

    def grace(self, grace_s: float) -> "Deadline":
        """A deadline for what has to be done though this one is over: `grace_s` after its end, or from now
        on where that is sooner.

        So a search that falls back on something simple more than once takes `grace_s` for all of it, but for
        LEAST_GRACE_S each time: an answer late by that is worth more than none.
        """
        late_s = max(time.monotonic() - self._until_s, 0.0)
        return _Grace(max(grace_s - late_s, min(LEAST_GRACE_S, grace_s)))

    def over_without_answer(self) -> bool:
        """Whether to stop now where nothing is found yet."""
        return self.over()

    @property
    def asked_s(self) -> float:
        """The limit that was asked for, of which this may be a share."""
        return self.limit_s

    def why(self) -> str:
        """What ended it, in words."""
        if self.interrupted:
            return reached() or "stopped by hand"
        return f"time limit of {round(self.limit_s, 2):g} s"

    @contextmanager
    def hearing_interrupts(self) -> Iterator["Deadline"]:
        """Ctrl-C ends the search with the best plan so far; a second one ends the program.

        Where the interpreter does not let us hear it (threads other than the first), nothing changes.
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
        """Around a call that cannot ask whether time is over: the first Ctrl-C raises KeyboardInterrupt
        there.
        """
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False


def _arrived(left_s: float, sent_s: float, host: str) -> Deadline:
    """A deadline that another process sent: processes of one machine share its clock."""
    waited_s = time.monotonic() - sent_s if host == platform.node() else 0.0
    return Deadline(left_s, max(waited_s, 0.0))


class _Grace(Deadline):
    """A little while after the end; while nothing is found, so many CPU seconds in any case."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begun_s = time.thread_time()

    def over_without_answer(self) -> bool:
        """By the clock and by what this thread has computed."""
        return self.over() and time.thread_time() - self._begun_s >= min(ANSWERLESS_CPU_S, self.limit_s * 5)


class NoSearch(Deadline):
    """Over before a search begins; what stands in for one is bounded by its work, not by the clock.

    For studies that ask many times and whose figures must not depend on how busy the machine is.
    """

    def __init__(self) -> None:
        super().__init__(0.0)

    def grace(self, grace_s: float) -> Deadline:
        """As long as it takes."""
        del grace_s
        return Deadline()


@dataclass
class _Share(Deadline):
    """A part of the time that is left."""

    whole: Deadline = field(default_factory=Deadline)

    def left_s(self) -> float:
        """Seconds that are left."""
        return min(super().left_s(), self.whole.left_s())

    @property
    def asked_s(self) -> float:
        """As the whole deadline's."""
        return self.whole.asked_s

    def why(self) -> str:
        """What ended it: the whole deadline where that is over, since users know of no share."""
        return self.whole.why() if self.whole.left_s() <= 0 else f"share of the time limit, {self._own()}"

    def grace(self, grace_s: float) -> Deadline:
        """As the whole deadline's: what is left of that is for whoever shared it out."""
        return self.whole.grace(grace_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """As the whole deadline's, which hears interrupts."""
        with self.whole.waiting():
            yield

    def findings(self) -> list[Finding]:
        """The whole deadline's findings where that is over; else that its share was."""
        if self.stopped and self.whole.over():
            return self.whole.findings()
        figures = {"share_s": round(self.limit_s, 2), "limit_s": round(self.asked_s, 2)}
        return [BY_SHARE(**figures)] if self.stopped else []

    def _own(self) -> str:
        return f"{round(self.limit_s, 2):g} of {round(self.asked_s, 2):g} s"
