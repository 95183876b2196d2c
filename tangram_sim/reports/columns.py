"""Columns of a table that a terminal and a page show alike: said once, for rows of one type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tangram_sim.reports.ledger import Cell


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A heading, where a row has its figure or word, how it is shown, and what it rests on.

    `field` is an attribute or a function of the row; `show` a format (`{:,.0f}`) or a function; none: words.
    `rests` names sources by the keys under which a report has them, with blanks between; none: names, which
    need no source. A figure that is not known is `unknown`.
    """

    head: str
    field: str | Callable[[Any], Any]
    show: str | Callable[[Any], str] = ""
    rests: str = ""
    unknown: str = "-"

    def value(self, row: Any) -> Any:
        """The figure or word of a row."""
        return getattr(row, self.field) if isinstance(self.field, str) else self.field(row)

    def text(self, row: Any) -> str:
        """What its cell says."""
        value = self.value(row)
        if value is None:
            return self.unknown
        return (self.show or "{}").format(value) if isinstance(self.show, str) else self.show(value)

    def cell(self, row: Any, sources: Mapping[str, str]) -> Cell:
        """Its cell on a page; `sources` are ids of a ledger by the keys that columns name."""
        text = self.text(row)
        rests = () if text == "-" else [sources[key] for key in self.rests.split()]
        return Cell(text, rests, self.value(row) if self.show else None)


def heads(columns: Sequence[ViewColumn]) -> list[str]:
    """The headings."""
    return [column.head for column in columns]


def cells(columns: Sequence[ViewColumn], rows: Sequence[Any], sources: Mapping[str, str]) -> list[list[Cell]]:
    """The cells of a page's table."""
    return [[column.cell(row, sources) for column in columns] for row in rows]
