"""Measured points of collectives: rows of a CSV file as nouns, and what sets some of them apart."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.units import KIB, MEGA
from tangram_validate.collectives.fabrics import MeasuredFabric, fabric_of

COLUMNS = ("gpu", "intra_link", "inter_link", "nodes", "ranks", "op", "dtype", "size_bytes", "time_us")
OPERATIONS: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_receive",
    "sendreceive": "send_receive",
}
# Sets scored apart from the rest, and why.
APART: Mapping[str, str] = {
    "custom": "custom all-reduce kernels of serving engines: another library than the one modelled",
    "integer": "integer types",
    "small": "below 1 KiB",
    "faulty_box": "L40S over PCIe4 with more than two ranks: 6 and 2 GB/s bus, a faulty box",
    "faulty_fabric": "the source itself calls it faulty, congested or anomalous (NVIDIA/nccl issue 1453)",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One measured collective, ready to be predicted."""

    line: int  # of the file
    label: str  # the GPU as the row writes it
    where: str  # the network as the row writes it; "" within one node
    fabric: MeasuredFabric
    op: str
    ranks: int
    nodes: int
    size_bytes: float
    dtype: str
    seconds: float  # measured; 0.0: not given
    apart: str  # key of APART, "" for scored points
    library: str
    version: str
    algorithm: str
    source: str

    @property
    def per_node(self) -> int:
        """Ranks of one node."""
        return self.ranks // self.nodes


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that cannot be predicted, and why."""

    line: int
    reason: str


def read_points(path: Path, hwdb: Hwdb) -> list[Point | RefusedRow]:
    """Every row of `path` as a point or a reason; none is dropped.

    Raises BadInputError for a file without the columns of measured points.
    """
    rows = read_csv(path)
    missing = [column for column in COLUMNS if rows and column not in rows[0]]
    if not rows or missing:
        wanted = f"a CSV of measured collectives has the columns {', '.join(COLUMNS)}"
        raise BadInputError(f"{path}: {'no rows' if not rows else 'lacks ' + ', '.join(missing)}; {wanted}")
    known: dict[tuple[str, ...], MeasuredFabric | str] = {}
    return [_point(line, row, hwdb, known) for line, row in enumerate(rows, 2)]


def _point(
    line: int, row: Mapping[str, str], hwdb: Hwdb, known: dict[tuple[str, ...], MeasuredFabric | str]
) -> Point | RefusedRow:
    op = OPERATIONS.get(row["op"].lower().replace("_", "").replace("-", ""))
    if op is None:
        return RefusedRow(
            line, f"op {row['op']!r}: no model; known: {', '.join(sorted(set(OPERATIONS.values())))}"
        )
    try:
        nodes, ranks = _whole(row, "nodes"), _whole(row, "ranks")
        size, microseconds = _number(row, "size_bytes"), _number(row, "time_us", empty=0.0)
    except BadInputError as error:
        return RefusedRow(line, str(error))
    if ranks < 2 or ranks % nodes:
        return RefusedRow(line, f"{ranks} ranks on {nodes} nodes: two or more, equally many on every node")
    key = (row["gpu"], row["intra_link"], row["inter_link"] if nodes > 1 else "", str(nodes), str(ranks))
    if key not in known:
        try:
            known[key] = fabric_of(*key[:3], nodes, ranks // nodes, hwdb)
        except TangramError as error:
            known[key] = str(error)
    fabric = known[key]
    if isinstance(fabric, str):
        return RefusedRow(line, fabric)
    return Point(
        line=line,
        label=row["gpu"],
        where=key[2],
        fabric=fabric,
        op=op,
        ranks=ranks,
        nodes=nodes,
        size_bytes=size,
        dtype=row["dtype"],
        seconds=microseconds / MEGA,
        apart=_apart(row, fabric, ranks, size),
        library=row.get("lib", ""),
        version=row.get("lib_version", ""),
        algorithm=row.get("algo", ""),
        source=row.get("source", ""),
    )


def _apart(row: Mapping[str, str], fabric: MeasuredFabric, ranks: int, size: float) -> str:
    said = f"{row['inter_link']} {row.get('note', '')}".lower()
    if "custom" in row.get("lib", "").lower():
        return "custom"
    if row["dtype"].lower().startswith(("int", "uint")):
        return "integer"
    if any(word in said for word in ("faulty", "congested", "anomalous")):
        return "faulty_fabric"
    if fabric.gpu == "L40S" and fabric.intra.name == "PCIe4x16" and ranks > 2:
        return "faulty_box"
    return "small" if size < KIB else ""


def _number(row: Mapping[str, str], column: str, empty: float | None = None) -> float:
    cell = row[column]
    if not cell and empty is not None:
        return empty
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise BadInputError(f"column {column}: {cell!r} given; a number above zero is wanted")
    return value


def _whole(row: Mapping[str, str], column: str) -> int:
    value = _number(row, column)
    if not value.is_integer():
        raise BadInputError(f"column {column}: {row[column]!r} given; a whole number is wanted")
    return int(value)
