"""A user's own benchmark: it shifts an engine's predictions and narrows their intervals, as an overlay.

Each metric's logarithmic error has an expectation of zero and the shipped residual as its spread; the runs
move the expectation (conjugate normal, by count and scatter), and what scatter is left is the new spread.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import RESIDUALS, SEEN, WIDER, CalibrationTable, sister_kinds
from tangram_validate.serving.fitting import FittedRow
from tangram_validate.serving.predict import INTERVAL, PredictedRun, Progress, predict, residual_name
from tangram_validate.serving.runs import APART, BURST, CLOSED, OPEN, RefusedRun, ServedRun
from tangram_validate.serving.scoring import score

EXPECTED = 3.0  # runs that the shipped spread counts for beside the user's
FLOOR = 0.01  # spread of repeats of one run: no interval gets narrower


@dataclass(frozen=True)
class OwnCalibration:
    """Rows of the overlay, and errors before and after by metric."""

    rows: tuple[FittedRow, ...]
    before: dict[str, Any]
    after: dict[str, Any]
    refused: tuple[RefusedRun, ...]
    used: int


def calibrate_to(runs: Sequence[ServedRun], hwdb: Hwdb, progress: Progress | None = None) -> OwnCalibration:
    """What `runs` change of the shipped rows: iterations first, then first tokens, then spreads."""
    before, refused = predict(runs, hwdb, CalibrationTable.load(hwdb), progress)
    # A burst's error is its seats' and queue's, one of parts apart its link's: neither tells of iterations.
    telling = [predicted_run for predicted_run in before if predicted_run.run.load not in (BURST, APART)]
    kinds = Counter(name for run in runs for name in (f"gpu:{run.gpu}", f"model:{run.model.name}"))
    rows = [FittedRow("*", name, SEEN, float(n), 0.0, n) for name, n in sorted(kinds.items())]
    for engine in sorted({run.engine for run in runs}):
        known = CalibrationTable.load(hwdb).fit(engine)
        rows += _shift(telling, engine, "tpot", "time_scale", known["time_scale"])
        middle, _ = predict(runs, hwdb, _with(hwdb, rows), progress)
        closed = [predicted_run for predicted_run in middle if predicted_run.run.load == CLOSED]
        rows += _shift(closed, engine, "ttft", "ttft_scale", known["ttft_scale"])
        opened = [
            predicted_run
            for predicted_run in middle
            if predicted_run.run.load == OPEN and predicted_run.metric == "ttft"
        ]
        rows += _server(opened, engine, _with(hwdb, rows))
    shifted, _ = predict(runs, hwdb, _with(hwdb, rows), progress)
    for engine in sorted({run.engine for run in runs}):
        for name in sorted(
            {residual_name(predicted_run.run.load, predicted_run.metric) for predicted_run in shifted}
        ):
            rows += _spread(shifted, engine, name)
    after, _ = predict(runs, hwdb, _with(hwdb, rows), progress)
    return OwnCalibration(
        tuple(rows),
        _scores(before),
        _scores(after),
        tuple(refused),
        len({predicted_run.run.line for predicted_run in after}),
    )


def _with(hwdb: Hwdb, rows: Sequence[FittedRow]) -> CalibrationTable:
    """The shipped calibration with `rows` replacing entries of the same name."""
    from tangram_validate.serving.tables import as_row

    shipped = [(0, row) for row in CalibrationTable.load(hwdb).rows()]
    return CalibrationTable([*shipped, *((1, as_row(row, "own runs")) for row in rows)], sister_kinds(hwdb))


def _spread_of(predicted_run: PredictedRun) -> float:
    return float(np.log(predicted_run.high / predicted_run.predicted)) / INTERVAL


def _shift(
    found: Sequence[PredictedRun], engine: str, metric: str, parameter: str, known: float
) -> list[FittedRow]:
    """`known` times exp(weighted mean log error); the weight nears 0 where runs are few or scatter."""
    own = [one for one in found if one.run.engine == engine and one.metric == metric]
    if not own:
        return []
    errors = np.log([predicted_run.measured / predicted_run.predicted for predicted_run in own])
    expected = _spread_of(own[0])
    # Of few runs the scatter is not known either: it is taken for half of the shipped spread.
    held = (len(own) * float(np.var(errors)) + EXPECTED * (expected / 2) ** 2) / (len(own) + EXPECTED)
    scatter = max(float(np.sqrt(held)), FLOOR)
    weight = expected**2 / (expected**2 + scatter**2 / len(own))
    value = known * float(np.exp(weight * np.mean(errors)))
    return [
        FittedRow(engine, "*", parameter, value, float(np.sqrt(weight) * scatter / len(own) ** 0.5), len(own))
    ]


def _server(found: Sequence[PredictedRun], engine: str, table: CalibrationTable) -> list[FittedRow]:
    """`server_s`, seconds outside iterations in open loops: the value so far plus the median shortfall."""
    own = [predicted_run for predicted_run in found if predicted_run.run.engine == engine]
    if not own:
        return []
    known = table.fit(engine)["server_s"]
    missing = float(np.median([predicted_run.measured - predicted_run.predicted for predicted_run in own]))
    return [FittedRow(engine, "*", "server_s", max(known + missing, 1e-4), 0.1, len(own))]


def _spread(found: Sequence[PredictedRun], engine: str, name: str) -> list[FittedRow]:
    """The row of one residual, of loads and metrics that share it."""
    own = [
        predicted_run
        for predicted_run in found
        if predicted_run.run.engine == engine
        and residual_name(predicted_run.run.load, predicted_run.metric) == name
    ]
    if name not in RESIDUALS or not own:
        return []
    errors = np.log([predicted_run.measured / predicted_run.predicted for predicted_run in own])
    expected = _spread_of(own[0])
    count = len(own)
    left = (count * float(np.mean(errors**2)) + EXPECTED * expected**2) / (count + EXPECTED)
    value = max(float(np.sqrt(left * (1.0 + 1.0 / (count + EXPECTED)))), FLOOR)
    rows = [FittedRow(engine, "*", name, min(value, expected), 0.0, count)]
    # What is fitted to a source is not wider for being new.
    source = name.replace("residual_", "new_source_")
    return rows + [FittedRow(engine, "*", source, 1.0, 0.0, count)] * (source in WIDER)


def _scores(found: Sequence[PredictedRun]) -> dict[str, Any]:
    answers = {}
    for metric in sorted({predicted_run.metric for predicted_run in found}):
        own = [predicted_run for predicted_run in found if predicted_run.metric == metric]
        answers[metric] = score(own) | {"interval": float(np.exp(INTERVAL * _spread_of(own[0]))) - 1.0}
    return answers
