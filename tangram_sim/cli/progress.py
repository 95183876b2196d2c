"""A progress bar that appears only when something takes long, on a terminal, beside the output."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from tangram_sim.cli.printable import PrintableStream

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 2.0

Listener = Callable[[int, int, str], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While the block lasts, whatever takes long tells `listener` (done, total, what), drawn or not."""
    before = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(before)


class SlowProgress:
    """Context manager; `report(done, total, what)` draws nothing in the first two seconds."""

    def __init__(self, what: str) -> None:
        self._what, self._begun = what, time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    @property
    def drawn(self) -> bool:
        """Whether anything is shown."""
        return self._bar is not None

    def report(self, done: int, total: int, what: str) -> None:
        """Say how far things are."""
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
            self._task = self._bar.add_task(self._what, total=total)
            self._bar.start()
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total, description=f"{self._what}: {what}")

    def say(self, line: str) -> None:
        """Leave a line above the bar, where one is shown."""
        if self._bar is not None:
            self._bar.console.print(f"{self._what}: {line}", highlight=False)

    def __enter__(self) -> "SlowProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
