"""Set of the rows of the hardware database that a result depends on, filled by its readers."""

import hashlib
import json

from tangram_sim.hwdb.tables import Row


class ReadSet:
    """Rows read for one result. `Hwdb.read_into` gives a database that adds every row that it returns.

    The code that makes the result makes the set, and passes it to the code that writes the result.
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}

    def add(self, row: Row) -> None:
        """Record a row as read; the same row counts once."""
        self._rows[row.table, row.name] = row

    def rows(self) -> tuple[Row, ...]:
        """The rows, sorted by table and name."""
        return tuple(row for _, row in sorted(self._rows.items()))

    def digest(self) -> str:
        """Fingerprint of the rows: 16 hex digits of a SHA-256.

        It changes with their figures, not with texts (source, note, dates), the order of reading or Python's
        hash seed.
        """
        facts = [[row.table, row.name, row.facts()] for row in self.rows()]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
