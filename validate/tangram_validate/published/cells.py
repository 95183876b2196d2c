"""Cells of a row as numbers, and what a row may leave blank: problems are collected as one reason."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# "1,024", "~512", "8k" and "128K" tokens: thousands with commas, and powers of 1,024 of counts.
_NUMBER = re.compile(r"[~≈]?\s*(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)\s*([kKmM]?)")
_KIBI = 1024.0
MOST = 10_000_000  # no count of a run is larger: typing errors must not fill the memory


class CellError(ValueError):
    """A cell that keeps a row from being predicted; the message is the reason listed for it."""


@dataclass
class Cells:
    """One row: text by column, and the defaults that had to be assumed so far."""

    row: Mapping[str, str]
    assumed: list[str] = field(default_factory=list)

    def text(self, column: str) -> str:
        """The cell without surrounding space; empty where the file has no such column."""
        return (self.row.get(column) or "").strip()

    def number(self, column: str, least: float = 0.0) -> float | None:
        """A number, None where blank. Raises CellError for text, NaN, or less than `least`."""
        text = self.text(column)
        if not text:
            return None
        found = _NUMBER.fullmatch(text)
        try:
            value = float(found[1].replace(",", "")) if found else float(text)
        except ValueError:
            raise CellError(f"{column} is {text!r}; a number is wanted") from None
        if found and found[2]:
            value *= _KIBI if found[2].lower() == "k" else _KIBI**2
        if not math.isfinite(value) or value < least:
            raise CellError(f"{column} is {text}; a finite number of at least {least:g} is wanted")
        return value

    def count(self, column: str, least: int = 1) -> int | None:
        """A whole number, None where blank."""
        value = self.number(column, least)
        if value is None:
            return None
        if value != int(value) or value > MOST:
            raise CellError(f"{column} is {self.text(column)}; a whole number up to {MOST:,} is wanted")
        return int(value)

    def needed(self, *columns: str) -> list[int]:
        """Whole numbers of columns without a default. Raises CellError naming every blank one."""
        values = [self.count(column) for column in columns]
        blank = [column for column, value in zip(columns, values, strict=True) if value is None]
        if blank:
            raise CellError(f"{', '.join(blank)} not stated, and nothing else in the row says it")
        return [value for value in values if value is not None]

    def assume(self, column: str, value: object, why: str) -> None:
        """Record that a cell was empty, what was assumed for it and why."""
        self.assumed.append(f"{column}={value} ({why})")
