"""Tables and JSON on standard output, as wide as the reader's window."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tangram_sim.cli.printable import shortened
from tangram_sim.cli.wording import as_options

PIPE_WIDTH = 200  # of a pipe or file when COLUMNS does not say otherwise: nobody's window wraps it
_NARROWEST, _GAP = 40, 3  # characters; between two columns
_PHRASE = "   "  # between phrases of one line


def print_json(data: Any) -> None:
    """One JSON document, keys in the order given; NaN and infinity, which JSON lacks, are an error."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def print_line(text: str = "") -> None:
    """Prose, wrapped to the width of the output: between phrases (three blanks) first, then at words."""
    room, lines = width(), [""]
    for phrase in shortened(as_options(text)).split(_PHRASE):
        joined = f"{lines[-1]}{_PHRASE}{phrase}" if lines[-1] else phrase
        if len(joined) <= room or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(f"  {phrase}")
    for line in lines:
        indent = "  " if line.startswith("  ") else ""
        filled = textwrap.fill(
            line.strip(),
            room,
            initial_indent=indent,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        sys.stdout.write(filled + "\n")


def width() -> int:
    """Characters per line: COLUMNS where it is set, the terminal's, PIPE_WIDTH elsewhere."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return max(_NARROWEST, shutil.get_terminal_size((PIPE_WIDTH, 24)).columns)
    return PIPE_WIDTH


@dataclass(frozen=True, slots=True)
class ConsoleTable:
    """Headings and cells; columns in `right` are right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()

    def natural_width(self) -> int:
        """Characters per line with no cell wrapped."""
        widest = [len(column) for column in self.columns]
        for row in self.rows:
            widest = [
                max(known, *(len(line) for line in cell.split("\n")))
                for known, cell in zip(widest, row, strict=True)
            ]
        return sum(widest) + _GAP * len(widest)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """A plain table; cells wrap where the output is too narrow for them."""
    print_widest([ConsoleTable(columns, rows, right)])


def print_widest(variants: Sequence[ConsoleTable]) -> None:
    """The first of several tables that fits the width of the output; where none does, the last, wrapped."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    room = width()
    worded = [replace(table, rows=[[*map(as_options, row)] for row in table.rows]) for table in variants]
    chosen = next((table for table in worded if table.natural_width() <= room), worded[-1])
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(chosen.columns):
        drawn.add_column(column, justify="right" if index in chosen.right else "left", overflow="fold")
    for row in chosen.rows:
        drawn.add_row(*row)
    console = Console(
        width=room, soft_wrap=False, highlight=False, markup=False, emoji=False, color_system=None
    )
    with console.capture() as captured:
        console.print(drawn)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    sys.stdout.write("\n".join(line for line in lines if line) + "\n\n")
