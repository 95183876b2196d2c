"""Columns of a table, defined once for terminal and page, for rows of one type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tangram_sim.reports.ledger import Cell
from tangram_sim.units import percent

Sources = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A heading, where a row has its figure or word, how it is shown, and what it rests on.

    `field` is a path from the row (`name`, `input.low`; `0` is the first of a tuple) or a function of the
    row; `show` a format (`{:,.0f}`) or a function; none: words. `rests` names sources by the keys under which
    a report has them, with blanks between; none: names, which need no source. A figure that is not known is
    `unknown`. A page sorts rows by `order`; none: by the figure, and words by the alphabet.
    """

    head: str
    field: str | Callable[[Any], Any]
    show: str | Callable[[Any], str] = ""
    rests: str = ""
    unknown: str = "-"
    order: Callable[[Any], float] | None = None

    def value(self, row: Any) -> Any:
        """The figure or word of a row; None where a part of the path is not known."""
        if not isinstance(self.field, str):
            return self.field(row)
        for name in self.field.split("."):
            if row is None:
                return None
            row = row[int(name)] if name.isdigit() else getattr(row, name)
        return row

    def text(self, row: Any) -> str:
        """Text of a row's cell."""
        value = self.value(row)
        if value is None:
            return self.unknown
        return (self.show or "{}").format(value) if isinstance(self.show, str) else self.show(value)

    def cell(self, row: Any, sources: Sources) -> Cell:
        """A row's cell on a page; `sources` maps the keys in `rests` to ids of a ledger."""
        text = self.text(row)
        named = [] if text == "-" else [sources[key] for key in self.rests.split()]
        rests = [each for ids in named for each in ([ids] if isinstance(ids, str) else ids)]
        return Cell(text, rests, self.order(row) if self.order else self.value(row) if self.show else None)


def share(digits: int = 0, *, signed: bool = False) -> Callable[[float], str]:
    """How a column shows shares: as percentages with so many decimals, with their sign where `signed`."""
    return partial(percent, digits=digits, signed=signed)


def counted(counts: Mapping[str, int], parts: str = ", ") -> str:
    """GPUs, nodes or replicas by kind, those that there are: `16 H100-SXM5-80GB, 8 T4`."""
    return parts.join(f"{count} {kind}" for kind, count in counts.items() if count)
