"""Runs the marked blocks of a Markdown page, and refreshes the output they show.

A fenced block takes part when a mark follows its language:

    ```yaml file=lab.yaml      the block is written to that file
    ```console run             lines that start with "$ " are run; the lines below them are their output
    ```python run              the block is run
    ```text output             what the Python block above prints

The blocks of a page run in order in one folder. A command ends with exit code 0, or with the one in a comment
behind it (`$ tangram plan x y  # exit 2`). Shown output must be the real one, except that "..." stands for
any number of lines, and lines that tell how long a search took (`searched:`) are not compared.

How-to pages run on a copy of the hardware data that a calibration does not touch (FROZEN), so that one that
moves every figure by a little rewrites no prose. It is renewed by hand, with the pages: copy hwdb/ there and
refresh them.

Refresh the output that a page shows: python -m docs.snippets README.md
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from unittest.mock import patch

FROZEN_DAY = date(2026, 11, 22)  # prices grow old, and pages do not say so
FROZEN = Path(__file__).resolve().parent.parent / "tests" / "documents" / "hwdb"
_HANDED_ON = re.compile(r"^tangram (?P<words>[^|><;&$]*) (?P<how>[>|]) (?P<rest>.+)$")
_FENCE = re.compile(r"^```(?P<language>\w+) (?P<mark>run|output|file=\S+)\n(?P<text>.*?)^```$", re.M | re.S)
_EXIT = re.compile(r"\s+# exit (\d+)$")
_TIMED = "searched: "  # a line of output with seconds in it


@dataclass(frozen=True, slots=True)
class Block:
    """One marked block; `start` and `stop` are the places of its text in the page."""

    language: str
    mark: str
    text: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Ran:
    """A command or Python block that was run: what the page shows and what came out."""

    what: str
    shown: str
    printed: str
    code: int
    expected_code: int = 0

    def problem(self) -> str:
        """What differs from the page; empty when nothing does."""
        if self.code != self.expected_code:
            return f"{self.what}: exit code {self.code}, {self.expected_code} expected\n{self.printed}"
        if not matches(self.shown, self.printed):
            return f"{self.what}: the page shows\n{self.shown}\nbut it prints\n{self.printed}"
        return ""


def blocks(page: str) -> list[Block]:
    """The marked blocks of a page, in order."""
    return [
        Block(found["language"], found["mark"], found["text"], found.start("text"), found.end("text"))
        for found in _FENCE.finditer(page)
    ]


def matches(shown: str, printed: str) -> bool:
    """Whether output is as shown; nothing shown asks for nothing."""
    wanted, real = _lines(shown), _lines(printed)
    if not wanted:
        return True
    place, skipping = 0, False
    for line in wanted:
        if line == "...":
            skipping = True
            continue
        found = next((at for at in range(place, len(real)) if _same(line, real[at])), None)
        if found is None or (found > place and not skipping):
            return False
        place, skipping = found + 1, False
    return skipping or place == len(real)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _same(shown: str, printed: str) -> bool:
    return shown == printed or (shown.startswith(_TIMED) and printed.startswith(_TIMED))


def frozen(path: Path) -> bool:
    """Whether a page runs on the frozen copy of the hardware data."""
    return path.resolve().parent.name == "how-to"


@contextlib.contextmanager
def frozen_hardware() -> Iterator[None]:
    """Read the frozen copy in place of the shipped hardware data, in this process."""
    from tangram_sim.hwdb import database
    from tangram_sim.purchasing import cases, notes

    shipped = database.shipped
    with (
        patch.object(database, "shipped", lambda name: FROZEN if name == "hwdb" else shipped(name)),
        patch.object(notes, "this_day", lambda: FROZEN_DAY),
    ):
        cases.forget()
        try:
            yield
        finally:
            cases.forget()


def run_page(page: str, pinned: bool = False) -> Iterator[Ran]:
    """Run the blocks of a page in order, in a new folder."""
    found = blocks(page)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as back:
        back.callback(os.chdir, before)
        if pinned:
            back.enter_context(frozen_hardware())
        os.chdir(folder)
        for number, block in enumerate(found):
            if block.mark.startswith("file="):
                path = Path(block.mark.removeprefix("file="))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif block.mark == "run" and block.language == "python":
                after = found[number + 1] if number + 1 < len(found) else None
                shown = after.text if after is not None and after.mark == "output" else ""
                yield _python(block.text, shown)
            elif block.mark == "run":
                for command, output in commands(block.text):
                    yield _shell(command, output)


def commands(text: str) -> list[tuple[str, str]]:
    """(command, output shown) of a console block."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return found


def _python(text: str, shown: str) -> Ran:
    """Run a block as a script, but in this process: importing compiled code again takes a second."""
    printed, code = io.StringIO(), compile(text, "<snippet>", "exec")
    sys.path.insert(0, str(Path.cwd()))
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, {"__name__": "__main__"})
    finally:
        sys.path.pop(0)
    return Ran(text.splitlines()[0], shown, printed.getvalue(), 0)


def _shell(line: str, shown: str) -> Ran:
    command = _EXIT.sub("", line)
    expected = _EXIT.search(line)
    handed_on = _HANDED_ON.match(command)
    if command.startswith("tangram ") and not set(command) & set("|><;&$"):
        printed, code = _tangram(shlex.split(command)[1:])
    elif handed_on:
        text, code = _tangram(shlex.split(handed_on["words"]))
        rest = f"cat > {handed_on['rest']}" if handed_on["how"] == ">" else handed_on["rest"]
        printed, after = _process(rest, text)
        code = code or after
    else:
        printed, code = _process(command)
    return Ran(line, shown, printed, code, int(expected[1]) if expected else 0)


def _process(command: str, text: str | None = None) -> tuple[str, int]:
    """Run a shell command on `text`; standard output and error together, and its exit code."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        env={**os.environ, "PATH": path, "COLUMNS": ""},  # as in a pipe, whoever runs this
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout, done.returncode


def _tangram(arguments: list[str]) -> tuple[str, int]:
    """Run the command line in this process; standard output and error together."""
    from tangram_sim.cli.main import main

    printed, code, argv = io.StringIO(), 0, sys.argv
    sys.argv = ["tangram", *arguments]
    as_in_a_pipe = patch.dict(os.environ, COLUMNS="")  # test runners set a width
    try:
        with as_in_a_pipe, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    finally:
        sys.argv = argv
    return printed.getvalue(), code


def refreshed(page: str, pinned: bool = False) -> str:
    """The page with its output as printed now; output with "..." is left alone."""
    ran, found = run_page(page, pinned), blocks(page)
    changes: list[tuple[int, int, str]] = []
    for number, block in enumerate(found):
        if block.mark != "run":
            continue
        if block.language == "python":
            printed = _ends(next(ran).printed)
            if number + 1 < len(found) and found[number + 1].mark == "output":
                changes.append((found[number + 1].start, found[number + 1].stop, printed))
            continue
        text = ""
        for command, output in commands(block.text):
            printed = _ends(next(ran).printed)
            kept = not output.strip() or "..." in output.splitlines()
            text += f"$ {command}\n" + (output if kept else printed)
        changes.append((block.start, block.stop, text))
    for start, stop, text in reversed(changes):
        page = page[:start] + text + page[stop:]
    return page


def _ends(printed: str) -> str:
    return "\n".join(_lines(printed)) + "\n"


if __name__ == "__main__":
    for name in map(Path, sys.argv[1:]):
        name.write_text(refreshed(name.read_text(encoding="utf-8"), frozen(name)), encoding="utf-8")
