"""How well predictions order the plans of one setting: Kendall's tau, and what the plan picked costs.

A sweep is a group of runs that differ by their plan alone (`folds.setting`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.opgraph import FloatArray

FEWEST = 3  # plans of a sweep from which their order says anything
# Of a step: rows with the same configuration differ by about as much in the middle, so that the order of
# steps that are nearer is chance.
SCATTER = 0.03


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
    means = np.array([np.mean(item, axis=0) for item in by_source.values()])
    tau, cost = means.mean(axis=0).tolist()
    return Ranking(sum(len(item) for item in by_source.values()), tau, cost)


def sweeps(setting: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The rows of every setting with `FEWEST` runs or more."""
    for item in np.unique(setting):
        rows = np.flatnonzero(setting == item)
        if len(rows) >= FEWEST:
            yield rows


@dataclass(frozen=True, slots=True)
class SweepOrder:
    """The order of one source's sweeps, each the same weight."""

    sweeps: int
    tau: float
    clear_tau: float  # of pairs whose steps lie further apart than SCATTER
    unclear: float  # share of pairs that do not
    regret: float


def orders(
    measured: FloatArray, predicted: FloatArray, source: NDArray[np.str_], setting: NDArray[np.int64]
) -> dict[str, SweepOrder]:
    """The order within sweeps of N predictions by source; sources without a sweep are missing."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for rows in sweeps(setting):
        steps, own = measured[rows], predicted[rows]
        tau = kendall(steps, own)
        if not np.isnan(tau):
            clear = kendall(steps, own, SCATTER)
            near = float((_pairs(np.log(steps), SCATTER) == 0).mean())
            found.setdefault(str(source[rows[0]]), []).append((tau, clear, near, regret(steps, own)))
    return {
        name: SweepOrder(len(of), *(_mean([item[at] for item in of]) for at in range(4)))
        for name, of in sorted(found.items())
    }


def _mean(values: list[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _pairs(values: FloatArray, least: float = 0.0) -> FloatArray:
    """Signs of the differences of all pairs; 0 for those no larger than `least`."""
    apart = (values[:, None] - values[None, :])[np.triu_indices(len(values), 1)]
    return np.where(np.abs(apart) > least, np.sign(apart), 0.0)


def kendall(a: FloatArray, b: FloatArray, scatter: float = 0.0) -> float:
    """Kendall's tau-b of two sequences, ties corrected for; nan where one of them is constant.

    Pairs of `a` that differ by no more than the share `scatter` count as ties of both.
    """
    left, right = _pairs(np.log(a), scatter), _pairs(b)
    right = np.where(left == 0, 0.0, right) if scatter else right
    pairs = float((left != 0).sum()) * float((right != 0).sum())
    return float((left * right).sum() / np.sqrt(pairs)) if pairs else float("nan")


def regret(measured: FloatArray, predicted: FloatArray) -> float:
    """By how much the plan predicted fastest is slower than the fastest one; ties share its time."""
    picked = predicted <= predicted.min() * (1 + 1e-9)
    return float(measured[picked].mean() / measured.min() - 1.0)
