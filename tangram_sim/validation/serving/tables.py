"""Calibration rows from measured runs: factors of iterations, first tokens, and what is left of errors."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from datetime import date

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb, Row
from tangram_sim.serving.calibration import RESIDUALS, SEEN, CalibrationTable
from tangram_sim.validation.serving.fitting import FittedRow, fit
from tangram_sim.validation.serving.observations import observe
from tangram_sim.validation.serving.predict import INTERVAL, PredictedRun, predict
from tangram_sim.validation.serving.runs import CLOSED, METRICS, OPEN, ServedRun

COLUMNS = ("engine", "subject", "parameter", "value", "sigma", "n", "date", "source")
LEAST_RUNS = 20  # for a figure of an engine's own
# Iterations, requests: parameters that other rows of an engine do not carry.
SERVER, CLIENT, FIRST_TOKEN, WAVE = "server_s", "client_s", "first_token", "wave"
GRIDS = {
    SERVER: np.geomspace(1e-4, 0.1, 61),
    CLIENT: np.geomspace(2e-3, 0.3, 26),
    FIRST_TOKEN: np.linspace(0.6, 3.0, 25),
    WAVE: np.linspace(0.0, 0.6, 31),
}
SHRINKING = 5.0  # runs whose word counts as much as the expectation that versions do not differ


def calibrate(runs: Sequence[ServedRun], hwdb: Hwdb) -> list[FittedRow]:
    """All rows that `runs` give: of iterations, then of first tokens, then residuals of what is left."""
    kept = CalibrationTable.load(hwdb).rows()
    memory = [
        FittedRow(
            row["engine"], row["subject"], row["parameter"], row.number("value"), row.number("sigma"), 0
        )
        for row in kept
        if row["parameter"].startswith("memory_")
    ]
    rows = fit(observe(runs, hwdb)) + memory
    rows += first_tokens(runs, hwdb, rows)
    return rows + residuals(runs, hwdb, rows) + seen(runs)


def seen(runs: Sequence[ServedRun]) -> list[FittedRow]:
    """One row for each kind of GPU with enough runs, its value the number of runs."""
    counts = Counter(run.gpu for run in runs)
    return [
        FittedRow("*", f"gpu:{gpu}", SEEN, float(count), 0.0, count)
        for gpu, count in sorted(counts.items())
        if count >= LEAST_RUNS
    ]


def table_of(rows: Sequence[FittedRow]) -> CalibrationTable:
    """The rows as predictions read them."""
    return CalibrationTable((0, as_row(row, "")) for row in rows)


def as_row(row: FittedRow, source: str, day: str = "") -> Row:
    """A row of `serving/calibration.csv`."""
    cells = {
        "engine": row.engine,
        "subject": row.subject,
        "parameter": row.parameter,
        "value": f"{row.value:.4g}",
        "sigma": f"{row.sigma:.3g}",
        "n": str(row.runs),
        "date": day or date.today().isoformat(),
        "source": source,
    }
    name = "/".join((row.engine, row.subject, row.parameter))
    return Row("serving_calibration", name, cells, dict.fromkeys(cells, "fitted rows"))


def calibration_csv(rows: Sequence[FittedRow], source: str) -> str:
    """`serving/calibration.csv` of rows that rest on runs."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        if row.runs:
            cells = as_row(row, source).cells
            writer.writerow([cells[column] for column in COLUMNS])
    return stream.getvalue()


def first_tokens(runs: Sequence[ServedRun], hwdb: Hwdb, rows: Sequence[FittedRow]) -> list[FittedRow]:
    """What surrounds iterations before a first token, by engine: the least median of log errors on a grid.

    Open loop: TTFT = server_s + (iteration, queue, own prompt). Closed loop: client_s + first_token x the
    same + wave x the other prompts; then a factor for each version, since versions come with benchmarks.
    """
    timed = [run for run in runs if run.value("ttft") and run.load in (CLOSED, OPEN)]
    apart, together = (_first_tokens(timed, hwdb, rows, wave) for wave in (0.0, 1.0))
    found = []
    for engine in ("*", *sorted({run.engine for run in timed})):
        for load, names in ((OPEN, (SERVER,)), (CLOSED, (CLIENT, FIRST_TOKEN, WAVE))):
            own = [
                place
                for place, one in enumerate(apart)
                if engine in ("*", one.run.engine) and one.run.load == load
            ]
            if len(own) < LEAST_RUNS:
                continue
            alone = np.array([apart[place].predicted for place in own])
            others = np.maximum([together[place].predicted for place in own] - alone, 0.0)
            target = np.log([apart[place].measured for place in own])
            grid = np.meshgrid(*(GRIDS[name] for name in names), indexing="ij")
            values = dict(zip(names, (one[..., None] for one in grid), strict=True))
            seconds = values.get(CLIENT, values.get(SERVER, 0.0)) + values.get(FIRST_TOKEN, 1.0) * alone
            logs = np.log(seconds + values.get(WAVE, 0.0) * others)
            error = np.median(np.abs(logs - target), axis=-1)
            best = np.unravel_index(np.argmin(error), error.shape)
            sigma = float(error[best]) / np.sqrt(len(own))
            for name, axis in zip(names, grid, strict=True):
                found.append(FittedRow(engine, "*", name, float(axis[best]), sigma, len(own)))
            if load == CLOSED and engine != "*":
                left = target - logs[best]
                found += _by_version([apart[place].run for place in own], left)
    return found


def _by_version(runs: Sequence[ServedRun], left: Floats) -> list[FittedRow]:
    """Medians of what is left of log errors, drawn towards none where runs are few."""
    found = []
    versions = np.array([run.version for run in runs])
    for version in sorted({run.version for run in runs if run.version}):
        own = left[versions == version]
        if len(own) < LEAST_RUNS / 2:
            continue
        value = float(np.exp(np.median(own) * len(own) / (len(own) + SHRINKING)))
        sigma = float(np.median(np.abs(own - np.median(own)))) / np.sqrt(len(own))
        found.append(FittedRow(runs[0].engine, f"version:{version}", "ttft_scale", value, sigma, len(own)))
    return found


def _first_tokens(
    runs: Sequence[ServedRun], hwdb: Hwdb, rows: Sequence[FittedRow], wave: float
) -> list[PredictedRun]:
    """Predicted times to first token without server and client time; `wave`: share that starts together."""
    fixed = ((SERVER, 0.0), (CLIENT, 0.0), (FIRST_TOKEN, 1.0), (WAVE, wave))
    table = table_of([*rows, *(FittedRow("*", "*", name, value, 0.0, 0) for name, value in fixed)])
    return [one for one in predict(runs, hwdb, table)[0] if one.metric == "ttft"]


def residuals(runs: Sequence[ServedRun], hwdb: Hwdb, rows: Sequence[FittedRow]) -> list[FittedRow]:
    """Standard deviations at which nine of ten measured values lie in their 90 % interval, by engine."""
    predicted, _ = predict(runs, hwdb, table_of(rows))
    return [
        FittedRow(engine, "*", f"residual_{metric}", spread, 0.0, count)
        for engine in ("*", *sorted({one.run.engine for one in predicted}))
        for metric in METRICS
        for spread, count in [_spread([one for one in predicted if _speaks(one, engine, metric)])]
        if count >= LEAST_RUNS and f"residual_{metric}" in RESIDUALS
    ]


def _speaks(one: PredictedRun, engine: str, metric: str) -> bool:
    return one.metric == metric and engine in ("*", one.run.engine)


def _spread(rows: Sequence[PredictedRun]) -> tuple[float, int]:
    if not rows:
        return 0.0, 0
    errors = np.abs(np.log([one.predicted / one.measured for one in rows]))
    return float(np.quantile(errors, 0.9)) / INTERVAL, len(rows)
