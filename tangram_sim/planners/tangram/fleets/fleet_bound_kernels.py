"""Compiled loops of the bound on fleets: the cheapest chain of stages, and options that no other beats."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangram_sim.compiling import njit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@njit(cache=True)
def cheapest(
    slice_class: Ints,  # (atoms + 1, atoms + 1): class of atoms [start, stop), -1 none
    option_ptr: Ints,  # (classes + 1): options of a class
    kinds: Ints,  # (options): islands
    price: Floats,  # (options): of the GPUs of one sequence in flight
    seconds: Floats,  # (options): forward and backward of one microbatch
    behind: Ints,  # (options): most stages behind
    within_s: float,  # no stage works longer
    pace_s: float,  # no stage is slower, what it hides while others begin left out
    microbatches: float,  # at least so many
    per_price: float,
    per_second: float,
    most_islands: int,
    depths: int,  # stages behind that are told apart; more count as the last
) -> Any:
    """The chain of stages that places every atom at the least `per_price` x price + `per_second` x seconds.

    A stage with `j` stages behind does up to min(j, microbatches - 1) forwards, which take no longer than
    their backwards, while it waits for its first backward: what is left counts against the pace. Returns the
    value (inf: no chain) and the prices by island.
    """
    atoms, classes = slice_class.shape[0] - 1, len(option_ptr) - 1
    others = microbatches - 1.0
    least = np.full((classes, depths), np.inf)
    chosen = np.full((classes, depths), -1, np.int64)
    for group in range(classes):
        for option in range(option_ptr[group], option_ptr[group + 1]):
            if microbatches * seconds[option] > within_s:
                continue
            value = per_price * price[option] + per_second * seconds[option]
            for depth in range(depths):
                if value >= least[group, depth]:
                    continue
                if depth > behind[option] and others > behind[option]:
                    break
                hidden = 1.0
                if depth < depths - 1 and others > depth:
                    hidden = depth / others
                elif depth == depths - 1 and others > atoms:
                    hidden = atoms / others
                if seconds[option] * (1.0 - 0.5 * hidden) <= pace_s:
                    least[group, depth] = value
                    chosen[group, depth] = option
    best = np.full((atoms + 1, depths + 1), np.inf)
    stop_of = np.full((atoms + 1, depths + 1), -1, np.int64)
    after = np.full((atoms + 1, depths + 1), -1, np.int64)  # depth behind
    best[atoms, 0] = 0.0
    for start in range(atoms - 1, -1, -1):
        for stop in range(start + 1, atoms + 1):
            group = slice_class[start, stop]
            if group < 0:
                continue
            for depth in range(depths + 1):
                stage = min(depth, depths - 1)
                value = best[stop, depth] + least[group, stage]
                now = min(depth + 1, depths)
                if value < best[start, now]:
                    best[start, now] = value
                    stop_of[start, now] = stop
                    after[start, now] = depth
    shares = np.zeros(most_islands)
    depth = int(np.argmin(best[0]))
    value = best[0, depth]
    start = 0
    while value < np.inf and start < atoms:
        stop, behind_it = stop_of[start, depth], after[start, depth]
        option = chosen[slice_class[start, stop], min(behind_it, depths - 1)]
        shares[kinds[option]] += price[option]
        start, depth = stop, behind_it
    return value, shares


@njit(cache=True)
def unbeaten(option_ptr: Ints, price: Floats, seconds: Floats, behind: Ints) -> Any:
    """Which options no other of their class beats in all of what `cheapest` reads."""
    kept = np.ones(len(price), np.bool_)
    for group in range(len(option_ptr) - 1):
        for mine in range(option_ptr[group], option_ptr[group + 1]):
            for other in range(option_ptr[group], option_ptr[group + 1]):
                if (
                    other != mine
                    and kept[other]
                    and price[other] <= price[mine]
                    and seconds[other] <= seconds[mine]
                    and behind[other] >= behind[mine]
                ):
                    kept[mine] = False
                    break
    return kept
