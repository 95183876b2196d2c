"""Scores of predictions: median and 90th percentile of errors, bias, coverage, by GPU, engine and model."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tangram_validate.serving.predict import PredictedRun
from tangram_validate.serving.runs import METRICS

WORST = 20
_GROUPS: dict[str, Callable[[PredictedRun], str]] = {
    "by_gpu": lambda predicted_run: predicted_run.run.gpu,
    "by_engine": lambda predicted_run: predicted_run.run.engine,
    "by_model": lambda predicted_run: predicted_run.run.model.name,
    "by_load": lambda predicted_run: predicted_run.run.load,
}


def score(rows: Sequence[PredictedRun], null: bool = False) -> dict[str, float]:
    """Errors as fractions of what was measured; bias is the median signed error."""
    predicted = np.array([row.null if null else row.predicted for row in rows])
    measured = np.array([row.measured for row in rows])
    error = predicted / measured - 1.0
    found = {
        "rows": float(len(rows)),
        "median_ape": float(np.median(np.abs(error))),
        "p90_ape": float(np.quantile(np.abs(error), 0.9)),
        "bias": float(np.median(error)),
    }
    if not null:
        inside = [row.low <= row.measured <= row.high for row in rows]
        found["interval_coverage"] = float(np.mean(inside))
    return found


def metrics(rows: Sequence[PredictedRun], null: bool = False) -> dict[str, Any]:
    """Scores of every metric that was measured, whole and by group."""
    found: dict[str, Any] = {}
    for metric in METRICS:
        of = [row for row in rows if row.metric == metric and (not null or row.null > 0)]
        if not of:
            continue
        found[metric] = score(of, null)
        for name, key in _GROUPS.items():
            groups = sorted({key(predicted_run) for predicted_run in of})
            found[metric][name] = {
                group: score([predicted_run for predicted_run in of if key(predicted_run) == group], null)
                for group in groups
            }
    return found


def orders(rows: Sequence[PredictedRun]) -> list[dict[str, Any]]:
    """By model and load, what each way of placing layers gave in all parts, and whether the order holds."""
    totals: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        placed = row.run.placed
        if placed is not None and row.metric == "output_tok_s":
            ways = totals.setdefault((placed.model.name, placed.load), {})
            sums = ways.setdefault(placed.method, [0.0, 0.0])
            sums[0] += row.measured
            sums[1] += row.predicted
    found = []
    for (model, load), ways in totals.items():
        pairs = list(combinations(ways.values(), 2))
        agree = [np.sign(item[0] - other[0]) * np.sign(item[1] - other[1]) for item, other in pairs]
        found.append(
            {
                "model": model,
                "load": load,
                "ways": [
                    {"method": name, "measured": sums[0], "predicted": sums[1]} for name, sums in ways.items()
                ],
                "tau": float(np.mean(agree)) if agree else None,
            }
        )
    return found


def worst(rows: Sequence[PredictedRun]) -> list[dict[str, Any]]:
    """The rows farthest off, by the ratio of predicted to measured."""
    ordered = sorted(rows, key=lambda row: -abs(float(np.log(row.predicted / row.measured))))
    return [
        {
            "table": predicted_run.run.table,
            "line": predicted_run.run.line,
            "metric": predicted_run.metric,
            "gpu": predicted_run.run.gpu,
            "engine": predicted_run.run.engine,
            "version": predicted_run.run.version,
            "model": predicted_run.run.model.name,
            "precision": predicted_run.run.precision.name,
            "tp": predicted_run.run.tp,
            "load": predicted_run.run.load,
            "measured": predicted_run.measured,
            "predicted": predicted_run.predicted,
        }
        for predicted_run in ordered[:WORST]
    ]
