"""One long-lived process for answers that take milliseconds, such as those to the page's sliders."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from tangram_sim.web.processes import StartedProcess, Starter
from tangram_sim.web.work import RunEnd, RunVerb, own_folder, work_on

_PATIENCE_S = 20.0  # far above what an estimate takes; beyond it the process is ended


@dataclass
class QuickAnswers:
    """Runs short verbs one after another in one process.

    The process starts with the first request, and again if it has ended or took too long.
    """

    run: RunVerb
    starter: Starter
    folders: tuple[Path, ...] = ()
    _standing: StartedProcess | None = field(default=None, init=False)
    _folder: Any = field(default=None, init=False)
    _turn: anyio.Lock = field(default_factory=anyio.Lock, init=False)

    async def answer(self, words: list[str], files: dict[str, str]) -> RunEnd:
        """Run the verb in `words` with `files` (text by name) and return what it printed and wrote."""
        async with self._turn:
            try:
                with anyio.fail_after(_PATIENCE_S):
                    standing = await self._started()
                    standing.line.send((words, files))
                    message = await anyio.to_thread.run_sync(standing.next_message, abandon_on_cancel=True)
            except TimeoutError:
                self.end()
                return RunEnd(2, "", "error: this takes too long for a slider: run it in a terminal\n", {})
            except BaseException:  # whoever asked has gone in the middle of it
                self.end()
                raise
            if not isinstance(message, RunEnd) or not standing.alive:
                self.end()
                return RunEnd(1, "", "error: the run ended without an answer\n", {})
            return message

    async def _started(self) -> StartedProcess:
        if self._standing is not None and not self._standing.alive:  # ended by hand, or by the system
            self.end()
        if self._standing is None:
            self._folder = tempfile.TemporaryDirectory(prefix="tangram-web-")
            self._standing = await self.starter.start(
                work_on, own_folder(self._folder.name), self.run, self.folders
            )
        return self._standing

    def end(self) -> None:
        """End the process; the next request starts a new one."""
        if self._standing is not None:
            self._standing.end()
            self._folder.cleanup()
            self._standing = None
