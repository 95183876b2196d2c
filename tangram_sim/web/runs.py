"""Runs of verbs in separate processes: limited in number, and ended when the client disconnects."""

import asyncio
import shlex
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from tangram_sim.datafiles import parse_json
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.fields import leaves
from tangram_sim.questions.question import question_type
from tangram_sim.web.documents import VerbAnswer, VerbRequest
from tangram_sim.web.processes import StartedProcess, Starter
from tangram_sim.web.quick import QuickAnswers
from tangram_sim.web.verbs import command_words
from tangram_sim.web.work import HowFar, RunEnd, RunVerb, own_folder, work

_MOST_WAITING = 16  # runs that may stand in line
_QUICK = ("estimate",)  # verbs that answer in milliseconds


class TooManyRunsError(TangramError):
    """Too many runs are in progress or waiting."""


@dataclass
class Runs:
    """All runs of one server: at most `most` at once; hardware rows in `folders` override shipped ones."""

    run: RunVerb
    most: int
    folders: tuple[Path, ...] = ()
    _running: set[StartedProcess] = field(default_factory=set, init=False)
    _admitted: int = field(default=0, init=False)  # runs, and those who wait for a turn
    _turns: asyncio.Semaphore = field(init=False)
    _starter: Starter = field(init=False)
    _quick: QuickAnswers = field(init=False)

    def __post_init__(self) -> None:
        self._turns = asyncio.Semaphore(self.most)
        self._starter = Starter(self.run.__module__)
        self._quick = QuickAnswers(self.run, self._starter, self.folders)

    def words(self, asked: VerbRequest) -> list[str]:
        """The arguments of the request's command line, after `tangram`."""
        words = command_words(asked)
        takes_rows = any(leaf.name == "hwdb" for leaf in leaves(question_type(asked.verb)))
        return [*words, *(f"--hwdb={folder}" for folder in self.folders if takes_rows)]

    def require_possible(self, asked: VerbRequest) -> list[str]:
        """The arguments of the command line, if the request may run now.

        Raises BadInputError for a verb or option that is not offered, TooManyRunsError if too many others run
        or wait.
        """
        words = self.words(asked)
        if self._admitted >= self.most + _MOST_WAITING and asked.verb not in _QUICK:
            raise TooManyRunsError(
                f"{self.most} runs at a time are what this page starts (--at-once), and {_MOST_WAITING} "
                "more wait; come back later"
            )
        return words

    async def answers(self, asked: VerbRequest) -> AsyncGenerator[HowFar | VerbAnswer, None]:
        """Progress reports of the run, then its answer; raises the same errors as `require_possible`.

        The run is ended if the caller stops iterating.
        """
        words = self.require_possible(asked)
        if asked.verb in _QUICK:
            yield _answer(words, await self._quick.answer(words, asked.files))
            return
        self._admitted += 1
        try:
            if self._turns.locked():
                yield HowFar(0, 0, "waiting for other searches to end")
            async with self._turns:
                with tempfile.TemporaryDirectory(prefix="tangram-web-") as whole:
                    folder = own_folder(whole)
                    for name, text in asked.files.items():
                        Path(folder, name).write_text(text, encoding="utf-8")
                    async with aclosing(self._messages(folder, words)) as messages:
                        async for message in messages:
                            yield _answer(words, message) if isinstance(message, RunEnd) else message
        finally:
            self._admitted -= 1

    async def _messages(self, folder: str, words: list[str]) -> AsyncGenerator[HowFar | RunEnd, None]:
        started = await self._starter.start(work, folder, words, self.run, self.folders)
        self._running.add(started)
        try:
            yield HowFar(0, 0, "searching")
            while True:
                message = await anyio.to_thread.run_sync(started.next_message, abandon_on_cancel=True)
                yield message
                if isinstance(message, RunEnd):
                    return
        finally:
            self._running.discard(started)
            started.end()

    def end(self) -> None:
        """End every run and the long-lived process; clients that wait get an answer that says so."""
        self._quick.end()
        for started in self._running:
            started.kill()


def _answer(words: Sequence[str], end: RunEnd) -> VerbAnswer:
    document, error = None, ""
    if end.code == 0:
        try:
            document = parse_json(end.out, "the verb's answer")
        except BadInputError:
            error = "the verb printed no document"
    else:
        error = end.err.strip().removeprefix("error: ") or f"exit code {end.code}"
    shown = [word for word in words if word not in ("--json", "--no-cache", "--jobs=1")]
    return VerbAnswer(
        command=shlex.join(["tangram", *shown]),
        code=end.code,
        document=document,
        error=error,
        files=end.files,
    )
