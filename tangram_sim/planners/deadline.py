"""When a search has to have answered: a limit on the wall clock, or somebody's Ctrl-C."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Deadline:
    """`limit_s` seconds from now on, by the clock on the wall; searches ask between steps if it is over.

    Nothing between two questions takes longer than about a third of a second: compiled loops work in slices.
    It travels to other processes as the time that is left.
    """

    limit_s: float = float("inf")
    stopped: bool = field(init=False, default=False)  # somebody asked when it was over, and left off there
    interrupted: bool = field(init=False, default=False)  # by hand

    def __post_init__(self) -> None:
        self._until_s = time.monotonic() + self.limit_s

    def __reduce__(self) -> tuple[type["Deadline"], tuple[float]]:
        return Deadline, (self.left_s(),)

    def left_s(self) -> float:
        """Seconds that are left, 0 where it is over."""
        return 0.0 if self.interrupted else max(self._until_s - time.monotonic(), 0.0)

    def over(self) -> bool:
        """Whether to stop now with the best plan so far."""
        self.stopped = self.stopped or self.left_s() <= 0
        return self.stopped

    def notes(self) -> list[str]:
        """What to tell about a plan that was found; nothing where the search came to its end."""
        if self.interrupted:
            return ["stopped by hand: the best plan so far"]
        told = f"stopped by the time limit of {self.limit_s:g} s: the best plan so far"
        return [told] if self.stopped else []

    @contextmanager
    def hearing_interrupts(self) -> Iterator["Deadline"]:
        """Ctrl-C ends the search with the best plan so far; a second one ends the program.

        Where the interpreter does not let us hear it (threads other than the first), nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        def heard(*_: object) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        before = signal.signal(signal.SIGINT, heard)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)
