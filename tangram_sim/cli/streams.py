"""Standard streams that are closed or cannot be written: no verb fails because nobody reads its output."""

import os
import sys
from contextlib import suppress
from pathlib import Path

_STREAMS = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


def open_closed_streams() -> None:
    """Open the null device for each closed standard stream (`>&-`), before a file gets its number."""
    for number, _, _ in _STREAMS:
        with suppress(OSError):
            os.fstat(number)
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
    for _, name, mode in _STREAMS:
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def say_error(text: str) -> None:
    """Write a line to standard error; if that fails, only the exit code reports the error."""
    try:
        sys.stderr.write(f"error: {text}\n")
        sys.stderr.flush()
    except OSError:
        point_at_nothing(2)


def point_at_nothing(number: int) -> None:
    """Redirect a standard stream to the null device, so that flushing it at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
