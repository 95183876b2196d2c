"""A table as text of a given width: numbers never wrap, words do, and unimportant columns are dropped."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

GAP = 3  # characters between two columns
_PROSE = 32  # characters from which a cell with blanks is prose, and the narrowest that prose is set in
_CUT = "…"


@dataclass(frozen=True, slots=True)
class ConsoleTable:
    """Headings and cells; columns in `right` are right-aligned.

    `leaves` are the columns to drop when the terminal is too narrow, the least important first; after those,
    columns are dropped from the right. The first column is always kept. `lost` are the headings of a wider
    variant whose figures are nowhere in this one.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    leaves: Sequence[int] = ()
    lost: Sequence[str] = ()

    def natural_width(self) -> int:
        """Characters per line with no cell wrapped."""
        return _total(self._widths())

    def _widths(self) -> list[int]:
        """Characters of the longest line of every column."""
        cells = zip(self.columns, *self.rows, strict=True)
        return [max(len(line) for cell in column for line in cell.split("\n")) for column in cells]

    def _prose(self) -> set[int]:
        """Columns that hold words rather than figures."""
        return {
            place
            for place, column in enumerate(zip(*self.rows, strict=True))
            if place not in self.right and any(len(cell) > _PROSE and " " in cell for cell in column)
        }

    def without(self, places: set[int]) -> "ConsoleTable":
        """The table without some of its columns."""
        kept = [place for place in range(len(self.columns)) if place not in places]
        moved = {place: new for new, place in enumerate(kept)}
        return replace(
            self,
            columns=[self.columns[place] for place in kept],
            rows=[[row[place] for place in kept] for row in self.rows],
            right=[moved[place] for place in self.right if place in moved],
            leaves=[moved[place] for place in self.leaves if place in moved],
        )

    def fitted(self, room: int) -> tuple["ConsoleTable", list[str]]:
        """(the table no wider than `room`, headings of the columns left out).

        Headings and prose are wrapped before any column is dropped; if even the first column alone is too
        wide, its cells are cut.
        """
        named = list(self.leaves)
        order = named + [place for place in range(len(self.columns) - 1, 0, -1) if place not in named]
        for going in range(len(order) + 1):
            left = self.without(set(order[:going]))
            set_narrow = left._set_to(room)
            if set_narrow is not None:
                return set_narrow, [self.columns[place] for place in sorted(order[:going])]
        return left._cut_to(room - GAP), [self.columns[place] for place in sorted(order)]

    def _set_to(self, room: int) -> "ConsoleTable | None":
        """The table with headings and prose wrapped to fit into `room`; None if that is not enough."""
        widths, prose = self._widths(), self._prose()
        columns = list(self.columns)
        if _total(widths) > room:  # headings first: they cost a line, not a figure
            cells = replace(self, columns=[""] * len(columns))._widths()
            words = [max((len(word) for word in column.split()), default=0) for column in columns]
            columns = [_wrapped(*item) for item in zip(columns, map(max, cells, words), strict=True)]
            widths = replace(self, columns=columns)._widths()
        while _total(widths) > room:
            widest = max(prose, key=lambda place: widths[place], default=-1)
            if widest < 0 or widths[widest] <= _PROSE:
                return None
            widths[widest] = max(_PROSE, widths[widest] - (_total(widths) - room))
        rows = [
            [_wrapped(cell, widths[place]) if place in prose else cell for place, cell in enumerate(row)]
            for row in self.rows
        ]
        return replace(self, columns=columns, rows=rows)

    def _cut_to(self, room: int) -> "ConsoleTable":
        """The table with every line of every cell cut to `room` characters, marked where cut."""

        def cut(cell: str) -> str:
            lines = cell.split("\n")
            return "\n".join(line if len(line) <= room else line[: room - 1] + _CUT for line in lines)

        return replace(self, columns=[*map(cut, self.columns)], rows=[[*map(cut, row)] for row in self.rows])


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * len(widths)


def _wrapped(cell: str, width: int) -> str:
    """A cell set in lines of at most `width` characters where words allow it."""
    if not width:
        return cell
    lines = [
        textwrap.fill(line, width, break_long_words=True, break_on_hyphens=False) for line in cell.split("\n")
    ]
    return "\n".join(lines)
