"""Tables and JSON on standard output, set to the width of the terminal."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tangram_sim.cli.paint import coloured, painted
from tangram_sim.cli.printable import PrintableStream, shortened
from tangram_sim.cli.tables import ConsoleTable
from tangram_sim.cli.verbosity import Verbosity, chosen
from tangram_sim.cli.wording import as_options
from tangram_sim.naming import printable

if TYPE_CHECKING:
    from tangram_sim.findings import Finding
    from tangram_sim.reports.columns import ViewColumn

PIPE_WIDTH = 200  # of a pipe or file when COLUMNS does not say otherwise: nobody's window wraps it
MOST_NOTES = 5  # beside an answer, unless --verbose asks for all
_NARROWEST = 40  # characters
_PHRASE = "   "  # between phrases of one line


def print_json(data: Any) -> None:
    """Print one JSON document, keys in the order given. Raises ValueError for NaN and infinity."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def print_line(text: str = "") -> None:
    """Print text wrapped to the output's width, at three spaces (between phrases) or else between words."""
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
        for ready in filled.split("\n"):
            _write(ready)


def in_window() -> bool:
    """Whether the output has a known width: that of a terminal, or the variable COLUMNS."""
    return sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()


def width() -> int:
    """Characters per line: COLUMNS if set, the terminal's width, else PIPE_WIDTH."""
    if in_window():
        return max(_NARROWEST, shutil.get_terminal_size((PIPE_WIDTH, 24)).columns)
    return PIPE_WIDTH


def print_notes(notes: Sequence[str]) -> None:
    """Print the first few notes, the most serious first; all under --verbose, none under --quiet."""
    if chosen() is Verbosity.QUIET:
        return
    shown = notes if chosen() is Verbosity.VERBOSE or len(notes) <= MOST_NOTES + 1 else notes[:MOST_NOTES]
    for note in shown:
        print_line(f"note: {note}")
    if len(shown) < len(notes):
        print_line(f"and {len(notes) - len(shown)} more notes: --verbose")


def print_findings(findings: Sequence["Finding"]) -> None:
    """Print the first few findings; with --verbose all, including details of the search."""
    from tangram_sim.findings import Severity

    details = chosen() is Verbosity.VERBOSE
    print_notes([each.text for each in findings if details or each.severity is not Severity.DETAIL])


def print_detail(text: str) -> None:
    """Print an extra line that only --verbose shows: counters, second bounds, where figures come from."""
    if chosen() is Verbosity.VERBOSE:
        print_line(text)


def print_remark(text: str) -> None:
    """Print an extra line next to the answer; not with --quiet."""
    if chosen() is not Verbosity.QUIET:
        print_line(text)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    leaves: Sequence[int] = (),
) -> None:
    """Print a table; on a narrow terminal the columns in `leaves` are dropped in that order."""
    print_widest([ConsoleTable(columns, rows, right, leaves)])


def print_columns(columns: "Sequence[ViewColumn]", rows: Sequence[Any], leaves: Sequence[int] = ()) -> None:
    """Print a table from columns that a page shows as well; `leaves` as in `print_table`."""
    figures = [place for place, column in enumerate(columns) if column.show]
    cells = [[column.text(row) for column in columns] for row in rows]
    print_table([column.head for column in columns], cells, figures, leaves)


def print_widest(variants: Sequence[ConsoleTable]) -> None:
    """Print the first of several variants of a table that fits the terminal.

    If none fits, the last is printed without the columns for which there is no room, which are named. Into a
    pipe or file all of its columns are written. With --verbose the first variant, which has every figure, is
    printed with wrapped cells.
    """
    room = width()
    worded = [replace(table, rows=[[*map(as_options, row)] for row in table.rows]) for table in variants]
    fits = next((table for table in worded if table.natural_width() <= room), None)
    if chosen() is Verbosity.VERBOSE:
        table, left_out = worded[0], list[str]()
    elif fits is not None:
        table, left_out = fits, []
    else:
        table, left_out = worded[-1].fitted(room) if in_window() else (worded[-1], [])
    left_out = [*table.lost, *left_out] if in_window() else []
    for line in _drawn(table, room):
        _write(line)
    if left_out:
        print_remark(f"left out in this window: {', '.join(left_out)} (--verbose, --json)")
    _write("")


def _drawn(table: ConsoleTable, room: int) -> list[str]:
    """The lines of a table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if index in table.right else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*row)
    console = Console(
        width=room, soft_wrap=False, highlight=False, markup=False, emoji=False, color_system=None
    )
    with console.capture() as captured:
        console.print(drawn)
    return [line.rstrip() for line in captured.get().splitlines() if line.strip()]


def _write(line: str) -> None:
    """Write one line to standard output, with important words coloured on a terminal."""
    if coloured():
        # Colours steer the terminal: they go past what keeps text from doing so.
        terminal = sys.stdout.terminal if isinstance(sys.stdout, PrintableStream) else sys.stdout
        terminal.write(painted(printable(line)) + "\n")
    else:
        sys.stdout.write(line + "\n")
