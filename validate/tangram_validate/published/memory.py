"""Scores of predicted peaks: tensors, what the allocator holds and what the driver shows, each apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram_validate.published.predict import Prediction
from tangram_validate.published.reading import MEMORY_KINDS

COLUMNS = ("kind", "n", "median", "p90", "worst", "bias")


@dataclass(frozen=True, slots=True)
class MemoryScore:
    """Errors of one kind of peak as fractions; means over sources, so that each weighs the same."""

    n: int
    median_ape: float
    p90_ape: float
    worst_ape: float
    bias: float  # median signed error


def memory_scores(predictions: Sequence[Prediction]) -> dict[str, MemoryScore]:
    """A score per kind of peak that the rows measured, and `all` over every row; empty without any."""
    groups = {
        kind: [
            prediction
            for prediction in predictions
            if prediction.run.measured.memory == kind and prediction.memory_error is not None
        ]
        for kind in MEMORY_KINDS
    }
    found = {kind: _score(rows) for kind, rows in groups.items() if rows}
    everything = [row for rows in groups.values() for row in rows]
    return found | ({"all": _score(everything)} if everything else {})


def _score(rows: Sequence[Prediction]) -> MemoryScore:
    by_source: dict[str, list[float]] = {}
    for row in rows:
        if row.memory_error is not None:
            by_source.setdefault(row.run.source_id, []).append(row.memory_error)
    figures = [
        (np.median(np.abs(errors)), np.percentile(np.abs(errors), 90), np.median(errors))
        for errors in by_source.values()
    ]
    median, tail, bias = np.mean(figures, axis=0).tolist()
    worst = max(abs(error) for errors in by_source.values() for error in errors)
    return MemoryScore(len(rows), median, tail, worst, bias)


def table_rows(scores: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    """Rows of a table for people, fractions in percent."""
    return [
        (
            kind,
            f"{score['n']:.0f}",
            *(f"{100 * score[name]:.1f}" for name in ("median_ape", "p90_ape", "worst_ape", "bias")),
        )
        for kind, score in scores.items()
    ]
