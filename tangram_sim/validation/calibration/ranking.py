"""How well predictions order the plans of one setting: Kendall's tau, and what the plan picked costs.

A sweep is a group of runs that differ by their plan alone (`folds.setting`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.opgraph import FloatArray

FEWEST = 3  # plans of a sweep from which their order says anything


@dataclass(frozen=True, slots=True)
class Ranking:
    """Order within sweeps: every source the same weight, inside it every sweep."""

    sweeps: int
    tau: float  # Kendall's tau-b
    regret: float  # how much longer the plan picked takes than the best one, mean


def ranking(
    measured: FloatArray, predicted: FloatArray, source: NDArray[np.str_], setting: NDArray[np.int64]
) -> Ranking:
    """Kendall's tau and the regret of N predictions; nan where no sweep has `FEWEST` plans."""
    by_source: dict[str, list[tuple[float, float]]] = {}
    for rows in sweeps(setting):
        found = kendall(measured[rows], predicted[rows])
        if not np.isnan(found):
            by_source.setdefault(str(source[rows[0]]), []).append(
                (found, regret(measured[rows], predicted[rows]))
            )
    if not by_source:
        return Ranking(0, float("nan"), float("nan"))
    means = np.array([np.mean(one, axis=0) for one in by_source.values()])
    tau, cost = means.mean(axis=0).tolist()
    return Ranking(sum(len(one) for one in by_source.values()), tau, cost)


def sweeps(setting: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The rows of every setting with `FEWEST` runs or more."""
    for one in np.unique(setting):
        rows = np.flatnonzero(setting == one)
        if len(rows) >= FEWEST:
            yield rows


def kendall(a: FloatArray, b: FloatArray) -> float:
    """Kendall's tau-b of two sequences, ties corrected for; nan where one of them is constant."""
    upper = np.triu_indices(len(a), 1)
    left, right = (np.sign(one[:, None] - one[None, :])[upper] for one in (a, b))
    pairs = float((left != 0).sum()) * float((right != 0).sum())
    return float((left * right).sum() / np.sqrt(pairs)) if pairs else float("nan")


def regret(measured: FloatArray, predicted: FloatArray) -> float:
    """By how much the plan predicted fastest is slower than the fastest one; ties share its time."""
    picked = predicted <= predicted.min() * (1 + 1e-9)
    return float(measured[picked].mean() / measured.min() - 1.0)
