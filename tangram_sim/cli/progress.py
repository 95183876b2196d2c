"""A progress bar on standard error, shown only on a terminal and once something takes over two seconds."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from tangram_sim.cli.printable import PrintableStream

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 2.0

FrontEntry = tuple[str, float, float]  # what is bought, its cost, tokens/s


class Listener(Protocol):
    """A function called with progress: steps done of a total (0: unknown), and the best purchases so far."""

    def __call__(self, done: int, total: int, what: str, front: Sequence[FrontEntry] = ()) -> None:
        """Receive a progress report; `front` is (purchase, cost, tokens/s) of the best trade-offs so far."""


_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside the block every progress report goes to `listener` too, whether or not a bar is drawn."""
    before = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(before)


class SlowProgress:
    """Context manager for a progress bar, which appears after two seconds; see `report`."""

    def __init__(self, what: str) -> None:
        self._what, self._begun = what, time.monotonic()
        self._bar: Progress | None = None
        self._last = 0, 0, ""
        self._task: TaskID | None = None

    @property
    def drawn(self) -> bool:
        """Whether the bar has appeared."""
        return self._bar is not None

    def report(self, done: int, total: int, what: str) -> None:
        """Report `done` of `total` steps (total 0: unknown); `what` is the step under way, in words."""
        self._last = done, total, what
        listener = _LISTENER.get()
        if listener is not None:
            listener(done, total, what)
        if self._bar is None:
            if time.monotonic() - self._begun < PATIENCE_S or not sys.stderr.isatty():
                return
            from rich.console import Console
            from rich.progress import Progress

            # A bar steers the terminal: it goes past what keeps text from doing so.
            terminal = sys.stderr.terminal if isinstance(sys.stderr, PrintableStream) else sys.stderr
            self._bar = Progress(console=Console(file=terminal), transient=True)
            self._task = self._bar.add_task(self._what, total=total or None)
            self._bar.start()
        if self._task is not None:
            words = f"{self._what}: {what}"
            self._bar.update(self._task, completed=done, total=total or None, description=words)

    def say(self, line: str, front: Sequence[FrontEntry] = ()) -> None:
        """Print a line above the bar, if there is one; the listener gets the `front` that it describes."""
        listener = _LISTENER.get()
        if listener is not None and front:
            listener(*self._last, front)
        if self._bar is not None:
            self._bar.console.print(f"{self._what}: {line}", highlight=False)

    def __enter__(self) -> "SlowProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
