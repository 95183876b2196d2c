"""The tables of the hardware database as they lie in the repository."""

from pathlib import Path

import pandas as pd

from tests.places import ROOT

HWDB = ROOT / "hwdb"

TABLES = ("gpus", "links", "nodes", "prices", "aliases", "schema")

KEYS = {"gpu": "gpus", "link": "links", "node": "nodes"}

CLUSTERS = sorted((HWDB / "clusters").glob("*.yaml"))


def table(path: Path) -> pd.DataFrame:
    """A table as written: text cells, empty ones ''."""
    return pd.read_csv(path, dtype=str, keep_default_na=False)


ROWS = {name: table(HWDB / f"{name}.csv") for name in TABLES}

NAMES = {kind: set(ROWS[file]["name"]) for kind, file in KEYS.items()}


def cells(name: str) -> list[dict[str, str]]:
    return [{str(column): str(cell) for column, cell in row.items()} for row in ROWS[name].to_dict("records")]


def row_of(name: str, key: str) -> dict[str, str]:
    """The row of a table called `key`."""
    return next(row for row in cells(name) if row["name"] == key)
