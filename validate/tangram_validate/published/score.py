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
    errors = np.array([one.error for one in predictions if one.error is not None])
    memory = [abs(error) for one in predictions if (error := one.memory_error) is not None]
    inside = [
        one.step_s_low <= one.run.measured.step_s <= one.step_s_high
        for one in predictions
        if one.step_s_high > 0 and one.error is not None
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
    for one in predictions:
        if one.error is not None:
            run = one.run
            key = (run.source_id, run.table, run.gpu, str(run.cluster.gpus), run.model_name)
            sweeps.setdefault(key, []).append(one)
    found = []
    for rows in sweeps.values():
        if len(rows) >= SMALLEST_SWEEP:
            given = spearman([one.step_s for one in rows], [one.run.measured.step_s for one in rows])
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
        return _figure(np.mean, [value for one in scores if (value := getattr(one, name)) is not None])

    figures = {field.name: mean(field.name) for field in fields(Score) if field.name not in COUNTS}
    figures["worst_ape"] = _figure(np.max, [one.worst_ape for one in scores if one.worst_ape is not None])
    return Score(n=sum(one.n for one in scores), memory_n=sum(one.memory_n for one in scores), **figures)


def by(predictions: Sequence[Prediction], key: Callable[[Prediction], str]) -> dict[str, Score]:
    """A score per value of `key`, in alphabetical order."""
    groups: dict[str, list[Prediction]] = {}
    for one in predictions:
        groups.setdefault(key(one), []).append(one)
    return {name: score(groups[name]) for name in sorted(groups)}
