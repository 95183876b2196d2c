"""The process that answers one request: a folder of its own, one verb, and an end with whoever asked."""

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from tangram_sim.errors import BadInputError

FrontEntry = tuple[str, float, float]  # what is bought, its cost, tokens/s


class Report(Protocol):
    """Hears how far a run is (of 0: nobody knows how much there is), and a front as far as it is known."""

    def __call__(self, done: int, total: int, what: str, front: Sequence[FrontEntry] = ()) -> None:
        """Be told."""


RunVerb = Callable[[Sequence[str], Report], int]  # the words after `tangram` -> its exit code

_BETWEEN_S = 0.1  # two reports of how far things are
_MOST_BYTES = 128 << 20  # of all that one run writes


@dataclass(frozen=True, slots=True)
class HowFar:
    """Progress of a run."""

    done: int
    total: int
    what: str
    front: tuple[FrontEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What a run printed and wrote."""

    code: int
    out: str
    err: str
    files: dict[str, str]


def work(
    line: Connection, folder: str, words: Sequence[str], run: RunVerb, open_folders: Sequence[Path]
) -> None:
    """Run one verb in `folder` and say over `line` how far it is and how it ended.

    The process ends by itself, with all that it started, when nobody holds the other end of the line.
    """
    own = _settled(folder, open_folders)
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()
    last_s = 0.0

    def report(done: int, total: int, what: str, front: Sequence[FrontEntry] = ()) -> None:
        nonlocal last_s
        if front or time.monotonic() - last_s > _BETWEEN_S:
            last_s = time.monotonic()
            line.send(HowFar(done, total, what, tuple(front)))

    line.send(_run_in(own, words, run, report))


def work_on(line: Connection, folder: str, run: RunVerb, open_folders: Sequence[Path]) -> None:
    """Run one short verb after another, each in an empty `folder`, until the line is cut.

    What comes over the line is (words, files by name); what goes back is the end of that run.
    """
    own = _settled(folder, open_folders)
    with suppress(EOFError, OSError):
        while True:
            words, files = line.recv()
            for name, text in files.items():
                (own / name).write_text(text, encoding="utf-8")
            line.send(_run_in(own, words, run, _unheard))
            for path in sorted(own.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()


def _settled(folder: str, open_folders: Sequence[Path]) -> Path:
    """The folder, with this process in it, behind a fence, and leader of a group that is ended as one."""
    from tangram_sim.web.fence import put_up

    if hasattr(os, "setsid"):
        os.setsid()
    own = Path(folder)
    os.chdir(own)
    put_up(own, open_folders)
    return own


def _run_in(own: Path, words: Sequence[str], run: RunVerb, report: Report) -> RunEnd:
    given = set(own.rglob("*"))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = run(words, report)
            files = _written(own, given)
        except BadInputError as error:
            code, files = 2, {}
            err.write(f"error: {error}\n")
        except Exception as error:  # one request's bug is its own: the page says so and goes on
            code, files = 1, {}
            err.write(f"error: this should not have happened: {type(error).__name__}: {error}\n")
    return RunEnd(code, out.getvalue(), err.getvalue(), files)


def _unheard(done: int, total: int, what: str, front: Sequence[FrontEntry] = ()) -> None:
    """For runs that are over before anybody could ask."""


def _written(own: Path, given: set[Path]) -> dict[str, str]:
    """Text of what the run left in its folder, by name."""
    found: dict[str, str] = {}
    held = 0
    for path in sorted(own.rglob("*")):
        if path in given or not path.is_file() or path.is_symlink():
            continue
        held += path.stat().st_size
        if held > _MOST_BYTES:
            raise BadInputError(f"{path.name}: too long for the page; run the command below in a terminal")
        found[path.relative_to(own).as_posix()] = path.read_text(encoding="utf-8")
    return found


def _end_with(line: Connection) -> None:
    """Wait until the other end is gone, then end this process and all that it started."""
    with suppress(EOFError, OSError):
        line.recv()
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
