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


class Pipe:
    """The line to the browser: messages out, answers in, events to the page they are of."""

    def __init__(self, writer: int, reader: int) -> None:
        self._writer, self._reader, self._number, self._rest = writer, reader, 0, b""
        self.pages: dict[str, Page] = {}

    def send(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer; what happens meanwhile is noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            page = self.pages.get(answer.get("sessionId", ""))
            if page is not None:
                page.note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._reader, 1 << 20)
            assert piece, "the browser has gone"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


class Page:
    """One page of a person of its own, who shares no storage with others.

    Messages of its console, refused requests and exceptions are kept in `problems`; so is every request that
    goes elsewhere than to `home`, an origin.
    """

    def __init__(self, pipe: Pipe, home: str = "file:", person: str = "") -> None:
        self._pipe, self._home = pipe, home
        self.problems: list[str] = []
        self.events: list[str] = []
        self._person = person or pipe.send("Target.createBrowserContext")["browserContextId"]
        target = pipe.send("Target.createTarget", url="about:blank", browserContextId=self._person)[
            "targetId"
        ]
        self._session = pipe.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        pipe.pages[self._session] = self
        for domain in ("Runtime", "Page", "Log", "Network"):
            self.send(f"{domain}.enable")

    def another(self, home: str) -> "Page":
        """A page of somebody else in the same browser."""
        return Page(self._pipe, home)

    @contextmanager
    def tab(self, home: str) -> Iterator["Page"]:
        """Another tab of the same person, which is closed when the block ends."""
        tab = Page(self._pipe, home, self._person)
        yield tab
        tab.send("Page.close")
        del self._pipe.pages[tab._session]
        self.send("Page.bringToFront")

    def open(self, place: Path | str) -> None:
        """Load a file or an address and wait until it has loaded."""
        self.events.clear()
        self.send("Page.navigate", url=place if isinstance(place, str) else place.absolute().as_uri())
        until = time.monotonic() + _PATIENCE_S
        while "Page.loadEventFired" not in self.events and time.monotonic() < until:
            self.evaluate("1")
        assert "Page.loadEventFired" in self.events

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something about this page and wait for the answer."""
        return self._pipe.send(method, self._session, **parameters)

    def note(self, event: dict[str, Any]) -> None:
        """Keep what a reader should not see."""
        method, what = event.get("method", ""), event.get("params", {})
        self.events.append(method)
        entry = what.get("entry", {})
        noisy = method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert")
        logged = method == "Log.entryAdded" and entry["level"] in ("error", "warning")
        # A stream whose reader has read all or gave it up is reported as a fetch that was cancelled.
        failed = method == "Network.loadingFailed" and not (what.get("canceled") and what["type"] == "Fetch")
        if noisy or logged or failed or method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(entry or what)[:500])
        if method == "Network.requestWillBeSent":
            url = what["request"]["url"]
            if not url.startswith((self._home, "data:", "blob:", "about:")):
                self.problems.append(f"asked the network for {url}")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, patience_s: float = 10.0) -> bool:
        """Whether an expression becomes true in time; a page lays itself out when it likes."""
        until = time.monotonic() + patience_s
        while not self._holds(expression):
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def _holds(self, expression: str) -> bool:
        """Whether an expression is true; on a page that is just being left it is not yet."""
        try:
            return bool(self.evaluate(expression))
        except AssertionError as error:
            if "navigated or closed" not in str(error):
                raise
            return False

    def choose_file(self, selector: str, path: Path) -> None:
        """Choose a file in a file field."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        field = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=field, files=[str(path)])

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
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
            *(
                "--remote-debugging-pipe",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
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
            yield Page(Pipe(in_write, out_read))
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(in_write)
            os.close(out_read)
