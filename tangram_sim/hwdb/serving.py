"""Rows about serving engines: `serving/engines.csv` and `serving/calibration.csv`, overlays last."""

from tangram_sim.hwdb.database import Hwdb
from tangram_sim.hwdb.tables import Row, read_rows, read_schema, require

TABLES = ("engines", "calibration")


def serving_rows(hwdb: Hwdb, table: str) -> list[tuple[int, Row]]:
    """(layer, row) of one of TABLES, in file order: layer 0 is the shipped database, others overlays.

    Raises BadInputError naming file, line and column.
    """
    columns = read_schema(hwdb.folders[0] / "schema.csv")[f"serving_{table}"]
    found = []
    for layer, folder in enumerate(hwdb.folders):
        path = folder / "serving" / f"{table}.csv"
        if not path.exists():
            continue
        for where, cells in read_rows(path, f"serving_{table}", columns):
            name = "/".join(cells.get(key, "") for key in ("engine", "subject", "parameter"))
            row = Row(f"serving_{table}", name, cells, dict.fromkeys(cells, where))
            require(row, columns.values(), where)
            found.append((layer, row))
    return found
