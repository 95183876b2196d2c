"""The code of a process that answers requests: it runs verbs in its own folder and ends with its client."""

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
    """A function called with progress: steps done of a total (0: unknown), and the best purchases so far."""

    def __call__(self, done: int, total: int, what: str, front: Sequence[FrontEntry] = ()) -> None:
        """Receive a progress report; `front` is (purchase, cost, tokens/s) of the best trade-offs so far."""


RunVerb = Callable[[Sequence[str], Report], int]  # the words after `tangram` -> its exit code

_BETWEEN_S = 0.1  # two reports of how far things are
_MOST_BYTES = 128 << 20  # of all that one run writes


@dataclass(frozen=True, slots=True)
class HowFar:
    """A progress report of a run: `done` of `total` steps (0: unknown), and the best purchases so far."""

    done: int
    total: int
    what: str
    front: tuple[FrontEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run: exit code, standard output and error, and the text of the files it wrote, by name."""

    code: int
    out: str
    err: str
    files: dict[str, str]


def work(
    line: Connection, folder: str, words: Sequence[str], run: RunVerb, open_folders: Sequence[Path]
) -> None:
    """Run one verb in `folder`; send progress reports and then its end over the connection `line`.

    The process kills itself, with every process it started, when the other end of the connection is closed.
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
    """Run one short verb after another, each in an emptied `folder`, until the connection `line` is closed.

    Each message received is (arguments, file text by name); each message sent is the RunEnd of that run.
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


def own_folder(whole: str) -> str:
    """Create a run's folder inside `whole`; an uploaded config.json takes its model name from this folder."""
    own = Path(whole, "own-model")
    own.mkdir()
    return str(own)


def _settled(folder: str, open_folders: Sequence[Path]) -> Path:
    """Enter `folder`, lead a new process group and restrict file access to the folder. Returns its path."""
    from tangram_sim.web.sandbox import put_up

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
    """A progress function that ignores what it is told, for short runs."""


def _written(own: Path, given: set[Path]) -> dict[str, str]:
    """The text of the files that the run wrote into its folder, by name. Raises BadInputError if too long."""
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
    """Wait until the other end of the connection is closed, then kill this process and all it started."""
    with suppress(EOFError, OSError):
        line.recv()
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
