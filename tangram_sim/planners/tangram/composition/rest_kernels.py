"""Compiled loops of the exact composition: lower bounds on what atoms without a stage can add."""

import numpy as np

from tangram_sim.compiling import njit
from tangram_sim.planners.tangram.composition.play_kernels import (
    FORWARD,
    LATENCY,
    LOSS,
    MOST,
    MOVE,
    OWN,
    REPEATS,
    STAGES,
    Floats,
    Ints,
)


@njit(cache=True)
def still_to_come(
    slice_class: Ints,
    pointers: Ints,
    floats: Floats,
    ints: Ints,
    before: Ints,
    most_behind: float,
    limit_s: float,
    least: Floats,
    stop: int,
) -> None:
    """Fill `least[stop]` of shape (atoms + 1, 4, states); entries below `stop` must be known.

    Lower bounds on what atoms [0, stop) on the remaining nodes add: latency, forward latency, the slowest
    stage's own time plus what is in front of it, and repeats beyond the latency; each minimised separately
    over all placements, so never too high. inf: no placement.
    """
    states = least.shape[2]
    if stop == 0:
        least[0, :3] = 0.0
        least[0, 3] = -np.inf
        return
    mine = least[stop]
    for start in range(stop):
        group = slice_class[start, stop]
        if group < 0:
            continue
        front = least[start]
        for option in range(pointers[group], pointers[group + 1]):
            without = before[ints[option, MOVE]]
            latency, forward, own = floats[option, LATENCY], floats[option, FORWARD], floats[option, OWN]
            ahead = min(most_behind, ints[option, MOST] + ints[option, STAGES] - 1.0)
            repeats = floats[option, REPEATS] - ahead * floats[option, LOSS]
            for state in range(states):
                used, in_front = without[state], front[0, state]
                if used < 0 or own + in_front >= limit_s:
                    continue
                mine[0, used] = min(mine[0, used], latency + in_front)
                mine[1, used] = min(mine[1, used], forward + front[1, state])
                mine[2, used] = min(mine[2, used], max(own + in_front, front[2, state]))
                mine[3, used] = min(mine[3, used], max(repeats, front[3, state]))
