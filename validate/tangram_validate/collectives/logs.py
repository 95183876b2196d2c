"""Logs of one's own fabric: output of nccl-tests and rccl-tests, the CSV of a torch.distributed sweep."""

import csv
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path

from tangram_sim.datafiles import naming_csv, read_text
from tangram_sim.errors import BadInputError
from tangram_sim.units import MEGA
from tangram_validate.collectives.points import OPERATIONS
from tangram_validate.collectives.predict import busbw_factor

SWEEP_COLUMNS = ("op", "bytes", "ranks", "nodes", "seconds", "backend")
_PERF = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|sendrecv)_perf\b")
_RANK = re.compile(r"^#\s*Rank\s+(\d+).*?\bon\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s*(.*)$")
_CODE = re.compile(r"nccl-library=(\d+)")
_VERSION = re.compile(r"\b(NCCL|RCCL) version\s*:?\s*([\d.]+)")
_ENDS = ("Avg bus bandwidth", "Out of bounds values")
_ENOUGH = 0.1  # relative: bus over algorithm bandwidth tells operations apart


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of a log: the mean of out-of-place and in-place where both were timed."""

    op: str
    size_bytes: float
    seconds: float
    ranks: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Log:
    """A parsed log: its timings and the library, version and GPU it names ("" where it does not)."""

    measurements: tuple[Measurement, ...]
    library: str
    version: str
    gpu: str


def read_log(path: Path, op: str = "") -> Log:
    """A log of nccl-tests or rccl-tests, or a sweep CSV.

    `op` names the operation where the log does not. Raises BadInputError for logs of other tools and for
    logs that were cut, naming the line.
    """
    text = read_text(path).removeprefix("\ufeff")
    first = next((line for line in text.splitlines() if line.strip()), "")
    if "," in first and {"op", "bytes"} <= {cell.strip() for cell in first.split(",")}:
        return _sweep(path, text)
    header = next((line for line in text.splitlines() if _columns(line)), None)
    if header is None:
        raise BadInputError(
            f"{path}: neither output of nccl-tests or rccl-tests (a comment line with size, time, algbw and "
            f"busbw) nor a sweep with the columns {','.join(SWEEP_COLUMNS)}"
        )
    return _tests(path, text, op)


def _columns(line: str) -> list[str]:
    """Column names of the heading line of nccl-tests; empty for any other line."""
    words = line.lstrip("# ").split()
    good = line.startswith("#") and "size" in words and "time" in words and "busbw" in words
    return words if good else []


def _tests(path: Path, text: str, op: str) -> Log:
    ranks: set[int] = set()
    hosts: set[str] = set()
    gpu, library, version, columns = "", "", "", list[str]()
    named = _PERF.search(text)
    rows: list[tuple[int, list[str]]] = []
    ended = False
    for number, line in enumerate(text.splitlines(), 1):
        found = _RANK.match(line)
        if found:
            ranks.add(int(found[1]))
            hosts.add(found[2])
            gpu = gpu or found[3].strip()
        said = _VERSION.search(line)
        if said:
            library, version = said[1], version or said[2].rstrip(".")
        code = _CODE.search(line)
        if code:
            value = int(code[1])
            library, version = library or "NCCL", f"{value // 10000}.{value // 100 % 100}.{value % 100}"
        columns = _columns(line) or columns
        ended = ended or any(mark in line for mark in _ENDS)
        words = line.split()
        if columns and words and words[0].isdigit():
            if len(words) != len(columns):
                raise BadInputError(
                    f"{path}, line {number}: {len(words)} values under {len(columns)} headings; "
                    "the line was cut"
                )
            rows.append((number, words))
    if not rows:
        raise BadInputError(
            f"{path}: headings of nccl-tests, but no measured line under them; the log was cut"
        )
    if not ended:
        raise BadInputError(
            f"{path}, line {rows[-1][0]}: the last measured line; the summary that follows it "
            f"({_ENDS[0]!r}) is missing: the log was cut"
        )
    if not ranks:
        raise BadInputError(f"{path}: no '# Rank' lines, so nothing says how many GPUs took part")
    count = max(ranks) + 1
    if len(ranks) != count or count % len(hosts):
        raise BadInputError(
            f"{path}: {len(ranks)} '# Rank' lines up to rank {count - 1} on {len(hosts)} hosts; "
            "some are missing"
        )
    operation = _operation(path, named[1] if named else op, columns, rows, count)
    measured = tuple(_measured(path, columns, row, operation, count, len(hosts)) for row in rows)
    kept = tuple(measurement for measurement in measured if measurement.size_bytes > 0)
    rccl = "rccl" in text.lower()
    return Log(kept, "RCCL" if rccl else library or "NCCL", version, gpu)


def _numbers(path: Path, columns: list[str], row: tuple[int, list[str]], name: str) -> list[float]:
    number, words = row
    values = []
    for column, word in zip(columns, words, strict=True):
        if column == name and word.upper() != "N/A":
            try:
                values.append(float(word))
            except ValueError:
                raise BadInputError(f"{path}, line {number}, {name}: {word!r} is no number") from None
    return values


def _measured(
    path: Path, columns: list[str], row: tuple[int, list[str]], op: str, ranks: int, nodes: int
) -> Measurement:
    times = _numbers(path, columns, row, "time")
    size = float(row[1][columns.index("size")])
    if not times or min(times) <= 0 or not math.isfinite(sum(times)):
        raise BadInputError(f"{path}, line {row[0]}: no time above zero")
    return Measurement(op, size, sum(times) / len(times) / MEGA, ranks, nodes)


def _operation(
    path: Path, said: str, columns: list[str], rows: list[tuple[int, list[str]]], ranks: int
) -> str:
    """The operation: as said, else from reduction and the ratio of bus to algorithm bandwidth."""
    if said:
        found = OPERATIONS.get(said.lower().replace("_", "").replace("-", ""))
        if found is None:
            known = ", ".join(sorted(set(OPERATIONS.values())))
            raise BadInputError(f"operation {said!r} given; known: {known}")
        return found
    last = rows[-1]
    algorithm, bus = (_numbers(path, columns, last, name) for name in ("algbw", "busbw"))
    adds = "redop" in columns and last[1][columns.index("redop")] not in ("none", "N/A")
    if algorithm and bus and algorithm[0] > 0 and adds:
        ratio = bus[0] / algorithm[0]
        for candidate in ("all_reduce", "reduce_scatter"):
            if abs(ratio / busbw_factor(candidate, ranks) - 1.0) < _ENOUGH:
                return candidate
    raise BadInputError(
        f"{path}: nothing says which operation was timed; give `op=` all_gather, all_to_all, broadcast, ..."
    )


def _sweep(path: Path, text: str) -> Log:
    with naming_csv(path):
        return _sweep_of(path, csv.DictReader(io.StringIO(text, newline="")))


def _sweep_of(path: Path, reader: "csv.DictReader[str]") -> Log:
    names = [name.strip() for name in reader.fieldnames or []]
    missing = [column for column in SWEEP_COLUMNS if column not in names]
    if missing:
        raise BadInputError(
            f"{path}, line 1: a sweep needs the columns {','.join(SWEEP_COLUMNS)}; lacks {', '.join(missing)}"
        )
    reader.fieldnames = names
    found = []
    libraries: set[str] = set()
    versions: set[str] = set()
    gpus: set[str] = set()
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if None in row or None in row.values():
            raise BadInputError(f"{where}: not as many cells as headings; the file was cut or is damaged")
        cells = {name: cell.strip() for name, cell in row.items()}
        op = OPERATIONS.get(cells["op"].lower().replace("_", "").replace("-", ""))
        if op is None:
            known = ", ".join(sorted(set(OPERATIONS.values())))
            raise BadInputError(f"{where}, column op: {cells['op']!r} given; known: {known}")
        figures = []
        for column in ("bytes", "seconds", "ranks", "nodes"):
            try:
                value = float(cells[column])
            except ValueError:
                value = math.nan
            if not math.isfinite(value) or value <= 0:
                wanted = "a number above zero is wanted"
                raise BadInputError(f"{where}, column {column}: {cells[column]!r} given; {wanted}")
            figures.append(value)
        size, seconds, ranks, nodes = figures
        if ranks < 2 or ranks % nodes or not (ranks.is_integer() and nodes.is_integer()):
            raise BadInputError(
                f"{where}: {ranks:g} ranks on {nodes:g} nodes; equally many on every node, 2 or more"
            )
        found.append(Measurement(op, size, seconds, int(ranks), int(nodes)))
        libraries.add({"nccl": "NCCL", "rccl": "RCCL"}.get(cells["backend"].lower(), cells["backend"]))
        versions.add(cells.get("version", ""))
        gpus.add(cells.get("gpu", ""))
    if not found:
        raise BadInputError(f"{path}: headings and no measurement")
    return Log(
        tuple(found), " ".join(sorted(libraries)), " ".join(sorted(versions - {""})), _only(gpus, path)
    )


def _only(gpus: set[str], path: Path) -> str:
    if len(gpus) > 1:
        raise BadInputError(f"{path}: several kinds of GPU ({', '.join(sorted(gpus))}); one file per kind")
    return next(iter(gpus), "")
