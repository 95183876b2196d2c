"""Compiled loop of Alpa's inter-operator pass."""

import numpy as np
from numpy.typing import NDArray

from tangram_sim.compiling import njit


@njit(cache=True)
def stages_under(
    seconds: NDArray[np.float64],
    limit: NDArray[np.int64],
    devices: NDArray[np.int64],
    total_devices: int,
    held: NDArray[np.int64],
    most: int,
    bound: float,
    microbatches: int,
) -> tuple[int, NDArray[np.int64]]:
    """The fastest stages, none slower than `bound`: (number of stages, rows of first, stop, option).

    See `stages.split` for the arrays. 0 stages: nothing fits.
    """
    layers, options = seconds.shape[0] - 1, seconds.shape[2]
    least = np.full((most + 1, layers + 1, total_devices + 1), np.inf)
    slowest = np.zeros((most + 1, layers + 1, total_devices + 1))
    to = np.zeros((most + 1, layers + 1, total_devices + 1), dtype=np.int64)
    by = np.zeros((most + 1, layers + 1, total_devices + 1), dtype=np.int64)
    least[0, layers, 0] = 0.0
    for s in range(1, most + 1):
        for i in range(layers):
            for j in range(i + 1, layers + 1):
                for o in range(options):
                    cost = seconds[i, j, o]
                    if cost > bound or limit[i, j, o] < held[s]:
                        continue
                    for d in range(devices[o], total_devices + 1):
                        behind = least[s - 1, j, d - devices[o]]
                        if cost + behind < least[s, i, d]:
                            least[s, i, d] = cost + behind
                            slowest[s, i, d] = max(cost, slowest[s - 1, j, d - devices[o]])
                            to[s, i, d], by[s, i, d] = j, o
    path = np.zeros((most + 1, 3), dtype=np.int64)
    chosen, best = 0, np.inf
    for s in range(1, most + 1):
        total = least[s, 0, total_devices] + (microbatches - 1) * slowest[s, 0, total_devices]
        if total < best:
            chosen, best = s, total
    i, d = 0, total_devices
    for place in range(chosen):
        s = chosen - place
        j, o = to[s, i, d], by[s, i, d]
        path[place, 0], path[place, 1], path[place, 2] = i, j, o
        i, d = j, d - devices[o]
    return chosen, path
