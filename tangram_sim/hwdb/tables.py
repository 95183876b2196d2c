"""Tables of the hardware database: reading CSV files against `schema.csv`, merging overlays.

Every cell remembers its file and line. Cells are checked when read, so a wrong type is reported with file,
line and column.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from tangram_sim.datafiles import read_text
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.naming import require_name, require_text

# Columns in which zero is a fact ("no link", "not stated") and not a mistake; all other numbers are positive.
MAY_BE_ZERO = frozenset(
    {
        ("gpus", "power_w"),
        ("gpus", "link_gb_per_s"),
        ("links", "gb_per_s"),
        ("links", "latency_us"),
        ("efficiency", "value"),
        ("efficiency", "sigma"),
        ("efficiency", "n"),
        ("collectives", "value"),
        ("collectives", "sigma"),
        ("collectives", "n"),
        ("serving_engines", "least_memory_gib"),
        ("serving_engines", "graph_batch"),
        ("serving_calibration", "value"),
        ("serving_calibration", "sigma"),
        ("serving_calibration", "n"),
    }
)

# The smallest and the largest figure that could be meant, by the unit of its column: a thousand times and
# more beyond what is built, and far from where sums and quotients of floats overflow.
PHYSICAL = {
    "1e12 flop/s": (1e-6, 1e7),
    "1e12 op/s": (1e-6, 1e7),
    "1e9 bytes": (1e-3, 1e6),
    "1e6 bytes": (1e-3, 1e7),
    "1e9 bytes/s": (1e-6, 1e6),
    "1e9 bit/s": (1e-6, 1e7),
    "us": (1e-6, 1e7),
    "MHz": (1e-3, 1e6),
    "W": (1e-3, 1e7),
    "kW": (1e-6, 1e5),
}
_ANY_UNIT = (1e-15, 1e18)  # seconds of a cycle to bytes/s of a cluster
_LARGEST_INTEGER = 1e9

# Prose and provenance: a corrected sentence does not change what a prediction rests on.
PROSE = frozenset({"source", "note", "date", "price_date", "price_region", "price_source", "n"})

# Columns by whose text rows are asked for.
NAMES = frozenset({"name", "alias", "gpu", "link", "model"})


@dataclass(frozen=True, slots=True)
class Column:
    """One column as `schema.csv` describes it."""

    name: str
    type: str  # text, integer, number or date
    required: bool
    unit: str = ""


@dataclass(slots=True)
class Row:
    """One row: its cells as text (empty = not stated) and where each was read."""

    table: str
    name: str
    cells: dict[str, str]
    origins: dict[str, str] = field(default_factory=dict)  # column -> "FILE, line N"

    def __getitem__(self, column: str) -> str:
        return self.cells.get(column, "")

    def number(self, column: str, absent: float = 0.0) -> float:
        """The number in a cell, in the column's own unit; `absent` where the cell is empty."""
        cell = self.cells.get(column, "")
        return float(cell) if cell else absent

    def facts(self) -> list[tuple[str, str]]:
        """Cells that predictions depend on, numbers in canonical form, in alphabetical column order."""
        return [
            (column, _canonical(cell))
            for column, cell in sorted(self.cells.items())
            if cell and column not in PROSE
        ]


def _canonical(cell: str) -> str:
    try:
        return repr(float(cell))
    except ValueError:
        return cell


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a CSV file, cells stripped.

    Raises BadInputError naming file and line for a row of the wrong width, a repeated column, broken quoting.
    """
    reader = csv.reader(io.StringIO(read_text(path).removeprefix("\ufeff"), newline=""), strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        for column in header:
            if header.count(column) > 1 or not column:
                raise BadInputError(
                    f"{path}, line 1: column {column!r} is {'given twice' if column else 'without a name'}"
                )
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise BadInputError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells where the header has {len(header)} "
                    "columns; quote a cell that contains a comma"
                )
            yield reader.line_num, {column: cell.strip() for column, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        raise BadInputError(f"{path}, line {reader.line_num}: not CSV: {error}") from None


def read_schema(path: Path) -> dict[str, dict[str, Column]]:
    """Columns of every table, by table and name, from `schema.csv`."""
    schema: dict[str, dict[str, Column]] = {}
    for _, row in read_lines(path):
        schema.setdefault(row["table"], {})[row["column"]] = Column(
            row["column"], row["type"], row["required"] == "yes", row["unit"]
        )
    return schema


def check_cell(table: str, column: Column, cell: str, where: str) -> None:
    """Check one filled cell against its column's type and sign; `where` is "FILE, line N".

    Raises BadInputError naming file, line and column.
    """
    place = f"{where}, column {column.name}"
    if column.type == "date":
        try:
            date.fromisoformat(cell)
        except ValueError:
            raise BadInputError(f"{place}: {cell!r} given; a day is wanted, like 2026-09-06") from None
    if column.type not in ("number", "integer"):
        if column.name in NAMES:
            require_name(cell, f"{place}:")
        elif column.name not in PROSE:
            require_text(cell, f"{place}:")
        return
    try:
        value = float(cell)
    except ValueError:
        raise BadInputError(f"{place}: {cell!r} given; a plain number is wanted, without unit") from None
    zero_allowed = (table, column.name) in MAY_BE_ZERO
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero_allowed):
        wanted = "a finite number, zero or more," if zero_allowed else "a finite number above zero"
        raise BadInputError(f"{place}: {cell} given; {wanted} is wanted")
    least, most = PHYSICAL.get(column.unit, _ANY_UNIT)
    if column.type == "integer":
        most = min(most, _LARGEST_INTEGER)
        if not value.is_integer():
            raise BadInputError(f"{place}: {cell} given; a whole number is wanted")
    if value and not least <= value <= most:
        unit = f", in {column.unit}" if column.unit else ""
        raise BadInputError(f"{place}: {cell} given; {least:g} to {most:g} can be meant{unit}")


def read_rows(path: Path, table: str, columns: Mapping[str, Column]) -> Iterator[tuple[str, dict[str, str]]]:
    """("FILE, line N", filled cells) of one file, each cell checked; an unknown column is an error."""
    known_header = False
    for line, cells in read_lines(path):
        if not known_header:
            for column in cells:
                if column not in columns:
                    raise BadInputError(
                        f"{path}, line 1: {unknown_name(f'column of {table}', column, columns)}"
                    )
            known_header = True
        where = f"{path}, line {line}"
        filled = {column: cell for column, cell in cells.items() if cell}
        for column, cell in filled.items():
            check_cell(table, columns[column], cell, where)
        yield where, filled


def require(row: Row, columns: Iterable[Column], where: str) -> None:
    """Raise BadInputError unless every required column of a row is filled."""
    missing = [column.name for column in columns if column.required and not row.cells.get(column.name)]
    if missing:
        raise BadInputError(
            f"{where}: {row.table} row {row.name!r} lacks {', '.join(missing)}; "
            "a new row needs every required column"
        )


def fold(name: str) -> str:
    """A name in a spelling for comparisons: lower case, without the separators `-`, `_`, `/` and space."""
    return name.lower().translate(_SEPARATORS)


_SEPARATORS = str.maketrans("", "", "-_ /")


class Names:
    """Names and aliases of one table: matched exactly, else ignoring case and separators."""

    __slots__ = ("_exact", "_folded", "_kind", "canonical")

    def __init__(self, kind: str, canonical: Iterable[str]) -> None:
        self._kind = kind
        self.canonical = dict.fromkeys(canonical)
        self._exact: dict[str, str] = {}
        self._folded: dict[str, set[str]] = {}
        for name in self.canonical:
            self.add(name, name)

    def add(self, alias: str, name: str) -> None:
        """Make `alias` an alias of `name`; a canonical name always means itself."""
        self.canonical.setdefault(name)
        if alias == name or alias not in self.canonical:
            self._exact[alias] = name
            self._folded.setdefault(fold(alias), set()).add(name)

    def find(self, given: str) -> str | None:
        """The canonical name that `given` means, or None.

        Raises BadInputError where it is ambiguous.
        """
        if given in self._exact:
            return self._exact[given]
        meant = self._folded.get(fold(given), set())
        if len(meant) > 1:
            raise BadInputError(
                f"{self._kind} {given!r} may mean {' or '.join(sorted(meant))}; write one of them"
            )
        return next(iter(meant), None)

    def resolve(self, given: str) -> str:
        """The canonical name that `given` means; UnknownNameError with the nearest names otherwise."""
        found = self.find(given)
        if found is None:
            aliases = {fold(alias): alias for alias in self._exact if alias not in self.canonical}
            near = get_close_matches(fold(given), aliases, n=5, cutoff=0.7)
            near += sorted(alias for alias in aliases if fold(given) and fold(given) in alias)
            spelled = (
                f"{aliases[fromkey]} ({self._exact[aliases[fromkey]]})" for fromkey in dict.fromkeys(near)
            )
            hint = f"Other spellings: {', '.join(islice(spelled, 5))}." if near else ""
            raise unknown_name(self._kind, given, self.canonical, hint)
        return found


def require_between(row: Row, lowest: float, highest: float, what: str, where: str) -> None:
    """Raise BadInputError, naming `where` and the figure `what`, unless a row's value lies in its range."""
    if not lowest <= row.number("value") <= highest:
        raise BadInputError(
            f"{where}, column value: {row['value']} given; {what} lies between {lowest:g} and {highest:g}"
        )
