"""Assignment of strategies to layers under one memory limit: the exact program and a two-strategy heuristic.

The problem, for layers l and strategies s with seconds T, bytes M (added up over layers) and transient bytes
U (the largest counts):

    min  sum_l T[l, s_l] + sum_l R[s_(l-1), s_l]
    subject to  sum_l M[l, s_l] + max_l U[l, s_l] <= capacity

Galvatron (arXiv:2211.13878) and OSDP (arXiv:2209.13258) solve it over a table of megabytes; here partial
solutions are kept as lists of undominated (bytes, seconds), so no table grows with memory.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats

_ROUNDING = 1e-12


class MixingProblem(NamedTuple):
    """One instance; T, M and U below are (layers, strategies), R is (strategies, strategies)."""

    seconds: Floats
    held_bytes: Floats
    transient_bytes: Floats
    switch_s: Floats
    capacity_bytes: float


class LayerStrategies(NamedTuple):
    """A strategy for every layer, and their total seconds; no layers: nothing fits."""

    strategies: tuple[int, ...]
    seconds: float


NOTHING = LayerStrategies((), float("inf"))


def exact(program: MixingProblem) -> LayerStrategies:
    """The optimal strategies, by dynamic programming over layers with Pareto lists.

    Every possible value of the largest transient is tried: strategies above it are excluded, and the
    remaining memory is divided among the layers. Nothing slower than the best mix of two strategies is kept.
    """
    best = mix(program)
    for limit in np.unique(program.transient_bytes)[::-1]:
        allowed = program.transient_bytes <= limit
        if not allowed.any(axis=1).all():
            break
        room = program.capacity_bytes - float(limit)
        found = _shared_out(program, allowed, room, best.seconds)
        if found.strategies:
            best = found
    return best


def _shared_out(
    program: MixingProblem, allowed: NDArray[np.bool_], room: float, limit_s: float
) -> LayerStrategies:
    """The optimal choice of allowed strategies within `room` bytes, faster than `limit_s`; else no layers."""
    layers, strategies = program.seconds.shape
    seconds = np.where(allowed, program.seconds, np.inf)
    held = np.where(allowed, program.held_bytes, np.inf)
    # What the layers behind need at least: bytes, seconds.
    least_bytes = np.concatenate([np.cumsum(held.min(axis=1)[::-1])[::-1][1:], [0.0]])
    least_s = np.concatenate([np.cumsum(seconds.min(axis=1)[::-1])[::-1][1:], [0.0]])
    spare = room * (1 + _ROUNDING)
    if least_bytes[0] + held[0].min() > spare or least_s[0] + seconds[0].min() >= limit_s:
        return NOTHING
    prices = _memory_prices(seconds, held)
    priced = [  # per price of memory: least seconds + price * bytes of the layers behind
        np.concatenate([np.cumsum((seconds + price * held).min(axis=1)[::-1])[::-1][1:], [0.0]])
        for price in prices
    ]
    # Per layer and strategy: bytes, seconds, and (strategy, place in its list) before.
    lists: list[list[tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64]]]] = []
    for layer in range(layers):
        row = []
        for strategy in range(strategies):
            if not allowed[layer, strategy]:
                row.append(_none())
                continue
            if layer == 0:
                size, time = np.zeros(1), np.zeros(1)
                who, where = np.full(1, -1), np.full(1, -1)
            else:
                before = lists[-1]
                size = np.concatenate([entry[0] for entry in before])
                time = np.concatenate(
                    [entry[1] + program.switch_s[s, strategy] for s, entry in enumerate(before)]
                )
                who = np.repeat(np.arange(strategies), [len(entry[0]) for entry in before])
                where = np.concatenate([np.arange(len(entry[0])) for entry in before])
            size, time = size + held[layer, strategy], time + seconds[layer, strategy]
            able = (size + least_bytes[layer] <= spare) & (time + least_s[layer] < limit_s)
            for price, behind in zip(prices, priced, strict=True):
                able &= time + behind[layer] - price * (spare - size) < limit_s
            row.append(_front(size[able], time[able], who[able], where[able]))
        lists.append(row)
    ends = [(float(entry[1][-1]), s) for s, entry in enumerate(lists[-1]) if len(entry[1])]
    if not ends:
        return NOTHING
    total, strategy = min(ends)
    place, chosen = len(lists[-1][strategy][1]) - 1, []
    for layer in range(layers - 1, -1, -1):
        chosen.append(strategy)
        entry = lists[layer][strategy]
        strategy, place = int(entry[2][place]), int(entry[3][place])
    return LayerStrategies(tuple(reversed(chosen)), total)


def _memory_prices(seconds: Floats, held: Floats) -> list[float]:
    """Several prices of memory in seconds per byte; each gives a valid (Lagrangian) bound."""
    layer = int(np.argmax(np.ptp(np.where(np.isfinite(held), held, 0.0), axis=1)))
    able = np.isfinite(held[layer])
    size, time = held[layer][able], seconds[layer][able]
    gain = (time[:, None] - time[None, :]) / np.maximum(size[None, :] - size[:, None], 1.0)
    rates = np.unique(gain[(size[None, :] > size[:, None]) & (gain > 0)])
    return [float(rate) for rate in rates[:: max(1, len(rates) // 8)]]


def _none() -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64]]:
    empty = np.zeros(0, dtype=np.int64)
    return np.zeros(0), np.zeros(0), empty, empty


def _front(
    size: Floats, time: Floats, who: NDArray[np.int64], where: NDArray[np.int64]
) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Entries not dominated in bytes and seconds, by ascending bytes (descending seconds)."""
    if not len(size):
        return _none()
    order = np.lexsort((time, size))
    least = np.minimum.accumulate(time[order])
    kept = order[np.concatenate([[True], least[1:] < least[:-1]])]
    return size[kept], time[kept], who[kept], where[kept]


def mix(program: MixingProblem) -> LayerStrategies:
    """The best assignment that changes strategy at most once along the layers.

    For equal layers the relaxed problem has an optimum of two strategies, so little is lost: see
    docs/models/parallelizers.md for how much on random instances.
    """
    from tangram_sim.parallelizers.kernels import best_mix

    layers = len(program.seconds)

    def ahead(values: Floats) -> Floats:
        start = np.zeros((1, values.shape[1]))
        return np.ascontiguousarray(np.concatenate([start, np.cumsum(values, axis=0)]).T)

    def behind(values: Floats) -> Floats:
        return ahead(values)[:, -1:] - ahead(values)

    transient = program.transient_bytes
    zero = np.zeros((1, transient.shape[1]))
    largest = np.concatenate([zero, np.maximum.accumulate(transient)]).T
    rest = np.concatenate([np.maximum.accumulate(transient[::-1])[::-1], zero]).T
    p, q, n, seconds = best_mix(
        front_s=ahead(program.seconds),
        front_bytes=ahead(program.held_bytes),
        front_transient=np.ascontiguousarray(largest),
        back_s=np.ascontiguousarray(behind(program.seconds)),
        back_bytes=np.ascontiguousarray(behind(program.held_bytes)),
        back_transient=np.ascontiguousarray(rest),
        switch_s=program.switch_s,
        capacity=program.capacity_bytes,
    )
    return LayerStrategies((p,) * n + (q,) * (layers - n), seconds) if p >= 0 else NOTHING
