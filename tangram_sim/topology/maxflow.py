"""Maximum flow through a small directed network, and its minimum cut (Ford and Fulkerson, 1956)."""

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from math import inf

Arcs = Mapping[tuple[int, int], float]


def max_flow(arcs: Arcs, source: int, sink: int) -> tuple[float, frozenset[int]]:
    """(bytes/s from `source` to `sink`, vertices on the source's side of the minimum cut).

    `arcs` are capacities by (tail, head). Shortest augmenting paths (Edmonds and Karp, 1972): boxes have at
    most some hundred vertices.
    """
    left: dict[int, dict[int, float]] = {source: {}, sink: {}}
    for (tail, head), capacity in arcs.items():
        left.setdefault(tail, {})[head] = left.setdefault(tail, {}).get(head, 0.0) + capacity
        left.setdefault(head, {}).setdefault(tail, 0.0)
    # Rounding leaves crumbs that are no way through.
    least = 1e-12 * max((rate for rate in arcs.values() if rate < inf), default=0.0)
    total = 0.0
    while True:
        came: dict[int, int] = {source: source}
        ahead = deque([source])
        while ahead and sink not in came:
            vertex = ahead.popleft()
            for other, room in left[vertex].items():
                if room > least and other not in came:
                    came[other] = vertex
                    ahead.append(other)
        if sink not in came:
            return total, frozenset(came)
        path = [sink]
        while path[-1] != source:
            path.append(came[path[-1]])
        path.reverse()
        room = min(left[tail][head] for tail, head in pairwise(path))
        if room == inf:
            return room, frozenset(came)
        for tail, head in pairwise(path):
            left[tail][head] -= room
            left[head][tail] += room
        total += room
