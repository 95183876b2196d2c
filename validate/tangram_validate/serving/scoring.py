"""Scores of predictions: median and 90th percentile of errors, bias, coverage, by GPU, engine and model."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tangram_validate.serving.predict import PredictedRun
from tangram_validate.serving.runs import METRICS

WORST = 20
_GROUPS: dict[str, Callable[[PredictedRun], str]] = {
    "by_gpu": lambda one: one.run.gpu,
    "by_engine": lambda one: one.run.engine,
    "by_model": lambda one: one.run.model.name,
    "by_load": lambda one: one.run.load,
}


def score(rows: Sequence[PredictedRun], null: bool = False) -> dict[str, float]:
    """Errors as fractions of what was measured; bias is the median signed error."""
    predicted = np.array([one.null if null else one.predicted for one in rows])
    measured = np.array([one.measured for one in rows])
    error = predicted / measured - 1.0
    found = {
        "rows": float(len(rows)),
        "median_ape": float(np.median(np.abs(error))),
        "p90_ape": float(np.quantile(np.abs(error), 0.9)),
        "bias": float(np.median(error)),
    }
    if not null:
        inside = [one.low <= one.measured <= one.high for one in rows]
        found["interval_coverage"] = float(np.mean(inside))
    return found


def metrics(rows: Sequence[PredictedRun], null: bool = False) -> dict[str, Any]:
    """Scores of every metric that was measured, whole and by group."""
    found: dict[str, Any] = {}
    for metric in METRICS:
        of = [one for one in rows if one.metric == metric and (not null or one.null > 0)]
        if not of:
            continue
        found[metric] = score(of, null)
        for name, key in _GROUPS.items():
            groups = sorted({key(one) for one in of})
            found[metric][name] = {
                group: score([one for one in of if key(one) == group], null) for group in groups
            }
    return found


def orders(rows: Sequence[PredictedRun]) -> list[dict[str, Any]]:
    """By model and load, what each way of placing layers gave in all parts, and whether the order holds."""
    totals: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in rows:
        placed = one.run.placed
        if placed is not None and one.metric == "output_tok_s":
            ways = totals.setdefault((placed.model.name, placed.load), {})
            sums = ways.setdefault(placed.method, [0.0, 0.0])
            sums[0] += one.measured
            sums[1] += one.predicted
    found = []
    for (model, load), ways in totals.items():
        pairs = list(combinations(ways.values(), 2))
        agree = [np.sign(one[0] - other[0]) * np.sign(one[1] - other[1]) for one, other in pairs]
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
    ordered = sorted(rows, key=lambda one: -abs(float(np.log(one.predicted / one.measured))))
    return [
        {
            "table": one.run.table,
            "line": one.run.line,
            "metric": one.metric,
            "gpu": one.run.gpu,
            "engine": one.run.engine,
            "version": one.run.version,
            "model": one.run.model.name,
            "precision": one.run.precision.name,
            "tp": one.run.tp,
            "load": one.run.load,
            "measured": one.measured,
            "predicted": one.predicted,
        }
        for one in ordered[:WORST]
    ]
