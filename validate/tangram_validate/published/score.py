"""Scores of predictions: relative errors, bias, rank correlation inside sweeps, memory, interval coverage.

Errors are fractions of what was measured; `macro` averages the sources' own figures, so that a source of a
thousand rows weighs as much as one of eight.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from tangram_sim.opgraph import FloatArray
from tangram_validate.published.predict import Prediction

SMALLEST_SWEEP = 5  # rows of one group from which a rank correlation says anything


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of a set of runs; None where nothing was measured."""

    n: int = 0
    median_ape: float | None = None
    mean_ape: float | None = None
    p90_ape: float | None = None
    worst_ape: float | None = None
    bias: float | None = None  # median signed error
    rank_correlation: float | None = None  # Spearman, averaged over sweeps
    memory_n: int = 0
    memory_median_ape: float | None = None
    interval_coverage: float | None = None  # share of measured steps inside their interval


COUNTS = ("n", "memory_n")


def score(predictions: Sequence[Prediction]) -> Score:
    """The figures of some predictions, every row the same weight."""
    errors = np.array([prediction.error for prediction in predictions if prediction.error is not None])
    memory = [abs(error) for prediction in predictions if (error := prediction.memory_error) is not None]
    inside = [
        prediction.step_s_low <= prediction.run.measured.step_s <= prediction.step_s_high
        for prediction in predictions
        if prediction.step_s_high > 0 and prediction.error is not None
    ]
    apes = np.abs(errors)
    return Score(
        n=len(errors),
        median_ape=_figure(np.median, apes),
        mean_ape=_figure(np.mean, apes),
        p90_ape=_figure(lambda values: np.percentile(values, 90), apes),
        worst_ape=_figure(np.max, apes),
        bias=_figure(np.median, errors),
        rank_correlation=_figure(np.mean, rank_correlations(predictions)),
        memory_n=len(memory),
        memory_median_ape=_figure(np.median, memory),
        interval_coverage=_figure(np.mean, inside),
    )


def _figure(
    statistic: Callable[[FloatArray], "np.floating"], values: "Iterable[float] | FloatArray"
) -> float | None:
    array = np.asarray(list(values), np.float64)
    return float(statistic(array)) if array.size else None


def rank_correlations(predictions: Sequence[Prediction]) -> list[float]:
    """Spearman's correlation of every sweep: rows of one source, table, GPU, GPU count and model."""
    sweeps: dict[tuple[str, ...], list[Prediction]] = {}
    for prediction in predictions:
        if prediction.error is not None:
            run = prediction.run
            key = (run.source_id, run.table, run.gpu, str(run.cluster.gpus), run.model_name)
            sweeps.setdefault(key, []).append(prediction)
    found = []
    for rows in sweeps.values():
        if len(rows) >= SMALLEST_SWEEP:
            given = spearman([row.step_s for row in rows], [row.run.measured.step_s for row in rows])
            found += [] if given is None else [given]
    return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Rank correlation with ties at their mean rank; None where one side is constant."""
    left, right = _ranks(a), _ranks(b)
    if left.std() == 0 or right.std() == 0:
        return None
    return float(np.corrcoef(left, right)[0, 1])


def _ranks(values: Sequence[float]) -> FloatArray:
    array = np.asarray(values, np.float64)
    _, place, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank: FloatArray = (last - (counts - 1) / 2.0)[place]
    return mean_rank


def macro(scores: Sequence[Score]) -> Score:
    """Every source the same weight: means of the sources' figures, counts added, the worst of all."""

    def mean(name: str) -> float | None:
        return _figure(np.mean, [value for item in scores if (value := getattr(item, name)) is not None])

    figures = {field.name: mean(field.name) for field in fields(Score) if field.name not in COUNTS}
    figures["worst_ape"] = _figure(np.max, [item.worst_ape for item in scores if item.worst_ape is not None])
    return Score(n=sum(item.n for item in scores), memory_n=sum(item.memory_n for item in scores), **figures)


def by(predictions: Sequence[Prediction], key: Callable[[Prediction], str]) -> dict[str, Score]:
    """A score per value of `key`, in alphabetical order."""
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(key(prediction), []).append(prediction)
    return {name: score(groups[name]) for name in sorted(groups)}
