"""A table of published runs as text: its columns, rows of the wrong width, and rows that give no run."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tangram_sim.datafiles import read_text
from tangram_sim.errors import BadInputError, TangramError
from tangram_validate.published.cells import CellError, Cells

WIDTH = "row width"  # column that marks a row whose cells do not match the header
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that cannot be predicted, and why."""

    id: str
    source_id: str
    reason: str


def read_rows(
    path: Path,
    wanted: Sequence[str],
    kind: str,
    *,
    telling: Sequence[str] = (),
    hints: Mapping[str, str] | None = None,
) -> list[dict[str, str]]:
    """Rows of the file as text; one of the wrong width is kept and marked, to be reported.

    Raises BadInputError for a file that is no CSV, has fewer than half of the columns `wanted`, lacks one of
    `telling`, without which it is no table of that `kind`, or has no row; `hints` are said where their column
    is there.
    """
    text = read_text(path).removeprefix("\ufeff")
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [cell.strip() for cell in next(reader, [])]
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise BadInputError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    known = [column for column in wanted if column in header]
    if len(known) * 2 < len(wanted) or any(column not in header for column in telling):
        said = "".join(hint for column, hint in (hints or {}).items() if column in header)
        raise BadInputError(
            f"{path}: not a table of {kind}: its header has {', '.join(known) or 'none'} of the columns "
            f"{', '.join(wanted)}{said}"
        )
    if not lines:
        raise BadInputError(f"{path}: a header and no rows: give a line for each measured step")
    rows = []
    for line, cells in lines:
        row = dict(zip(header, cells, strict=False))
        if len(cells) != len(header):
            row[WIDTH] = f"line {line} has {len(cells)} cells where the header has {len(header)} columns"
        rows.append(row)
    return rows


def read_row(row: Mapping[str, str], number: int, make: Callable[[str, Cells], Made]) -> Made | Problem:
    """What `make` reads from a row's name and cells, or the reason why it cannot.

    `number` names the row where its id is blank.
    """
    cells = Cells(row)
    name = cells.text("id") or f"row {number}"
    try:
        if cells.text(WIDTH):
            raise CellError(cells.text(WIDTH))
        return make(name, cells)
    except (CellError, TangramError) as error:
        return Problem(name, cells.text("source_id"), str(error))
