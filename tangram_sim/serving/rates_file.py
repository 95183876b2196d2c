"""Arrivals at rates that change over time, with bursts: windows from a file, such as ServeGen's tables."""

from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from pathlib import Path

import numpy as np

from tangram_sim.datafiles import csv_cells, read_csv
from tangram_sim.errors import BadInputError
from tangram_sim.serving.workload import Floats

LAST_WINDOW_S = 600.0  # of a stream of one window: as long as ServeGen's
MOST = 100_000_000  # requests


@dataclass(frozen=True, slots=True)
class RateWindow:
    """A period of one stream: requests at `rate_rps`, whose gaps have the coefficient of variation `cv`."""

    stream: str
    start_s: float
    end_s: float
    rate_rps: float
    cv: float


def is_rates_file(path: Path) -> bool:
    """Whether a CSV file has the columns of rates over time."""
    header, _ = csv_cells(path)
    return {"start_s", "rate_rps"} <= set(header)


def read_rates(path: Path, where: dict[str, str]) -> list[RateWindow]:
    """Rate windows from a CSV with the columns start_s, rate_rps[, cv]; only rows with the values in `where`.

    Rows that differ in `pool` or `client` are separate streams, which are superposed: ServeGen
    (github.com/alibaba/ServeGen) describes services by their clients in this way. Raises BadInputError.
    """
    rows = read_csv(path)
    columns = set(rows[0]) if rows else set()
    missing = {"start_s", "rate_rps", *where} - columns
    if missing:
        raise BadInputError(
            f"{path}: no column {', '.join(sorted(missing))}; wanted are start_s, rate_rps and, where gaps "
            "do not vary as a Poisson stream's, cv"
        )
    chosen = [
        (line, row)
        for line, row in enumerate(rows, start=2)
        if all(row[name] == value for name, value in where.items())
    ]
    if not chosen:
        raise BadInputError(
            f"{path}: no row has {', '.join(f'{k}={v}' for k, v in where.items()) or 'a rate'}"
        )
    read = [
        (
            "/".join(row.get(name, "") for name in ("pool", "client")),
            _number(path, line, row, "start_s"),
            _number(path, line, row, "rate_rps"),
            _number(path, line, row, "cv") if row.get("cv") else 1.0,
        )
        for line, row in chosen
    ]
    found = []
    for stream, own in groupby(sorted(read), key=lambda item: item[0]):
        windows = list(own)
        starts = [window[1] for window in windows]
        if len(set(starts)) < len(starts):
            raise BadInputError(
                f"{path}: two rows begin at the same second; choose one stream, like client=0"
            )
        last = starts[-1] + (starts[-1] - starts[-2] if len(starts) > 1 else LAST_WINDOW_S)
        ends = [*starts[1:], last]
        found += [
            RateWindow(stream, start, end, rate, cv)
            for (_, start, rate, cv), end in zip(windows, ends, strict=True)
        ]
    return found


def _number(path: Path, line: int, row: dict[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = float("nan")
    if not isfinite(value) or value < 0:
        raise BadInputError(
            f"{path}, line {line}, {column}: {row[column]!r} given; a number of 0 or more is wanted"
        )
    return value


def arrivals_at(windows: list[RateWindow], count: int, seed: int) -> Floats:
    """The first `count` arrival times of all streams, ascending, from 0; fewer where the windows end before.

    Gaps: gamma with the window's mean and coefficient of variation. Raises BadInputError where none arrives.
    """
    random = np.random.default_rng(seed)
    begin_s = min(window.start_s for window in windows)
    drawn: list[Floats] = []
    so_far = 0
    for _, together in groupby(
        sorted(windows, key=lambda window: window.start_s), key=lambda window: window.start_s
    ):
        for rate_window in together:
            times = _of_window(rate_window, random)
            drawn.append(rate_window.start_s - begin_s + times)
            so_far += len(times)
        if so_far >= count:
            break
    times = np.sort(np.concatenate(drawn))[:count]
    if not len(times):
        raise BadInputError(
            "no request comes in any window: all rates are 0, or windows are short beside them"
        )
    return np.asarray(times - times[0])


def _of_window(window: RateWindow, random: np.random.Generator) -> Floats:
    length = window.end_s - window.start_s
    if window.rate_rps * length > MOST:
        raise BadInputError(f"{window.rate_rps:g} requests/s for {length:g} s: at most {MOST:,} are played")
    if window.rate_rps <= 0:
        return np.empty(0)
    if window.cv <= 0:
        return np.arange(0.5, window.rate_rps * length) / window.rate_rps
    shape = 1.0 / window.cv**2
    found = np.empty(0)
    reached = 0.0
    while reached < length:
        more = int((length - reached) * window.rate_rps * 1.1) + 16
        gaps = random.gamma(shape, 1.0 / (window.rate_rps * shape), more)
        found = np.concatenate([found, reached + np.cumsum(gaps)])
        reached = float(found[-1])
    return found[found < length]
