"""A user's own GPU as rows of an overlay, from a few values; the others are assumed, and listed as such."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from tangram_sim.datafiles import shipped
from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.hwdb.database import Hwdb
from tangram_sim.hwdb.tables import Column, Row, check_cell, read_lines, read_schema, require

TABLE = "gpus"
NEEDED = ("memory_gb", "memory_gb_per_s")
PEAKS = ("bf16_tflops", "fp16_tflops")  # one of them has to be given
EFFICIENCY_HEADER = ("gpu", "dtype", "kernel", "stack", "parameter", "value", "sigma", "n", "source", "note")
EFFICIENCY_SIGMA = 0.10  # of a guessed share of the peak, as of the row for any GPU
_VECTOR_SHARE = 16  # dense 16-bit matrix peak over the fp32 vector peak: A100 16, H100 15, MI300X 8
_RESERVED = ("*", "+", ":", ",")  # what rows and joined GPUs are written with


@dataclass(frozen=True, slots=True)
class AssumedCell:
    """A cell of gpus.csv that was not given, with the value assumed and why."""

    column: str
    value: str  # "" = left empty
    why: str


@dataclass(frozen=True, slots=True)
class OwnGpu:
    """A complete and checked row for gpus.csv, and its assumed cells."""

    row: Row
    assumed: tuple[AssumedCell, ...]


def own_gpu(name: str, given: Mapping[str, str], hwdb: Hwdb, today: date) -> OwnGpu:
    """The row of a new GPU from the cells that were `given`, by column of gpus.csv.

    Raises BadInputError for a name that is invalid or taken, for values that are missing or not physical, and
    for an unknown link.
    """
    require_new(name, hwdb)
    cells = {column: cell for column, cell in given.items() if cell}
    missing = [column for column in NEEDED if column not in cells]
    if not any(column in cells for column in PEAKS):
        missing.insert(0, PEAKS[0])
    if missing:
        asked = " and ".join(f"`{column}=`" for column in missing)
        raise BadInputError(
            f"{name}: give {asked}: dense peak in 1e12 flop/s, memory in 1e9 bytes and bytes/s"
        )
    columns, where = _columns(), f"{name} as given"
    for column, cell in cells.items():
        check_cell(TABLE, columns[column], cell, where)
    assumed = [*_link(name, cells, hwdb), *_peaks(cells), *_descriptions(name, cells, today)]
    cells |= {assumed_cell.column: assumed_cell.value for assumed_cell in assumed if assumed_cell.value}
    row = Row(TABLE, name, {"name": name} | {c: cells[c] for c in columns if c in cells and c != "name"})
    require(row, columns.values(), where)
    return OwnGpu(row, tuple(assumed))


def require_new(name: str, hwdb: Hwdb) -> None:
    """Raise BadInputError for a name that is invalid or that a GPU of `hwdb` has."""
    if not name.strip() or not name.isprintable() or any(mark in name for mark in _RESERVED):
        raise BadInputError(
            f"{name!r}: no name for a GPU; letters, digits and dashes are wanted, e.g. X900-64GB"
        )
    try:
        known = hwdb.gpu_row(name)
    except UnknownNameError:
        return
    raise BadInputError(
        f"{name}: is {known.name} of {known.origins['name']}; give yours another name, or change single "
        "cells of it in an overlay (docs/how-to/add-a-gpu.md)"
    )


def _link(name: str, cells: dict[str, str], hwdb: Hwdb) -> list[AssumedCell]:
    """Put the link's canonical name into `cells`; return the cells assumed about the link."""
    if "link" not in cells:
        if float(cells.get("link_gb_per_s", "0")):
            raise BadInputError(
                f"{name}: {cells['link_gb_per_s']} GB/s over which link? Give `link=`, a link of "
                "`tangram hw list`, e.g. NVLink4"
            )
        return [
            AssumedCell("link", "none", "none given: joined to others by PCIe only"),
            AssumedCell("link_gb_per_s", "0", "no link"),
        ]
    row = hwdb.row("links", cells["link"])
    cells["link"] = row.name
    if "link_gb_per_s" in cells:
        return []
    rate = row["gb_per_s"] or "0"
    return [AssumedCell("link_gb_per_s", rate, f"as the row of {row.name} has it, one direction")]


def _peaks(cells: Mapping[str, str]) -> list[AssumedCell]:
    """Assumed peaks for those not given: fp16 as bf16, fp32 a fixed share of the 16-bit peak, others none."""
    best = max(float(cells.get(column, "0")) for column in PEAKS)
    assumed = []
    if "fp16_tflops" not in cells:
        assumed.append(AssumedCell("fp16_tflops", cells["bf16_tflops"], "as bf16"))
    if "bf16_tflops" not in cells:
        assumed.append(AssumedCell("bf16_tflops", "", "not given: no bf16 units"))
    if "fp32_tflops" not in cells:
        why = f"1/{_VECTOR_SHARE} of the 16-bit peak, as of an A100"
        assumed.append(AssumedCell("fp32_tflops", f"{best / _VECTOR_SHARE:.4g}", why))
    if "fp8_tflops" not in cells:
        assumed.append(AssumedCell("fp8_tflops", "", "not given: no fp8 units"))
    return assumed


def _descriptions(name: str, cells: Mapping[str, str], today: date) -> list[AssumedCell]:
    """Assumed cells of the descriptive columns that `cells` lacks (vendor, form, year, power, ...)."""
    wanted = (
        ("vendor", "unknown", "not given"),
        ("architecture", name, "not given: a generation of its own, which borrows from no other"),
        ("form", "PCIe" if cells.get("link", "none") == "none" else "module", "by the link"),
        ("year", str(today.year), "not given: this year"),
        ("source", f"own figures of {today.isoformat()}", "not given"),
        ("power_w", "", "not given"),
        ("pcie_gen", "", "not given: PCIe 3 where a node's file names no link"),
    )
    return [AssumedCell(*item) for item in wanted if item[0] not in cells]


def table_with(path: Path, row: Row) -> str:
    """The text of gpus.csv at `path`, if it exists, with `row` appended and the columns needed."""
    rows = [cells for _, cells in read_lines(path)] if path.exists() else []
    used = {column for cells in (*rows, row.cells) for column in cells}
    columns = [column for column in _columns() if column in used]
    return _csv(columns, [[cells.get(column, "") for column in columns] for cells in (*rows, row.cells)])


def efficiency_table(name: str, share: float) -> str:
    """The text of an efficiency file with the share of their peaks that large matrix products reach."""
    row = (name, "*", "gemm", "generic", "efficiency", f"{share:g}", f"{EFFICIENCY_SIGMA:g}", "0")
    return _csv(EFFICIENCY_HEADER, [(*row, "assumed", "a guess of one's own")])


def _columns() -> dict[str, Column]:
    return read_schema(shipped("hwdb") / "schema.csv")[TABLE]


def _csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
