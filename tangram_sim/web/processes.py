"""Starts and ends the processes that answer requests, forked from one with libraries loaded if possible."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import anyio
import anyio.to_thread

from tangram_sim.web.work import HowFar, RunEnd

_WARM = "tangram_sim.web.preload"


@dataclass(eq=False)
class StartedProcess:
    """A started process and the connection (pipe) to it."""

    process: Any
    line: Connection

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return bool(self.process.is_alive())

    def next_message(self) -> HowFar | RunEnd:
        """Wait for the next message; if the process ended without an answer, a RunEnd that says so."""
        try:
            message: HowFar | RunEnd = self.line.recv()
        except (EOFError, OSError):
            return RunEnd(
                1, "", "error: the run ended without an answer: out of memory, or ended by hand\n", {}
            )
        return message

    def kill(self) -> None:
        """Kill the process and every process that it started, at once."""
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def end(self) -> None:
        """Kill the process and release its resources; the object cannot be used afterwards."""
        self.kill()
        self.process.join()
        self.process.close()
        self.line.close()


class Starter:
    """Starts processes in which the modules named in `warm` are already imported, if the system can fork."""

    def __init__(self, *warm: str) -> None:
        if "forkserver" in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([_WARM, *warm])
            self._context: Any = context
        else:
            self._context = multiprocessing.get_context("spawn")

    async def start(self, target: Callable[..., None], *given: object) -> StartedProcess:
        """Start a process that runs target(connection, *given)."""
        here, there = self._context.Pipe()
        process = self._context.Process(target=target, args=(there, *given), daemon=True)
        try:
            await anyio.to_thread.run_sync(process.start)
        except EOFError:
            raise RuntimeError("the process that others are copied from did not start") from None
        there.close()
        return StartedProcess(process, here)
