"""Reading prices and availability of GPUs over time, for a plan that follows them.

CSV with the columns `time_s, gpu, price_per_hour, available`, one row for each change; an empty cell keeps
the previous value. `rate_factor`, where given, is the factor on the problem's request rate from then on.
Before a kind's first row the problem's values apply.
"""

from math import inf
from pathlib import Path

from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.serving_planners.problem import RentalProblem
from tangram_sim.serving_planners.replanning import MarketPeriod

_WANTED = ("time_s", "gpu", "price_per_hour", "available")
MOST_PERIODS = 500


def read_market(path: Path, problem: RentalProblem, until_s: float) -> list[MarketPeriod]:
    """Periods between market changes, up to `until_s`. Raises BadInputError, UnknownNameError."""
    rows = read_csv(path)
    if not rows or not set(_WANTED) <= rows[0].keys():
        raise BadInputError(f"{path}: wanted are rows with the columns {', '.join(_WANTED)}[, rate_factor]")
    names = [gpu.name for gpu in problem.gpus]
    usd, there, factor = (
        [gpu.usd_per_hour for gpu in problem.gpus],
        [gpu.available for gpu in problem.gpus],
        1.0,
    )
    moments: list[tuple[float, tuple[float, ...], tuple[float, ...], float]] = []
    for line, row in enumerate(rows, start=2):
        time_s = _number(path, line, row, "time_s", least=0.0)
        if moments and time_s < moments[-1][0]:
            raise BadInputError(f"{path}, line {line}: times must ascend")
        if row["gpu"] not in names:
            raise unknown_name(f"GPU in {path}, line {line}", row["gpu"], names)
        n = names.index(row["gpu"])
        if row["price_per_hour"]:
            usd[n] = _number(path, line, row, "price_per_hour", least=1e-9)
        if row["available"]:
            there[n] = _number(path, line, row, "available", least=0.0)
        if row.get("rate_factor"):
            factor = _number(path, line, row, "rate_factor", least=0.0)
        if moments and moments[-1][0] == time_s:
            moments.pop()
        moments.append((time_s, tuple(usd), tuple(there), factor))
    if moments[0][0] > 0:
        first = [gpu.usd_per_hour for gpu in problem.gpus], [gpu.available for gpu in problem.gpus]
        moments.insert(0, (0.0, tuple(first[0]), tuple(first[1]), 1.0))
    if not until_s > moments[-1][0]:
        raise BadInputError(
            f"{path}: the last change is at {moments[-1][0]:g} s, the end at {until_s:g} s; give a later end"
        )
    if len(moments) > MOST_PERIODS:
        raise BadInputError(f"{path}: {len(moments)} changes; {MOST_PERIODS} at most are planned for at once")
    ends = [moment[0] for moment in moments[1:]] + [until_s]
    return [
        MarketPeriod(begin_s, end_s - begin_s, prices, available, rate)
        for (begin_s, prices, available, rate), end_s in zip(moments, ends, strict=True)
    ]


def _number(path: Path, line: int, row: dict[str, str], column: str, least: float) -> float:
    try:
        found = float(row[column] or "nan")
    except ValueError:
        found = -inf
    if not least <= found < inf:
        raise BadInputError(
            f"{path}, line {line}, {column}: {row[column]!r} given; a number from {least:g} on is wanted"
        )
    return found
