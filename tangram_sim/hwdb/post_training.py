"""Rows about post-training: `post_training/overheads.csv`, one parameter a row, overlays last."""

from tangram_sim.hwdb.database import Hwdb
from tangram_sim.hwdb.tables import Row, read_rows, read_schema, require

_TABLE = "post_training_overheads"


def overhead_rows(hwdb: Hwdb) -> list[Row]:
    """Parameter rows, those of the shipped database first. Raises BadInputError naming file and line."""
    columns = read_schema(hwdb.folders[0] / "schema.csv")[_TABLE]
    found = []
    for folder in hwdb.folders:
        path = folder / "post_training" / "overheads.csv"
        if not path.exists():
            continue
        for where, cells in read_rows(path, _TABLE, columns):
            row = Row(_TABLE, cells.get("parameter", ""), cells, dict.fromkeys(cells, where))
            require(row, columns.values(), where)
            found.append(row)
    return found
