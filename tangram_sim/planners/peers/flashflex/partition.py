"""Balanced partition of a weighted graph into k parts with the least cut.

The problem that METIS solves (Karypis and Kumar, SIAM J. Sci. Comput. 20, 1998) on graphs whose vertices come
in classes of equal ones: the GPUs of a machine. A partition is therefore a table of counts, and the search
moves and swaps counts (Kernighan and Lin, Bell Syst. Tech. J. 49, 1970): 1,024 GPUs are some 128 columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]  # (parts, classes): vertices of each class in each part

TOLERANCE = 1.03  # heaviest part over the mean one, as METIS's default; more where vertices are too coarse
_SWEEPS = 8  # over all pairs of parts
_LARGE = 16  # parts, from which on one sweep has to do
_HUGE = 2_000_000  # pairs of parts times pairs of classes, beyond which parts stay as they were dealt


@dataclass(frozen=True, eq=False)
class DeviceGraph:
    """A complete graph whose vertices are grouped into classes of identical ones."""

    counts: Counts  # (classes,) vertices of each class
    weights: Floats  # (classes,) of one vertex
    edges: Floats  # (classes, classes) between two vertices, symmetric; the diagonal is inside a class

    @property
    def vertices(self) -> list[int]:
        """The class of every vertex, heaviest vertices first."""
        order = np.argsort(-self.weights, kind="stable")
        return [int(item) for item in np.repeat(order, self.counts[order])]


def cut(graph: DeviceGraph, parts: Counts) -> float:
    """Weight of all edges between different parts."""
    return _inside(graph, graph.counts[None, :]) - _inside(graph, parts)


def _inside(graph: DeviceGraph, parts: Counts) -> float:
    pairs = ((parts @ graph.edges) * parts).sum() - (parts @ np.diag(graph.edges)).sum()
    return float(pairs) / 2.0


def heaviest_allowed(graph: DeviceGraph, k: int) -> float:
    """Largest weight allowed for a part: TOLERANCE x the mean, or that of `deal`, heaviest first."""
    mean = float(graph.counts @ graph.weights) / k
    dealt = deal(graph, k, graph.vertices) @ graph.weights
    return max(mean * TOLERANCE, float(dealt.max())) * (1.0 + 1e-9)


def partition(graph: DeviceGraph, k: int) -> Counts:
    """k non-empty parts with a small cut, none heavier than allowed: (k, classes) counts of vertices.

    Three starting partitions (two ways to deal, and `packed`) are improved by moves and swaps, since these
    stop at the first local optimum. Raises ValueError for more parts than vertices.
    """
    limit = heaviest_allowed(graph, k)
    vertices = graph.vertices
    # One class after the other spreads every class over the parts, by turns mixes them.
    by_class = sorted(vertices)
    starts = [deal(graph, k, vertices), deal(graph, k, _by_turns(by_class)), packed(graph, k)]
    huge = k * k * len(graph.counts) ** 2 > _HUGE
    found = starts if huge else [refined(graph, start, limit) for start in starts]
    within = [parts for parts in found if float((parts @ graph.weights).max()) <= limit] or found[:1]
    return min(within, key=lambda parts: (cut(graph, parts), parts.tolist()))


def deal(graph: DeviceGraph, k: int, vertices: Sequence[int]) -> Counts:
    """Each vertex in turn to the lightest part; ties go to the part with the most edge weight to it."""
    if k > len(vertices):
        raise ValueError(f"{k} parts of {len(vertices)} vertices: none may be empty")
    parts = np.zeros((k, len(graph.counts)), dtype=np.int64)
    loads, ties = np.zeros(k), np.zeros((k, len(graph.counts)))
    slack = 1e-9 * float(graph.weights.max())
    for vertex in vertices:
        lightest = np.flatnonzero(loads <= loads.min() + slack)
        part = int(lightest[np.argmax(ties[lightest, vertex])])
        parts[part, vertex] += 1
        loads[part] += graph.weights[vertex]
        ties[part] += graph.edges[vertex]
    return parts


def packed(graph: DeviceGraph, k: int) -> Counts:
    """Fill one part after the other with vertices, class by class, up to about the mean weight."""
    order = sorted(graph.vertices)
    parts = np.zeros((k, len(graph.counts)), dtype=np.int64)
    mean, part, load = float(graph.counts @ graph.weights) / k, 0, 0.0
    for number, item in enumerate(order):
        filled = load > 0 and load + graph.weights[item] / 2 > mean
        left = len(order) - number  # no later part may stay empty
        if part < k - 1 and load > 0 and (filled or left <= k - 1 - part):
            part, load = part + 1, 0.0
        parts[part, item] += 1
        load += float(graph.weights[item])
    return parts


def _by_turns(vertices: Sequence[int]) -> list[int]:
    """Vertices reordered so that the classes alternate as long as they last: 0 0 1 1 2 -> 0 1 2 0 1."""
    seen: dict[int, int] = {}
    keys = []
    for vertex in vertices:
        seen[vertex] = seen.get(vertex, 0) + 1
        keys.append((seen[vertex], vertex))
    return [item for _, item in sorted(keys)]


def refined(graph: DeviceGraph, start: Counts, limit: float) -> Counts:
    """A partition improved by the best move or swap between each two parts, until no step reduces the cut."""
    parts, k = start.copy(), len(start)
    loads, ties = parts @ graph.weights, parts @ graph.edges
    own = np.diag(graph.edges)
    eps = 1e-9 * float(np.abs(graph.edges).max())
    for _ in range(_SWEEPS if k < _LARGE else 1):
        improved = False
        for a in range(k):
            for b in range(a + 1, k):
                while True:
                    step = _best_step(graph, parts, loads, ties, own, pair=(a, b), limit=limit, eps=eps)
                    if step is None:
                        break
                    for source, target, item in step:
                        parts[source, item] -= 1
                        parts[target, item] += 1
                        loads[source] -= graph.weights[item]
                        loads[target] += graph.weights[item]
                        ties[source] -= graph.edges[item]
                        ties[target] += graph.edges[item]
                    improved = True
        if not improved:
            break
    return parts


Step = list[tuple[int, int, int]]  # (from part, to part, class)


def _best_step(
    graph: DeviceGraph,
    parts: Counts,
    loads: Floats,
    ties: Floats,
    own: Floats,
    pair: tuple[int, int],
    limit: float,
    eps: float,
) -> Step | None:
    """The move or swap between two parts that reduces the cut most; None where none gains more than `eps`.

    A part that is too heavy may stay so, as long as the step does not make the heavier of the two heavier.
    """
    a, b = pair
    weights = graph.weights
    most = max(limit, float(loads[a]), float(loads[b])) + 1e-12
    leave = np.where(parts[a] > 0, ties[b] - ties[a] + own, -np.inf)  # gain of one vertex from a to b
    enter = np.where(parts[b] > 0, ties[a] - ties[b] + own, -np.inf)
    swaps = leave[:, None] + enter[None, :] - 2.0 * graph.edges
    shift = weights[None, :] - weights[:, None]  # what part a gains by a swap
    allowed = (loads[a] + shift <= most) & (loads[b] - shift <= most)
    np.fill_diagonal(allowed, val=False)
    swaps = np.where(allowed, swaps, -np.inf)
    place = int(np.argmax(swaps))
    options: list[tuple[float, Step]] = []
    if np.isfinite(swaps.flat[place]):
        i, j = divmod(place, swaps.shape[1])
        options.append((float(swaps.flat[place]), [(a, b, i), (b, a, j)]))
    for source, target, gains in ((a, b, leave), (b, a, enter)):
        if parts[source].sum() > 1:
            gains = np.where(loads[target] + weights <= most, gains, -np.inf)
            item = int(np.argmax(gains))
            options.append((float(gains[item]), [(source, target, item)]))
    gain, step = max(options, key=lambda option: option[0], default=(0.0, []))
    return step if gain > eps else None
