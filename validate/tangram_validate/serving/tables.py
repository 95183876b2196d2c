"""Calibration rows from measured runs: factors of iterations, first tokens, and what is left of errors."""

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import date

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb, Row
from tangram_sim.serving.calibration import RESIDUALS, SEEN, CalibrationTable, served, sister_kinds
from tangram_validate.serving.fitting import FittedRow, fit
from tangram_validate.serving.observations import observe
from tangram_validate.serving.predict import INTERVAL, PredictedRun, predict, residual_name
from tangram_validate.serving.runs import APART, CLOSED, OPEN, ServedRun, publisher

COLUMNS = ("engine", "subject", "parameter", "value", "sigma", "n", "date", "source")
LEAST_OF_CELL = 5  # bursts of one kind of GPU, engine and publisher: fewer tell nothing of it
LEAST_RUNS = 20  # for a figure of an engine's own
LEAST_OF_MODEL = 5  # runs, for a model to be known: its factor as served is drawn towards one by as many
# Iterations, requests: parameters that other rows of an engine do not carry.
SERVER, CLIENT, FIRST_TOKEN, WAVE = "server_s", "client_s", "first_token", "wave"
WAVE_APART = "wave_apart"
GRIDS = {
    SERVER: np.geomspace(1e-4, 0.1, 61),
    CLIENT: np.geomspace(2e-3, 0.3, 26),
    FIRST_TOKEN: np.linspace(0.6, 3.0, 25),
    WAVE: np.linspace(0.0, 0.6, 31),
}
WAVES_APART = np.linspace(0.0, 3.0, 61)
HAND_SET = ("memory_", "serial_", "experts_floor")  # parameters kept as they are: from logs, or set by hand
FROM_BURSTS = ("sglang", SERVER)  # kept, too: no table has open loops of that engine
SHRINKING = 5.0  # runs whose word counts as much as the expectation that versions do not differ


def calibrate(runs: Sequence[ServedRun], hwdb: Hwdb) -> list[FittedRow]:
    """All rows that `runs` give: of iterations, then of first tokens, then residuals of what is left.

    Nothing is fitted to runs that do not say what ran: lengths or degrees that were assumed for them move
    parameters as much as kernels do, and predictions of other kinds were the worse for it.
    """
    kept = CalibrationTable.load(hwdb).rows()
    hand_set = [
        FittedRow(
            row["engine"], row["subject"], row["parameter"], row.number("value"), row.number("sigma"), 0
        )
        for row in kept
        if row["parameter"].startswith(HAND_SET) or (row["engine"], row["parameter"]) == FROM_BURSTS
    ]
    runs = [run for run in runs if not run.doubt and not run.assumed]
    rows = fit(observe(runs, hwdb)) + hand_set
    rows += first_tokens(runs, hwdb, rows)
    rows += waves_apart(runs, hwdb, rows)
    return rows + residuals(runs, hwdb, rows) + seen(runs)


def seen(runs: Sequence[ServedRun]) -> list[FittedRow]:
    """One row for each kind of GPU and each model with enough runs, its value the number of runs."""
    counts = Counter(name for run in runs for name in (f"gpu:{run.gpu}", f"model:{run.model.name}"))
    return [
        FittedRow("*", name, SEEN, float(count), 0.0, count)
        for name, count in sorted(counts.items())
        if count >= (LEAST_RUNS if name.startswith("gpu:") else LEAST_OF_MODEL)
    ]


def table_of(rows: Sequence[FittedRow], hwdb: Hwdb | None = None) -> CalibrationTable:
    """The rows as predictions read them; with the sister kinds of `hwdb`, where it is given."""
    return CalibrationTable(((0, as_row(row, "")) for row in rows), sister_kinds(hwdb) if hwdb else None)


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
                for place, predicted_run in enumerate(apart)
                if engine in ("*", predicted_run.run.engine) and predicted_run.run.load == load
            ]
            if len(own) < LEAST_RUNS:
                continue
            alone = np.array([apart[place].predicted for place in own])
            others = np.maximum([together[place].predicted for place in own] - alone, 0.0)
            target = np.log([apart[place].measured for place in own])
            grid = np.meshgrid(*(GRIDS[name] for name in names), indexing="ij")
            values = dict(zip(names, (item[..., None] for item in grid), strict=True))
            seconds = values.get(CLIENT, values.get(SERVER, 0.0)) + values.get(FIRST_TOKEN, 1.0) * alone
            logs = np.log(seconds + values.get(WAVE, 0.0) * others)
            error = np.median(np.abs(logs - target), axis=-1)
            best = np.unravel_index(np.argmin(error), error.shape)
            sigma = float(error[best]) / np.sqrt(len(own))
            for name, axis in zip(names, grid, strict=True):
                found.append(FittedRow(engine, "*", name, float(axis[best]), sigma, len(own)))
            if load == CLOSED and engine != "*":
                found += _scales([apart[place].run for place in own], target - logs[best])
    return found


def _scales(runs: Sequence[ServedRun], left: Floats) -> list[FittedRow]:
    """Factors of versions, then of models as served on a kind of GPU in a precision.

    Benchmarks start a server for each of the latter with intervals of its own at which requests are fetched
    and tokens are sent. Medians of what is left of log errors, drawn towards none where runs are few.
    """
    found = []
    left = left.copy()
    subjects = (
        [f"version:{run.version}" if run.version else "" for run in runs],
        [served(run.gpu, run.model.name, run.precision.name) for run in runs],
    )
    for names, least in zip(map(np.array, subjects), (LEAST_RUNS, LEAST_OF_MODEL), strict=True):
        for name in sorted(set(names) - {""}):
            own = left[names == name]
            if len(own) < least:
                continue
            value = float(np.median(own)) * len(own) / (len(own) + SHRINKING)
            sigma = float(np.median(np.abs(own - np.median(own)))) / np.sqrt(len(own))
            found.append(
                FittedRow(runs[0].engine, str(name), "ttft_scale", float(np.exp(value)), sigma, len(own))
            )
            left[names == name] -= value
    return found


def waves_apart(runs: Sequence[ServedRun], hwdb: Hwdb, rows: Sequence[FittedRow]) -> list[FittedRow]:
    """The share of clients that stays in step where prompts have replicas of their own, by engine."""
    timed = [run for run in runs if run.value("ttft") and run.load == APART]
    ends = []
    for wave in (WAVES_APART[0], WAVES_APART[-1]):
        table = table_of([*rows, FittedRow("*", "*", WAVE_APART, float(wave), 0.0, 0)])
        ends.append(
            [
                predicted_run
                for predicted_run in predict(timed, hwdb, table)[0]
                if predicted_run.metric == "ttft"
            ]
        )
    told = ends[0]
    short, long = (np.array([predicted_run.predicted for predicted_run in end]) for end in ends)
    share = (WAVES_APART / WAVES_APART[-1])[:, None]
    grid = np.abs(
        np.log(
            (short + share * (long - short)) / np.array([predicted_run.measured for predicted_run in told])
        )
    )
    found = []
    for engine in ("*", *sorted({run.engine for run in timed})):
        own = [place for place, predicted_run in enumerate(told) if engine in ("*", predicted_run.run.engine)]
        if len(own) >= LEAST_RUNS:
            error = np.median(grid[:, own], axis=1)
            best = int(np.argmin(error))
            sigma = float(error[best]) / np.sqrt(len(own))
            found.append(FittedRow(engine, "*", WAVE_APART, float(WAVES_APART[best]), sigma, len(own)))
    return found


def _first_tokens(
    runs: Sequence[ServedRun], hwdb: Hwdb, rows: Sequence[FittedRow], wave: float
) -> list[PredictedRun]:
    """Predicted times to first token without server and client time; `wave`: share that starts together."""
    fixed = ((SERVER, 0.0), (CLIENT, 0.0), (FIRST_TOKEN, 1.0), (WAVE, wave))
    table = table_of([*rows, *(FittedRow("*", "*", name, value, 0.0, 0) for name, value in fixed)])
    return [
        predicted_run for predicted_run in predict(runs, hwdb, table)[0] if predicted_run.metric == "ttft"
    ]


def nine_tenths(folds: Sequence[Sequence[float]]) -> float:
    """The value that nine tenths of the weight are below, each fold weighing the same."""
    values = np.concatenate([np.asarray(errors) for errors in folds])
    weights = np.concatenate([np.full(len(errors), 1.0 / len(errors)) for errors in folds])
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / len(folds)
    return float(values[order][min(int(np.searchsorted(reached, 0.9)), len(values) - 1)])


def residuals(runs: Sequence[ServedRun], hwdb: Hwdb, rows: Sequence[FittedRow]) -> list[FittedRow]:
    """Standard deviations at which nine of ten measured values lie in their 90 % interval, by engine.

    Nothing is fitted to bursts. Theirs are for all engines alike, and each kind of GPU of each engine and
    publisher weighs the same, however many runs it has: the next one is as far from what is known as these.
    """
    predicted, _ = predict(runs, hwdb, table_of(rows))
    names = [residual_name(predicted_run.run.load, predicted_run.metric) for predicted_run in predicted]
    found = []
    for engine in ("*", *sorted({predicted_run.run.engine for predicted_run in predicted})):
        for name in RESIDUALS:
            own = [
                predicted_run
                for predicted_run, given in zip(predicted, names, strict=True)
                if given == name
                and engine in ("*", predicted_run.run.engine)
                and not predicted_run.metric.endswith("_p99")
            ]
            bursts = name.startswith("residual_burst_")
            if len(own) >= LEAST_RUNS and not (bursts and engine != "*"):
                spread = _spread_of_cells(own) if bursts else _spread(own)
                found.append(FittedRow(engine, "*", name, spread, 0.0, len(own)))
    return found


def _spread(rows: Sequence[PredictedRun]) -> float:
    errors = np.abs(np.log([row.predicted / row.measured for row in rows]))
    return float(np.quantile(errors, 0.9)) / INTERVAL


def _spread_of_cells(rows: Sequence[PredictedRun]) -> float:
    cells = defaultdict[tuple[str, str, str], list[float]](list)
    for row in rows:
        cell = (row.run.engine, row.run.gpu, publisher(row.run))
        cells[cell].append(float(abs(np.log(row.predicted / row.measured))))
    telling = [errors for errors in cells.values() if len(errors) >= LEAST_OF_CELL]
    return nine_tenths(telling or list(cells.values())) / INTERVAL
