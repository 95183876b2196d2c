"""Compiled search for layer placements: annealing over nodes' ranges of layers, evaluated by maximum flows.

Importing this module imports numba, so it is imported inside functions only.
"""

import numpy as np

from tangram_sim.compiling import njit

_CRUMB = 1e-9  # of the largest capacity: less is no way through


@njit(cache=True)
def placed_flow(first, end, rates, links, layers, left):  # type: ignore[no-untyped-def]
    """Tokens/s that a placement carries, as a maximum flow; `left` is a work matrix of 2 (nodes + 1) rows.

    Vertices: 2i the entrance of node i, 2i + 1 its exit; those of the host are sink and source. Blocking
    flows in level graphs (Dinic, 1970).
    """
    nodes = len(first)
    size, source, sink = 2 * nodes + 2, 2 * nodes + 1, 2 * nodes
    left[:, :] = 0.0
    largest = 0.0
    for i in range(nodes):
        if end[i] <= first[i]:
            continue
        rate = rates[i, end[i] - first[i] - 1]
        left[2 * i, 2 * i + 1] = rate
        largest = max(largest, rate)
        if first[i] == 0:
            left[source, 2 * i] = links[nodes, i]
        if end[i] == layers:
            left[2 * i + 1, sink] = links[i, nodes]
        for j in range(nodes):
            if j != i and first[j] <= end[i] < end[j]:
                left[2 * i + 1, 2 * j] = links[i, j]
    crumb = _CRUMB * largest
    level, following = np.empty(size, np.int64), np.empty(size, np.int64)
    queue, path = np.empty(size, np.int64), np.empty(size, np.int64)
    total = 0.0
    while True:
        level[:] = -1
        level[source] = 0
        queue[0] = source
        begin, stop = 0, 1
        while begin < stop:
            at = queue[begin]
            begin += 1
            for to in range(size):
                if level[to] < 0 and left[at, to] > crumb:
                    level[to] = level[at] + 1
                    queue[stop] = to
                    stop += 1
        if level[sink] < 0:
            return total
        following[:] = 0
        path[0] = source
        depth = 0
        while depth >= 0:
            at = path[depth]
            if at == sink:
                room = np.inf
                for step in range(depth):
                    room = min(room, left[path[step], path[step + 1]])
                back = depth
                for step in range(depth - 1, -1, -1):
                    left[path[step], path[step + 1]] -= room
                    left[path[step + 1], path[step]] += room
                    if left[path[step], path[step + 1]] <= crumb:
                        back = step
                total += room
                depth = back
                continue
            to = following[at]
            while to < size and not (level[to] == level[at] + 1 and left[at, to] > crumb):
                to += 1
            following[at] = to
            if to < size:
                depth += 1
                path[depth] = to
            else:
                depth -= 1
                if depth >= 0:
                    following[path[depth]] += 1


@njit(cache=True)
def anneal(first, end, rates, most, links, layers, ceiling, steps, hot, cold, seed):  # type: ignore[no-untyped-def]
    """Simulated annealing over placements: stores the best one in `first` and `end`, returns its tokens/s.

    A move gives one node another range of layers, which begins or ends where another node's does, or
    exchanges the ranges of two nodes. The objective is the flow plus, with a small weight, how well every
    layer is covered, since many moves do not change the flow. The temperature falls geometrically from `hot`
    to `cold`, as shares of the ceiling.
    """
    np.random.seed(seed)
    nodes = len(first)
    left = np.zeros((2 * nodes + 2, 2 * nodes + 2))
    best_first, best_end = first.copy(), end.copy()
    flow = placed_flow(first, end, rates, links, layers, left)
    best, now = flow, flow + 0.1 * _cover(first, end, rates, layers, ceiling)
    for step in range(steps):
        heat = ceiling * hot * (cold / hot) ** (step / steps)
        i, j = np.random.randint(nodes), -1
        kept = first[i], end[i]
        kept_other = kept
        if np.random.random() < 0.2:
            j = np.random.randint(nodes)
            if end[i] - first[i] > most[j] or end[j] - first[j] > most[i]:
                continue
            kept_other = first[j], end[j]
            first[i], end[i], first[j], end[j] = first[j], end[j], first[i], end[i]
        else:
            other = np.random.randint(nodes)
            chance = np.random.random()
            count = np.random.randint(1, most[i] + 1)
            if chance < 0.35:  # one layer more or less, at either end
                grown = np.random.randint(4)
                first[i] += (-1, 1, 0, 0)[grown]
                end[i] += (0, 0, -1, 1)[grown]
            elif chance < 0.6:
                first[i] = end[other] if end[other] < layers else 0
                end[i] = first[i] + count
            elif chance < 0.85:
                end[i] = first[other] if first[other] > 0 else layers
                first[i] = end[i] - count
            elif chance < 0.95:
                first[i], end[i] = first[other], end[other]
            else:
                first[i] = np.random.randint(layers)
                end[i] = first[i] + count
            first[i], end[i] = max(0, first[i]), min(layers, end[i])
            if not 1 <= end[i] - first[i] <= most[i]:
                first[i], end[i] = kept
                continue
        flow = placed_flow(first, end, rates, links, layers, left)
        tried = flow + 0.1 * _cover(first, end, rates, layers, ceiling)
        if tried >= now or np.random.random() < np.exp((tried - now) / heat):
            now = tried
            if flow > best:
                best = flow
                best_first[:], best_end[:] = first, end
        else:
            if j >= 0:
                first[j], end[j] = kept_other
            first[i], end[i] = kept
    first[:], end[:] = best_first, best_end
    return best


@njit(cache=True)
def _cover(first, end, rates, layers, ceiling):  # type: ignore[no-untyped-def]
    """Mean over layers of the tokens/s that nodes process there, capped at `ceiling` per layer."""
    covered = np.zeros(layers)
    for i in range(len(first)):
        if end[i] > first[i]:
            covered[first[i] : end[i]] += rates[i, end[i] - first[i] - 1]
    return np.minimum(covered, ceiling).mean()
