"""Colour is help: only on a terminal, never where NO_COLOR asks for none, and the words stay the same."""

import io
import re
import sys

import pytest

from tangram_sim.cli import console
from tangram_sim.cli.printable import PrintableStream


class Window(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, **environment: str) -> str:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": "80", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", PrintableStream(stream))
    console.print_line("note: a name with \x1b[31m in it   DOES NOT FIT")
    console.print_table(("stage", "limited by"), [("0", "slowest, gemm 60 %")])
    return stream.getvalue()


def test_colour_only_where_it_is_seen_and_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = printed(monkeypatch, io.StringIO(), TERM="xterm")
    assert "\x1b" not in plain
    assert "\x1b" not in printed(monkeypatch, Window(), TERM="xterm", NO_COLOR="1")
    assert "\x1b" not in printed(monkeypatch, Window(), TERM="dumb")
    coloured = printed(monkeypatch, Window(), TERM="xterm")
    assert "\x1b[31mDOES NOT FIT\x1b[0m" in coloured
    assert "\x1b[33mslowest\x1b[0m" in coloured
    assert "\\x1b[31m in it" in coloured  # what came out of a file is still written out
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
