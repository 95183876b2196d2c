"""A real Chromium without a window, driven over a pipe by the DevTools protocol: what a reader would see."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PATIENCE_S = 60.0
# The browser reads from descriptor 3 and writes to 4: put the pipes there (no shell takes numbers above 9).
_START = """
import os, sys
ends = [os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))]
spare = [os.dup2(end, 100 + place) for place, end in enumerate(ends)]
os.dup2(spare[0], 3)
os.dup2(spare[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str:
    """The browser's path; the test is skipped where there is none."""
    own = os.environ.get("TANGRAM_CHROMIUM")
    found = own or next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium, or name one in TANGRAM_CHROMIUM")
    return found


class Page:
    """One page. Messages of its console, refused requests and exceptions are kept in `problems`."""

    def __init__(self, writer: int, reader: int) -> None:
        self._writer, self._reader, self._number, self._rest = writer, reader, 0, b""
        self.problems: list[str] = []
        self.events: list[str] = []
        self._session = ""

    def attach(self) -> None:
        """Make an empty page and listen to all it says."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Page", "Log", "Network"):
            self.send(f"{domain}.enable")

    def open(self, path: Path) -> None:
        """Load a file and wait until it has loaded."""
        self.send("Page.navigate", url=path.absolute().as_uri())
        until = time.monotonic() + _PATIENCE_S
        while "Page.loadEventFired" not in self.events and time.monotonic() < until:
            self.evaluate("1")
        assert "Page.loadEventFired" in self.events

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer; what happens meanwhile is noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._reader, 1 << 20)
            assert piece, "the browser has gone"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        method, what = event.get("method", ""), event.get("params", {})
        self.events.append(method)
        entry = what.get("entry", {})
        noisy = method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert")
        logged = method == "Log.entryAdded" and entry["level"] in ("error", "warning")
        if noisy or logged or method in ("Runtime.exceptionThrown", "Network.loadingFailed"):
            self.problems.append(json.dumps(entry or what)[:500])
        if method == "Network.requestWillBeSent":
            url = what["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:", "about:")):
                self.problems.append(f"asked the network for {url}")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, patience_s: float = 10.0) -> bool:
        """Whether an expression becomes true in time; a page lays itself out when it likes."""
        until = time.monotonic() + patience_s
        while not self.evaluate(expression):
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Show the page on a screen of this size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def screenshot(self, path: Path) -> None:
        """Keep what the page looks like, all of it."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        """The page as printed."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])


@contextmanager
def browser() -> Iterator[Page]:
    """A fresh browser without network that ends with the block."""
    program = chromium()
    out_read, out_write = os.pipe()
    in_read, in_write = os.pipe()
    with tempfile.TemporaryDirectory() as profile:
        flags = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
            *(
                "--remote-debugging-pipe",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--user-data-dir={profile}",
            ),
        ]
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(in_read), str(out_write), program, *flags],
            pass_fds=(in_read, out_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(in_read)
        os.close(out_write)
        try:
            page = Page(in_write, out_read)
            page.attach()
            yield page
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(in_write)
            os.close(out_read)
