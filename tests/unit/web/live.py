"""`tangram web` as a person starts it: a process of its own, asked over HTTP."""

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT

_START = "from tangram_sim.cli.main import main; main()"


@dataclass(frozen=True)
class LivePage:
    """The address of a page that is served, and its token."""

    address: str
    process: subprocess.Popen[str]

    @property
    def home(self) -> str:
        return self.address.partition("/#")[0]

    @property
    def host(self) -> str:
        return self.home.removeprefix("http://")

    @property
    def token(self) -> str:
        return self.address.partition("token=")[2]

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
        """(status, text) of one request with the token; header names have `_` for `-`."""
        line = self.begin(path, body, **headers)
        try:
            answer = line.getresponse()
            return answer.status, answer.read().decode()
        finally:
            line.close()

    def begin(self, path: str, body: bytes | None = None, **headers: str) -> http.client.HTTPConnection:
        """A request whose answer is not waited for."""
        line = http.client.HTTPConnection(self.host, timeout=60)
        given = {"x-tangram-token": self.token} | {k.replace("_", "-"): v for k, v in headers.items()}
        line.request("POST" if body is not None else "GET", path, body, given)
        return line

    def run(self, **request: Any) -> Any:
        """The answer of one run."""
        status, text = self.ask("/api/run", json.dumps(request).encode())
        assert status == 200, text
        events = [part.split("\ndata: ") for part in text.strip().split("\n\n")]
        assert events[-1][0] == "event: answer", text
        return json.loads(events[-1][1])


@contextmanager
def live_page(*options: str, data: Path | None = None) -> Iterator[LivePage]:
    """A page served until the block ends; `data`: the user's folder of data, by default an empty one."""
    for needed in ("starlette", "uvicorn"):
        pytest.importorskip(needed, reason=f"{needed} comes with the extra `web`")
    words = [sys.executable, "-c", _START, "web", "--no-browser", *options]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    with (
        tempfile.TemporaryDirectory() as empty,
        subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment | {"XDG_DATA_HOME": str(data or empty)},
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield LivePage(process.stdout.readline().removeprefix("open ").strip(), process)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(120)  # at worst it is still compiling
            finally:
                process.kill()
