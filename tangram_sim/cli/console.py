"""Tables and JSON on standard output."""

import json
import sys
from collections.abc import Sequence
from typing import Any


def print_json(data: Any) -> None:
    """One JSON document, stable key order as given."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), title: str = "") -> None:
    """A plain table; columns in `right` are right-aligned. Wide cells wrap on a terminal, never in a pipe."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 200, soft_wrap=False, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table)
    sys.stdout.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")
