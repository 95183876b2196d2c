"""Compiled loops of the grid parallelizer."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def pareto(costs: NDArray[np.float64], feasible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows of `costs` (n, criteria), less is better, that no other feasible row dominates.

    Of equal rows the first is kept.
    """
    rows, criteria = costs.shape
    kept = feasible.copy()
    for i in range(rows):
        if not kept[i]:
            continue
        for j in range(rows):
            if j == i or not kept[j]:
                continue
            no_worse, better = True, False
            for c in range(criteria):
                if costs[j, c] > costs[i, c]:
                    no_worse = False
                    break
                if costs[j, c] < costs[i, c]:
                    better = True
            if no_worse and (better or j < i):
                kept[i] = False
                break
    return kept
