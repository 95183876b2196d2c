"""Reading request traces: a user's CSV, and the columns of the published traces that were tried.

Columns: `arrival_s, input_tokens, output_tokens`, and where present `prefix_id, prefix_tokens, session_id,
model`, or `prefix_hit_blocks_infinite_cache` (Mooncake's traces: prompt tokens in blocks of 512 that a cache
of unlimited size would hold). Azure's own `TIMESTAMP, ContextTokens, GeneratedTokens` are understood.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

from tangram_sim.datafiles import csv_cells
from tangram_sim.errors import BadInputError
from tangram_sim.serving.workload import Floats, Ints, Workload

MOONCAKE_BLOCK = 512  # tokens
MOST_TOKENS = 10**8  # of one request
_SPELLINGS = {
    "arrival_s": ("arrival_s", "TIMESTAMP", "timestamp"),
    "input_tokens": ("input_tokens", "ContextTokens", "input_length"),
    "output_tokens": ("output_tokens", "GeneratedTokens", "output_length"),
}


def read_trace(
    path: Path, *, arrivals_from: Floats | None = None, where: Mapping[str, str] | None = None
) -> Workload:
    """The workload in a CSV file, in the order of arrival.

    `arrivals_from`: arrival times for files that have lengths only. `where` keeps rows whose columns have
    these values. Raises BadInputError that names line and column; no row is silently dropped.
    """
    header, rows = csv_cells(path)
    for column, value in (where or {}).items():
        if column not in header:
            raise BadInputError(f"{path}: no column {column!r}; it has {', '.join(header)}")
        rows = [row for row in rows if row[1][header.index(column)] == value]
    if not rows:
        raise BadInputError(f"{path}: no requests")
    columns = {name: _column(header, known) for name, known in _SPELLINGS.items()}
    comes = {"time_s", "event"} <= set(header)
    hint = " (a table of what comes and goes: simulate plays it as `spot=`)" if comes else ""
    for name in ("input_tokens", "output_tokens"):
        if columns[name] < 0:
            raise BadInputError(
                f"{path}: no column {name}; wanted are arrival_s, input_tokens, output_tokens; it has "
                f"{', '.join(header)}{hint}"
            )
    inputs = _whole(path, header, rows, columns["input_tokens"], least=1)
    outputs = _whole(path, header, rows, columns["output_tokens"], least=1)
    notes: list[str] = []
    if columns["arrival_s"] >= 0:
        arrival_s = _seconds(path, header, rows, columns["arrival_s"])
    elif arrivals_from is not None and len(arrivals_from) == len(rows):
        arrival_s = arrivals_from
    else:
        raise BadInputError(f"{path}: lengths only, no column arrival_s; say how they come: `rate=` R")
    if np.any(np.diff(arrival_s) < 0):
        late = int(np.flatnonzero(np.diff(arrival_s) < 0)[0]) + 1
        notes.append(
            f"rows are not in the order of arrival (first in line {rows[late][0]}); they were sorted"
        )
    prefix, prefix_tokens, keeps = _prefixes(path, header, rows, inputs)
    cached = np.zeros(len(rows), dtype=np.int64)
    hits = _column(header, ("prefix_hit_blocks_infinite_cache",))
    if hits >= 0:
        cached = np.minimum(_whole(path, header, rows, hits, least=0) * MOONCAKE_BLOCK, inputs)
        notes.append("cached tokens are those of an infinite cache, as the trace tells them")
    models, model = _models(header, rows)
    order = np.argsort(arrival_s, kind="stable")
    return Workload(
        arrival_s=arrival_s[order],
        input_tokens=inputs[order],
        output_tokens=outputs[order],
        prefix=prefix[order],
        prefix_tokens=prefix_tokens[order],
        keeps=keeps[order],
        cached_tokens=cached[order],
        notes=tuple(notes),
        models=models,
        model=model[order],
    )


def has_arrivals(path: Path) -> bool:
    """Whether a trace file has arrival times."""
    header, _ = csv_cells(path)
    return _column(header, _SPELLINGS["arrival_s"]) >= 0


def count_rows(path: Path, where: Mapping[str, str] | None = None) -> int:
    """Number of requests in a trace file, without parsing their values."""
    header, rows = csv_cells(path)
    kept = (where or {}).items()
    return sum(
        all(cells[header.index(name)] == value for name, value in kept if name in header) for _, cells in rows
    )


def _column(header: Sequence[str], spellings: Sequence[str]) -> int:
    return next((header.index(name) for name in spellings if name in header), -1)


def _numbers(path: Path, header: Sequence[str], rows: Sequence[tuple[int, list[str]]], column: int) -> Floats:
    """A column as numbers. Raises BadInputError with the line of a value that is not a number."""
    try:
        found = np.array([float(cells[column]) for _, cells in rows])
    except ValueError:
        for line, cells in rows:
            try:
                float(cells[column])
            except ValueError:
                raise BadInputError(
                    f"{path}, line {line}, {header[column]}: {cells[column]!r} is no number"
                ) from None
        raise
    if not np.isfinite(found).all():
        line = rows[int(np.flatnonzero(~np.isfinite(found))[0])][0]
        raise BadInputError(f"{path}, line {line}, {header[column]}: not a finite number")
    return found


def _whole(
    path: Path, header: Sequence[str], rows: Sequence[tuple[int, list[str]]], column: int, least: int
) -> Ints:
    found = _numbers(path, header, rows, column)
    wrong = (found < least) | (found > MOST_TOKENS) | (found != np.floor(found))
    if wrong.any():
        line, cells = rows[int(np.flatnonzero(wrong)[0])]
        raise BadInputError(
            f"{path}, line {line}, {header[column]}: {cells[column]} given; whole numbers from {least} to "
            f"{MOST_TOKENS:,} are wanted"
        )
    return found.astype(np.int64)


def _seconds(path: Path, header: Sequence[str], rows: Sequence[tuple[int, list[str]]], column: int) -> Floats:
    """Arrivals in seconds; times of day and milliseconds of known traces are relative to the first."""
    if header[column] == "TIMESTAMP" and not rows[0][1][column].replace(".", "", 1).isdigit():
        try:
            moments = [datetime.fromisoformat(cells[column][:26]) for _, cells in rows]
        except ValueError as error:
            raise BadInputError(f"{path}, TIMESTAMP: {error}") from None
        return np.array([(moment - min(moments)).total_seconds() for moment in moments])
    found = _numbers(path, header, rows, column) * (1e-3 if header[column] == "timestamp" else 1.0)
    if (found < 0).any():
        line, cells = rows[int(np.flatnonzero(found < 0)[0])]
        raise BadInputError(f"{path}, line {line}, {header[column]}: {cells[column]} is before time 0")
    return found


def _models(header: Sequence[str], rows: Sequence[tuple[int, list[str]]]) -> tuple[tuple[str, ...], Ints]:
    """(models requested, index of each row's model)."""
    column = _column(header, ("model",))
    if column < 0:
        return (), np.zeros(len(rows), dtype=np.int64)
    names = {name: place for place, name in enumerate(dict.fromkeys(cells[column] for _, cells in rows))}
    return tuple(names), np.array([names[cells[column]] for _, cells in rows], dtype=np.int64)


def _prefixes(
    path: Path, header: Sequence[str], rows: Sequence[tuple[int, list[str]]], inputs: Ints
) -> "tuple[Ints, Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]":
    """(index of the shared prefix, its tokens, whether the request extends it) of every row."""
    texts, sessions = _column(header, ("prefix_id",)), _column(header, ("session_id",))
    tokens = _column(header, ("prefix_tokens",))
    names: dict[str, int] = {}
    prefix = np.full(len(rows), -1, dtype=np.int64)
    keeps = np.zeros(len(rows), dtype=np.bool_)
    shared = np.zeros(len(rows), dtype=np.int64)
    if tokens < 0 or (texts < 0 and sessions < 0):
        return prefix, shared, keeps
    shared = np.minimum(_whole(path, header, rows, tokens, least=0), inputs)
    for row, (_, cells) in enumerate(rows):
        text = cells[texts] if texts >= 0 else ""
        session = cells[sessions] if sessions >= 0 else ""
        if text or session:
            prefix[row] = names.setdefault(f"text {text}" if text else f"session {session}", len(names))
            keeps[row] = not text
    return prefix, np.where(prefix >= 0, shared, 0), keeps
