"""Step traces as tables: CSV, plain or gzipped, one row per operation."""

import gzip
import io
import zlib
from pathlib import Path

import numpy as np

from tangram_sim.errors import BadInputError, TangramError, shown
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
    return _trace_of(text, path)


def _trace_of(text: str, path: Path) -> StepTrace:
    import pandas as pd  # takes a third of a second: only where a table is read

    try:
        frame = pd.read_csv(
            io.StringIO(text),
            dtype=str,
            index_col=False,
            usecols=COLUMNS.__contains__,
            keep_default_na=False,
            skip_blank_lines=False,
        )
    except ValueError as error:  # pandas' errors of parsing
        raise BadInputError(f"{path}: not CSV: {error}") from None
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        raise BadInputError(
            f"{path}: no column {', '.join(missing)}; a step trace has the columns {', '.join(COLUMNS)}."
        )
    cells = frame.loc[:, list(COLUMNS)].replace("", None).dropna(how="all")
    codes = {}
    for name in cells["op"].dropna().unique():
        try:
            codes[name] = code_of(name)
        except TangramError as error:
            line = int(cells.index[cells["op"] == name][0]) + 2
            raise BadInputError(f"{path}: line {line}: {error}") from None
    numbers = cells.assign(op=cells["op"].map(codes)).apply(pd.to_numeric, errors="coerce")
    counts = numbers.drop(columns=["start_us", "dur_us"])
    wrong = numbers.isna().any(axis=1) | ((counts.abs() > _MOST) | (counts % 1 != 0)).any(axis=1)
    if wrong.any():
        line = int(wrong.idxmax())
        words = ",".join(frame.iloc[line])
        raise BadInputError(
            f"{path}: line {line + 2} is {shown(words)}; give numbers under "
            f"{', '.join(c for c in COLUMNS if c != 'op')}."
        )
    step, dp, stage, kind, seq = (counts[name].to_numpy(np.int64) for name in COLUMNS[:5])
    start, duration = (numbers[name].to_numpy(np.float64) * _MICROSECOND_S for name in COLUMNS[5:])
    return assemble(TraceRows(step, dp, stage, kind, seq, start_s=start, duration_s=duration), str(path))
