"""What each figure of the hardware tables may be, and of several rows which one counts, as recorded."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import collectives, efficiency
from tangram_sim.hwdb.tables import PROSE, Column, Row, check_cell, read_schema
from tests.places import ROOT
from tests.records import HWDB, hold

CELLS = (
    "0", "1e-16", "1e-15", "1e-6", "0.001", "0.5", "1", "1.5", "2", "1000", "1e5", "1e6", "1e7", "1e9",
    "1e10", "1e18", "1e19", "-1", "nan", "inf", "few",
)  # fmt: skip
GPUS = ("H100-SXM5-80GB", "A100-SXM4-80GB", "L40S", "MI300X", "RTX-4090", "V100-SXM2-32GB", "B200-HGX")
STACKS = ("generic", "megatron", "deepspeed", "torchtitan", "nobody-knows")
COLUMNS = [
    (table, column)
    for table, columns in read_schema(ROOT / "hwdb/schema.csv").items()
    for column in columns.values()
    if column.type in ("integer", "number") and column.name not in PROSE
]


def _said(ask: Callable[[], None]) -> str:
    try:
        ask()
    except BadInputError as error:
        return str(error)
    return ""


def columns() -> dict[str, Any]:
    """For every column with figures: the cells that it takes, and what is said of two others."""
    found = {}
    for table, column in COLUMNS:
        said = {cell: _said(partial(check_cell, table, column, cell, "here")) for cell in CELLS}
        taken = " ".join(cell for cell, words in said.items() if not words)
        found[f"{table} {column.name}"] = [taken, said["-1"], said["1e19"]]
    return found


def ranges() -> dict[str, Any]:
    """For every fitted figure: which of several counts, and what is said beyond its ends and at them."""
    fitted = {**efficiency.PARAMETERS, **efficiency.RESIDUALS, **efficiency.POWER}
    every = [(efficiency.check, {"kernel": k, "parameter": n}, known) for (k, n), known in fitted.items()]
    every += [
        (collectives.check, {"pattern": pattern, "parameter": name}, known)
        for name, known in collectives.PARAMETERS.items()
        for pattern in known.patterns
    ]
    found: dict[str, Any] = {}
    for check, cells, known in every:
        low, high = known.lowest, known.highest
        values = (low - 1e-4 * (low or 1.0), low, high, high * 1.0001)
        rows = (Row("t", "r", cells | {"value": f"{value:.9g}"}) for value in values)
        found[" ".join(cells.values())] = [known.worst, *(_said(partial(check, row, "here")) for row in rows)]
    return found


def lookups() -> dict[str, Any]:
    """What the tables say of kinds of GPUs, number formats, stacks and links."""
    kinds: dict[str, Any] = {}
    for name in GPUS:
        gpu = HWDB.gpu(name)
        kinds[name] = [HWDB.power_shares(gpu), sorted(HWDB.architectures(gpu)), repr(gpu)]
        for dtype, _ in gpu.peaks[:2]:
            for stack in STACKS:
                kinds[f"{name} {dtype} {stack}"] = [
                    repr(HWDB.efficiency(gpu, dtype, stack)),
                    repr(HWDB.residuals(gpu, dtype, stack)),
                    HWDB.rests_on(gpu, dtype, stack),
                ]
    links = {
        name: [
            repr(HWDB.link(name)),
            repr(HWDB.link_efficiency(HWDB.link(name))),
            [repr(HWDB.collective(pattern, HWDB.link(name))) for pattern in collectives.PATTERNS],
        ]
        for name in HWDB.link_names()
    }
    return {"kinds": kinds, "links": links}


def recorded() -> dict[str, Callable[[], Any]]:
    """What is recorded, by name."""
    return {"columns": columns, "ranges": ranges, "lookups": lookups}


CASES = recorded()


@pytest.mark.parametrize("case", CASES)
def test_tables_are_as_recorded(case: str) -> None:
    hold("hwdb", case, CASES[case]())


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=lambda value: getattr(value, "name", value))
def test_what_is_shipped_lies_well_inside(table: str, column: Column) -> None:
    """Every figure of the tables may be ten times larger or smaller: ranges stop slips, not new hardware."""
    path = ROOT / "hwdb" / f"{table}.csv"
    if not path.exists() or column.type == "integer":
        return
    from tests.unit.hwdb.tables import table as read

    for cell in read(path)[column.name]:
        if cell and float(cell):
            for factor in (0.1, 10.0):
                check_cell(table, column, repr(float(cell) * factor), f"{table}.csv")
