"""Step traces as tables: CSV, plain or gzipped, one row per operation."""

import csv
import gzip
import io
import zlib
from pathlib import Path

import numpy as np

from tangram_sim.datafiles import naming_csv
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.reliability.traces.kinds import code_of
from tangram_sim.reliability.traces.trace import StepTrace, TraceRows, assemble

COLUMNS = ("step", "dp", "stage", "op", "seq", "start_us", "dur_us")
_MOST = 10**9  # steps, ranks and microbatches of a trace
_MICROSECOND_S = 1e-6


def read_table(path: Path) -> StepTrace:
    """The trace of a CSV with the columns `step, dp, stage, op, seq, start_us, dur_us`; raises
    `BadInputError`.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise BadInputError(f"{path}: cannot be read as a table: {error}.") from None
    with naming_csv(path):
        return _trace_of(text, path)


def _trace_of(text: str, path: Path) -> StepTrace:
    lines = csv.reader(io.StringIO(text, newline=""))
    header = next(lines, [])
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise BadInputError(
            f"{path}: no column {', '.join(missing)}; a step trace has the columns {', '.join(COLUMNS)}."
        )
    at = [header.index(column) for column in COLUMNS]
    columns: tuple[list[float], ...] = tuple([] for _ in COLUMNS)
    for number, line in enumerate(lines, start=2):
        if not line:
            continue
        try:
            for column, name, place in zip(columns, COLUMNS, at, strict=True):
                column.append(code_of(line[place]) if name == "op" else _number(line[place], name))
        except (ValueError, IndexError):
            raise BadInputError(
                f"{path}: line {number} is {','.join(line)!r}; give numbers under "
                f"{', '.join(c for c in COLUMNS if c != 'op')}."
            ) from None
        except TangramError as error:
            raise BadInputError(f"{path}: line {number}: {error}") from None
    step, dp, stage, kind, seq = (np.array(column, dtype=np.int64) for column in columns[:5])
    start, duration = (np.array(column, dtype=np.float64) * _MICROSECOND_S for column in columns[5:])
    return assemble(TraceRows(step, dp, stage, kind, seq, start, duration), str(path))


def _number(text: str, name: str) -> float:
    """A cell as a number: microseconds or a count. ValueError for text and for counts above `_MOST`."""
    if name.endswith("_us"):
        return float(text)
    if abs(number := int(text)) > _MOST:
        raise ValueError
    return number
