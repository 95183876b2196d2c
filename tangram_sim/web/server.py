"""The web server on this machine's loopback address, with a random access token, until it is stopped."""

import os
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.web.app import web_app
from tangram_sim.web.auth import Guard
from tangram_sim.web.choices import choices
from tangram_sim.web.connections import WHOLE_REQUEST_S, PromptConnection
from tangram_sim.web.documents import VerbRequest
from tangram_sim.web.history import History, history_folder
from tangram_sim.web.redirect import redirect_page
from tangram_sim.web.runs import Runs
from tangram_sim.web.work import RunVerb

LOOPBACK = "127.0.0.1"


def serve(
    run: RunVerb,
    *,
    port: int = 0,
    most: int = 0,
    folders: Sequence[Path] = (),
    browse: bool = True,
    keep: bool = True,
    tell: Callable[[str], None],
) -> None:
    """Serve the page until Ctrl-C; `tell` is called with its address, and `run` runs one verb in a process.

    `port`: 0 is any free one. `most`: runs at once, 0 is one per core. `folders`: the user's hardware rows.
    `browse`: open a browser. `keep`: answers go into the history. Raises BadInputError if the port is taken.
    """
    runs = Runs(run, most or max(os.cpu_count() or 1, 2), tuple(folders))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, port))
        except OSError as error:
            raise BadInputError(f"--port {port}: {error.strerror}; leave it out to take a free one") from None
        listening.listen()  # from here on a browser waits instead of being refused
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(24)
        address = f"http://{LOOPBACK}:{port}/#token={token}"
        with redirect_page(address) if browse else nullcontext("") as page:
            folder, why_none = history_folder()
            history = History(folder, why_none if keep else "the page was started with --no-history")
            app = web_app(runs, choices(Hwdb.load(tuple(folders))), history)
            app.router.lifespan_context = _warmed(runs, lambda: page and webbrowser.open(page))
            hosts = frozenset(f"{name}:{port}" for name in (LOOPBACK, "localhost"))
            tell(address)
            settings = uvicorn.Config(
                Guard(app, token, hosts),
                log_level="warning",
                access_log=False,
                ws="none",
                server_header=False,
                limit_concurrency=64,
                http=PromptConnection,
                timeout_keep_alive=WHOLE_REQUEST_S,
                timeout_graceful_shutdown=1,
            )
            _Server(settings, runs).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server that, when told to stop, ends its runs instead of waiting for them."""

    def __init__(self, config: uvicorn.Config, runs: Runs) -> None:
        super().__init__(config)
        self._runs = runs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End all runs when the process receives a signal to stop."""
        self._runs.end()
        super().handle_exit(sig, frame)


def _warmed(runs: Runs, ready: Callable[[], object]) -> Any:
    """At the start call `ready` and run one small request, to load libraries; at the end stop all runs."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        import asyncio

        async def first() -> None:
            asked = VerbRequest(verb="estimate", arguments=["gpt3-125m", "azure-c1"], options={"pp": 2})
            async for _ in runs.answers(asked):
                pass

        task = asyncio.create_task(first())
        ready()
        yield
        task.cancel()
        runs.end()

    return lifespan
