"""Communication with a program: one JSON document per line each way, a time limit, and clear errors."""

import json
import queue
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from typing import IO, Any

from tangram_sim.datafiles import parse_json
from tangram_sim.errors import BadInputError, TangramError

_SHOWN = 300  # characters of the program's own words in an error


class Conversation:
    """A running program that answers each line of JSON with one line; started by the first question.

    After any failure the program is stopped, and the next question starts a new one.
    """

    def __init__(self, name: str, command: Sequence[str], time_limit_s: float) -> None:
        self.name, self.command, self.time_limit_s = name, tuple(command), time_limit_s
        self._deadline = 0.0
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._words: IO[str] | None = None
        self._stop: weakref.finalize[..., Any] | None = None

    def open(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask a new question, with the whole time limit. Raises TangramError as `go_on` does."""
        self._deadline = time.monotonic() + self.time_limit_s
        return self.go_on(question)

    def go_on(self, document: dict[str, Any]) -> dict[str, Any]:
        """Send one document and return the answer, within the remaining time limit.

        Raises TangramError when the program cannot be started, dies, exceeds the limit or answers with
        invalid JSON.
        """
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(document, allow_nan=False) + "\n")
            process.stdin.flush()
        except OSError:
            raise self._died() from None
        try:
            line = self._lines.get(timeout=max(self._deadline - time.monotonic(), 0.0))
        except queue.Empty:
            words = self._ended()
            raise self._error(
                f"gave no answer within {self.time_limit_s:g} s and was stopped{words}"
            ) from None
        if line is None:
            raise self._died()
        try:
            answer = parse_json(line, "answer")
        except BadInputError:
            self._ended()
            raise self._error(f"answered what is no JSON: {line.strip()[:_SHOWN]!r}") from None
        if not isinstance(answer, dict):
            self._ended()
            raise self._error(f"answered {line.strip()[:_SHOWN]!r}; a JSON object is wanted")
        return answer

    def refuse(self, problem: str) -> TangramError:
        """Stop the program, and return the error for an answer that is valid JSON but not understood."""
        self._ended()
        return self._error(problem)

    def close(self) -> None:
        """Stop the program, if it runs."""
        self._ended()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        words = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by _end
        try:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            words.close()
            raise self._error(f"cannot be started: {error.strerror}; is it installed and on PATH?") from None
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        self._process, self._lines, self._words = process, lines, words
        self._stop = weakref.finalize(self, _end, process, words)
        return process

    def _died(self) -> TangramError:
        process = self._process
        assert process is not None
        try:
            status = process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:  # it closed its output and lives on
            return self._error(f"closed its output without an answer{self._ended()}")
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
        return self._error(f"{how} without an answer{self._ended()}")

    def _ended(self) -> str:
        """Stop the program; returns the end of what it wrote to standard error, if anything."""
        said = ""
        if self._process is not None and self._words is not None and self._stop is not None:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._words.seek(0)
            said = self._words.read().strip()[-_SHOWN:]
            self._stop()
            self._process = self._words = None
        return f"; it said: {said}" if said else ""

    def _error(self, problem: str) -> TangramError:
        return TangramError(
            f"parallelizer {self.name!r}: `{' '.join(self.command)}` {problem}. "
            "docs/how-to/add-a-parallelizer.md says what it is asked and must answer."
        )


def _read(process: subprocess.Popen[str], lines: "queue.Queue[str | None]") -> None:
    """Put every line of the program's output into `lines`, then None."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.put(line)
    except ValueError:  # closed while it was read
        pass
    lines.put(None)


def _end(process: subprocess.Popen[str], words: IO[str]) -> None:
    """Stop a program and close what was opened for it."""
    if process.poll() is None:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # what was written last has no reader any more
                continue
    words.close()
