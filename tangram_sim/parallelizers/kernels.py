"""Compiled loops of the parallelizers."""

import numpy as np
from numpy.typing import NDArray

from tangram_sim.compiling import njit


@njit(cache=True)
def pareto(costs: NDArray[np.float64], feasible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask of feasible rows of `costs` (n, criteria), to be minimised, that no other feasible row dominates.

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


@njit(cache=True)
def pareto_each(costs: NDArray[np.float64], able: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`pareto` for every one of many tables: costs (n, rows, criteria), able (n, rows)."""
    kept = np.empty(able.shape, np.bool_)
    for table in range(len(costs)):
        chosen = pareto(costs[table], able[table])
        for row in range(able.shape[1]):
            kept[table, row] = chosen[row]
    return kept


@njit(cache=True)
def filled(weights: NDArray[np.float64], limit: float, cuts: NDArray[np.int64]) -> bool:
    """Fill runs from the back up to `limit` each, leaving an atom for every run in front; whether all atoms
    fit. Writes the boundaries to `cuts` (runs + 1)."""
    runs = len(cuts) - 1
    cuts[runs] = len(weights)
    for front in range(runs - 1, -1, -1):
        begin, total = cuts[front + 1], 0.0
        while begin > front and total + weights[begin - 1] <= limit:
            begin -= 1
            total += weights[begin]
        if begin == cuts[front + 1]:
            return False
        cuts[front] = begin
    return bool(cuts[0] == 0)


@njit(cache=True)
def balanced(weights: NDArray[np.float64], depth: int) -> NDArray[np.int64]:
    """Boundaries (depth + 1) of runs of atoms whose largest sum of weights is as small as possible."""
    low = high = 0.0
    for weight in weights:
        low, high = max(low, weight), high + weight
    best, tried = np.empty(depth + 1, np.int64), np.empty(depth + 1, np.int64)
    filled(weights, high, best)  # one run of everything fits the sum
    for _ in range(30):
        middle = (low + high) / 2
        if filled(weights, middle, tried):
            high = middle
            for place in range(depth + 1):
                best[place] = tried[place]
        else:
            low = middle
    return best


@njit(cache=True)
def best_mix(
    front_s: NDArray[np.float64],
    front_bytes: NDArray[np.float64],
    front_transient: NDArray[np.float64],
    back_s: NDArray[np.float64],
    back_bytes: NDArray[np.float64],
    back_transient: NDArray[np.float64],
    switch_s: NDArray[np.float64],
    capacity: float,
) -> tuple[int, int, int, float]:
    """The fastest feasible plan of at most two runs: (front strategy, back strategy, blocks, seconds).

    `front_*[p, n]` is the slice up to block `n` under strategy p, `back_*[q, n]` the rest from block n, both
    (strategies, blocks + 1) with the slice's ends; `front[p, blocks]` is the whole slice. -1 where none fits.
    """
    strategies, blocks = front_s.shape[0], front_s.shape[1] - 1
    best_p, best_q, best_n, best = -1, -1, -1, np.inf
    for p in range(strategies):
        if front_s[p, blocks] < best and front_bytes[p, blocks] + front_transient[p, blocks] <= capacity:
            best_p, best_q, best_n, best = p, p, blocks, front_s[p, blocks]
    for p in range(strategies):
        for q in range(strategies):
            if p == q:
                continue
            for n in range(1, blocks):
                seconds = front_s[p, n] + switch_s[p, q] + back_s[q, n]
                if seconds >= best:
                    continue
                held = front_bytes[p, n] + back_bytes[q, n]
                if held + max(front_transient[p, n], back_transient[q, n]) <= capacity:
                    best_p, best_q, best_n, best = p, q, n, seconds
    return best_p, best_q, best_n, best


@njit(cache=True)
def best_split(
    front_s: NDArray[np.float64],
    front_tail_s: NDArray[np.float64],
    front_static: NDArray[np.float64],
    front_activation: NDArray[np.float64],
    front_transient: NDArray[np.float64],
    back_s: NDArray[np.float64],
    back_tail_s: NDArray[np.float64],
    back_static: NDArray[np.float64],
    back_activation: NDArray[np.float64],
    back_transient: NDArray[np.float64],
    switch_s: NDArray[np.float64],
    p: int,
    q: int,
    held: int,
    microbatches: int,
    capacity: float,
) -> tuple[int, float, float, float]:
    """The fastest way to give the first blocks strategy `p` and the others strategy `q`.

    `front_*` and `back_*` as in `Sides`, (strategies, blocks + 1). Returns (blocks under the first, seconds
    of a microbatch, seconds once per step, bytes missing): the fastest that fits, else the one that lacks the
    fewest bytes.
    """
    blocks = front_s.shape[1] - 1
    best_n, best, best_tail, least = 0, np.inf, 0.0, np.inf
    fastest = np.inf
    for n in range(blocks + 1):
        seconds, tail = front_s[p, n] + back_s[q, n], front_tail_s[p, n] + back_tail_s[q, n]
        transient = max(front_transient[p, n], back_transient[q, n])
        if 0 < n < blocks:
            seconds += switch_s[p, q]
        held_bytes = (
            front_static[p, n] + back_static[q, n] + held * (front_activation[p, n] + back_activation[q, n])
        )
        short = max(held_bytes + transient - capacity, 0.0)
        cost = seconds + tail / microbatches
        if short < least or (short == least and cost < fastest):
            best_n, best, best_tail, least, fastest = n, seconds, tail, short, cost
    return best_n, best, best_tail, least
