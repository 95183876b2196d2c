"""Compiled loops of the bound on fleets: the cheapest chain of stages, and undominated rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangram_sim.compiling import njit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@njit(cache=True)
def passages(slice_class: Ints, row_ptr: Ints, seconds: Floats) -> Any:
    """Least seconds of the atoms before every atom, and of those from it on, over all stages."""
    atoms = slice_class.shape[0] - 1
    least = np.full(len(row_ptr) - 1, np.inf)
    for group in range(len(row_ptr) - 1):
        for row in range(row_ptr[group], row_ptr[group + 1]):
            least[group] = min(least[group], seconds[row])
    front, back = np.full(atoms + 1, np.inf), np.full(atoms + 1, np.inf)
    front[0] = back[atoms] = 0.0
    for stop in range(1, atoms + 1):
        for start in range(stop):
            group = slice_class[start, stop]
            if group >= 0:
                front[stop] = min(front[stop], front[start] + least[group])
    for start in range(atoms - 1, -1, -1):
        for stop in range(start + 1, atoms + 1):
            group = slice_class[start, stop]
            if group >= 0:
                back[start] = min(back[start], least[group] + back[stop])
    return front, back


@njit(cache=True)
def cheapest(
    slice_class: Ints,  # (atoms + 1, atoms + 1): class of atoms [start, stop), -1 none
    row_ptr: Ints,  # (classes + 1): rows of a class
    kinds: Ints,  # (rows)
    price: Floats,  # (rows): of the GPUs of one sequence in flight
    seconds: Floats,  # (rows): forward and backward of one microbatch
    backward_s: Floats,  # (rows)
    closing_s: Floats,  # (rows): from its last microbatch on, where gradients leave the domain
    behind: Floats,  # (rows): most stages behind
    sequences: Floats,  # (rows): of the replica
    beside: Floats,  # (rows): sequences per second of the same slice that the rest of the domain does
    front_s: Floats,  # (atoms + 1): least passage of what is in front
    back_s: Floats,  # (atoms + 1): least passage of what is behind
    front_forward_s: Floats,  # (atoms + 1): forward alone
    front_price: Floats,  # (atoms + 1): least price of what is in front
    batch: float,
    within_s: float,  # the step
    pace_s: float,  # no stage is slower, what it hides while others begin left out
    fewest: float,  # microbatches
    most: float,
    all_forward_first: bool,  # GPipe
    per_price: float,
    per_second: float,  # 1 or 0
    limit: float,  # chains that cost more are of no use
    most_kinds: int,
    depths: int,  # stages behind that are told apart; more count as the last
) -> Any:
    """Find the chain of stages over all atoms with the least `per_price` x price + `per_second` x seconds.

    A stage is excluded where it cannot be part of a step of `within_s`: its own work after what is in front,
    one microbatch through all stages with its other passes, and gradients that leave its scale-up domain
    after them. They need not leave where the domain processes the slice for all sequences of the batch. A
    stage with `j` stages behind does up to min(j, microbatches - 1) forwards while it waits for its first
    backward. Returns the value (inf: no chain), the prices by kind, and the number of rows examined.
    """
    atoms, others = slice_class.shape[0] - 1, fewest - 1.0
    value = per_price * price + per_second * seconds
    # Rows that a chain of this range may hold.
    order = np.empty(len(value), np.int64)
    first_of = np.empty(len(row_ptr), np.int64)
    count = 0
    for group in range(len(row_ptr) - 1):
        first_of[group] = count
        for row in range(row_ptr[group], row_ptr[group + 1]):
            if (
                batch * price[row] <= most * (1.0 + 1e-9)
                and backward_s[row] <= pace_s
                and fewest * seconds[row] <= within_s
            ):
                order[count] = row
                count += 1
    first_of[len(row_ptr) - 1] = count
    sorted_to = first_of[:-1].copy()  # the cheapest of a class come first, as far as anybody asked
    # What is in front of an atom costs so much at least, whatever is behind.
    ahead = np.full(atoms + 1, np.inf)
    ahead[0] = 0.0
    cheap = np.full(len(row_ptr) - 1, np.inf)
    for group in range(len(row_ptr) - 1):
        for place in range(first_of[group], first_of[group + 1]):
            cheap[group] = min(cheap[group], value[order[place]])
    for stop in range(1, atoms + 1):
        for start in range(stop):
            if slice_class[start, stop] >= 0:
                ahead[stop] = min(ahead[stop], ahead[start] + cheap[slice_class[start, stop]])
    best = np.full((atoms + 1, depths + 1), np.inf)
    stop_of = np.full((atoms + 1, depths + 1), -1, np.int64)
    after = np.full((atoms + 1, depths + 1), -1, np.int64)  # depth behind
    chosen = np.full((atoms + 1, depths + 1), -1, np.int64)
    best[atoms, 0] = 0.0
    low, high = np.full(atoms + 1, depths + 1), np.full(atoms + 1, -1)  # depths that were reached
    low[atoms] = high[atoms] = 0
    for start in range(atoms - 1, -1, -1):
        for stop in range(start + 1, atoms + 1):
            group = slice_class[start, stop]
            if group < 0 or first_of[group] == first_of[group + 1]:
                continue
            for depth in range(low[stop], high[stop] + 1):
                now = min(depth + 1, depths)
                if best[stop, depth] + cheap[group] >= min(best[start, now], limit - ahead[start]):
                    continue
                hidden, held = 0.0, others
                if not all_forward_first:
                    at_most = depth if depth < depths else atoms - stop
                    hidden = 1.0 if others <= at_most else at_most / others
                    held = min(float(depth), others)
                elif start == 0 and stop == atoms:
                    held = 0.0  # one stage is no pipeline
                for place in range(first_of[group], first_of[group + 1]):
                    if place == sorted_to[group]:
                        least = place
                        for other in range(place + 1, first_of[group + 1]):
                            if value[order[other]] < value[order[least]]:
                                least = other
                        order[place], order[least] = order[least], order[place]
                        sorted_to[group] += 1
                    row = order[place]
                    if best[stop, depth] + value[row] >= min(best[start, now], limit - ahead[start]):
                        break
                    paced = seconds[row] * (1.0 - hidden) + backward_s[row] * hidden
                    # What is behind passes no sooner than alone, nor than what it may still pay for allows.
                    paid = most / batch - price[row] - front_price[start]
                    passing = max(back_s[stop], per_second * (best[stop, depth] - per_price * paid))
                    passing += others * paced
                    if (
                        behind[row] < held
                        or paced > pace_s
                        or front_s[start] + fewest * seconds[row] > within_s
                        or front_s[start] + seconds[row] + passing > within_s
                    ):
                        continue
                    left = batch - (within_s - front_s[start]) * beside[row]  # for this replica
                    if most * sequences[row] < left and (
                        front_forward_s[start] + passing + closing_s[row] > within_s
                    ):
                        continue
                    best[start, now] = best[stop, depth] + value[row]
                    low[start], high[start] = min(low[start], now), max(high[start], now)
                    stop_of[start, now], after[start, now], chosen[start, now] = stop, depth, row
                    break
    shares = np.zeros(most_kinds)
    depth = int(np.argmin(best[0]))
    found = best[0, depth]
    start = 0
    while found < np.inf and start < atoms:
        row = chosen[start, depth]
        shares[kinds[row]] += price[row]
        start, depth = stop_of[start, depth], after[start, depth]
    return found, shares, count


@njit(cache=True)
def unbeaten(row_ptr: Ints, costs: Floats) -> Any:
    """Mask of rows that no other row of their class dominates in all costs; of equal rows the last is kept.

    A row that dominates another has no larger sum of costs, so rows are compared only with kept rows of
    smaller sums: these dominate whatever the dropped rows dominate.
    """
    kept = np.zeros(len(costs), np.bool_)
    sums = np.zeros(len(costs))
    for row in range(len(costs)):
        for column in range(costs.shape[1]):
            sums[row] += costs[row, column]
    survivors = np.empty(len(costs), np.int64)
    for group in range(len(row_ptr) - 1):
        first, last = row_ptr[group], row_ptr[group + 1]
        count = 0
        for mine in last - 1 - np.argsort(sums[first:last][::-1], kind="mergesort"):
            beaten = False
            for place in range(count):
                other, beaten = survivors[place], True
                for column in range(costs.shape[1]):
                    if costs[other, column] > costs[mine, column]:
                        beaten = False
                        break
                if beaten:
                    break
            if not beaten:
                survivors[count] = mine
                count += 1
        for place in range(count):
            kept[survivors[place]] = True
    return kept
