"""Standard streams that are closed or cannot be written: no verb fails for want of somebody who reads."""

import os
import sys
from contextlib import suppress
from pathlib import Path

_STREAMS = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


def open_closed_streams() -> None:
    """Put the null device where a standard stream was closed (`>&-`), before a file takes its number."""
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
    """Write a line to standard error; where that cannot be written, the exit code alone speaks."""
    try:
        sys.stderr.write(f"error: {text}\n")
        sys.stderr.flush()
    except OSError:
        point_at_nothing(2)


def point_at_nothing(number: int) -> None:
    """Point a standard stream at the null device: the interpreter, which flushes it at exit, has no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
