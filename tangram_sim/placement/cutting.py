"""Cutting nodes into islands: the three constraints of Tangram on plain arrays, without clusters or names.

An island S is a set of nodes such that (arXiv:2606.16907, section on GPU islands)
1. all nodes have the same shape (GPUs per node, ...), and over the whole set max/min of compute and of memory
   stay within the tolerances;
2. max/min of intra-node bandwidth stays within its tolerance;
3. for a, b in S and c outside S: e(a, b) >= e(a, c): no node has a faster link leaving S than to any member.
   For a single node this holds vacuously: it has no link inside.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_sim.placement.tolerances import Tolerances as Tolerances  # noqa: PLC0414 - of the cut

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Properties that decide whether nodes are alike, one entry per node; zero means "has none of it"."""

    shape: Ints  # (nodes, shapes): exact properties, like GPUs per node
    compute: Floats  # (nodes,) flop/s of one GPU
    memory: Floats  # (nodes,) bytes of one GPU
    intra: Floats  # (nodes, links) bytes/s between GPUs of the node

    @property
    def columns(self) -> Floats:
        """(nodes, 2 + links): all properties that have a tolerance."""
        return np.column_stack([self.compute, self.memory, self.intra])

    def limits(self, tolerances: Tolerances) -> Floats:
        """(2 + links,): the largest allowed max/min of each column, with room for rounding."""
        each = (tolerances.compute, tolerances.memory, *[tolerances.intra] * self.intra.shape[1])
        return (1.0 + np.array(each)) * (1.0 + 1e-12)


class Obstacle(NamedTuple):
    """Reason why two islands cannot be merged: the violated constraint and the two values that differ."""

    constraint: str  # shape, compute, memory, intra or network
    column: int  # which shape or link
    high: float
    low: float
    outside: int = -1  # network: the node outside to which a member has the faster link


class _Cutter:
    """Input of one cut, and tests of node sets."""

    def __init__(self, metrics: NodeMetrics, bandwidth: Floats, tolerances: Tolerances) -> None:
        self.shape = metrics.shape
        self.columns = metrics.columns
        self.limits = metrics.limits(tolerances)
        self.bandwidth = bandwidth
        self.n = len(bandwidth)

    def spread(self, nodes: Sequence[int] | Ints) -> Obstacle | None:
        """The first violation of constraint 1 or 2 by a set of nodes; None if there is none."""
        members = np.asarray(nodes)
        if len(members) == 1:
            return None
        shapes = self.shape[members]
        for column in range(shapes.shape[1]):
            low, high = int(shapes[:, column].min()), int(shapes[:, column].max())
            if low != high:
                return Obstacle("shape", column, high, low)
        lows, highs = self.columns[members].min(axis=0), self.columns[members].max(axis=0)
        for column in np.flatnonzero(highs > lows * self.limits).tolist():
            kind = ("compute", "memory")[column] if column < 2 else "intra"
            return Obstacle(kind, max(column - 2, 0), float(highs[column]), float(lows[column]))
        return None

    def network(self, nodes: Sequence[int] | Ints) -> Obstacle | None:
        """The first violation of constraint 3 by a set of nodes; None if there is none."""
        members = np.asarray(nodes)
        if len(members) in (1, self.n):
            return None
        inside = np.zeros(self.n, dtype=bool)
        inside[members] = True
        links = self.bandwidth[members]
        own = np.where(inside, links, np.inf)
        own[np.arange(len(members)), members] = np.inf
        leaving = np.where(inside, -np.inf, links)
        low, high = own.min(axis=1), leaving.max(axis=1)
        worst = int(np.argmax(high - low))
        if high[worst] <= low[worst]:
            return None
        return Obstacle("network", 0, float(high[worst]), float(low[worst]), int(np.argmax(leaving[worst])))

    def valid(self, nodes: Sequence[int] | Ints) -> bool:
        """Whether a set of nodes satisfies all constraints of an island."""
        return self.spread(nodes) is None and self.network(nodes) is None


def obstacle(
    metrics: NodeMetrics, bandwidth: Floats, tolerances: Tolerances, nodes: Sequence[int]
) -> Obstacle | None:
    """The first constraint that `nodes` would violate as one island; None if they form one."""
    cutter = _Cutter(metrics, bandwidth, tolerances)
    return cutter.spread(nodes) or cutter.network(nodes)


def cut(metrics: NodeMetrics, bandwidth: Floats, tolerances: Tolerances) -> list[list[int]]:
    """Islands as sorted lists of nodes, in the order of their first nodes.

    `bandwidth` is the symmetric (nodes, nodes) matrix of bytes/s; its diagonal is ignored.

    Agglomerative clustering from the fastest links down. A set that satisfies constraint 3 is, when the first
    link leaving it is reached, one connected component of the links so far: so the components of each
    distinct bandwidth (single linkage) contain every candidate, and where no two bandwidths tie, the largest
    valid components are the fewest islands possible. With ties (a uniform network) any union of the joined
    components satisfies constraint 3; these are grouped by shape, compute, memory and intra-node bandwidth,
    and one island more than the fewest is possible (in 1 of 100 random matrices full of ties). At the end no
    two islands can be merged. The result does not depend on the order of nodes, except for the choice among
    mirror images.
    """
    order = _canonical_order(metrics, bandwidth)
    ordered = NodeMetrics(
        metrics.shape[order], metrics.compute[order], metrics.memory[order], metrics.intra[order]
    )
    cutter = _Cutter(ordered, bandwidth[np.ix_(order, order)], tolerances)
    islands = _merge_pairs(cutter, _agglomerate(cutter))
    return sorted(sorted(int(order[node]) for node in island) for island in islands)


def _canonical_order(metrics: NodeMetrics, bandwidth: Floats) -> Ints:
    """Node indices in a canonical order, best first, so that the cut does not depend on file order.

    Colour refinement (Weisfeiler and Leman): a node's colour starts as its properties and is refined, round
    by round, by the colours of all others and the bandwidth to them, until no colour splits further.
    """
    n = len(bandwidth)
    figures = np.column_stack([metrics.shape.astype(np.float64), metrics.columns])
    colour = np.unique(-figures, axis=0, return_inverse=True)[1].reshape(-1)
    linked = np.where(np.eye(n, dtype=bool), np.inf, bandwidth)
    rates = np.unique(linked)
    rank = len(rates) - 1 - np.searchsorted(rates, linked)
    colours = 0
    while colours < int(colour.max()) + 1 < n:
        colours = int(colour.max()) + 1
        pairs = colour * len(rates) + rank
        small = np.uint16 if pairs.max() <= np.iinfo(np.uint16).max else np.int64  # sorted ten times as fast
        seen = np.sort(pairs.astype(small), axis=1, kind="stable")
        colour = _ranked(np.column_stack([colour.astype(small), seen]))
    return np.argsort(colour, kind="stable").astype(np.int64)


def _ranked(rows: NDArray[np.integer[Any]]) -> Ints:
    """Rank of every row among the distinct rows in ascending order; entries must not be negative."""
    largest_first = rows.dtype.newbyteorder(">")  # compared byte by byte, which is number by number
    texts = [row.tobytes() for row in rows.astype(largest_first)]
    place = {text: index for index, text in enumerate(sorted(set(texts)))}
    return np.array([place[text] for text in texts], dtype=np.int64)


def _agglomerate(cutter: _Cutter) -> list[list[int]]:
    """The best islands found among connected components of the links, fastest links first."""
    n = cutter.n
    component = np.arange(n)
    best: dict[int, list[list[int]]] = {node: [[node]] for node in range(n)}
    members: dict[int, list[int]] = {node: [node] for node in range(n)}
    for level, rows, columns in _levels(cutter.bandwidth):
        linked = np.unique(np.column_stack([component[rows], component[columns]]), axis=0)
        for joined in _connected(linked[linked[:, 0] != linked[:, 1]]):
            union = sorted(node for child in joined for node in members[child])
            islands = _join(cutter, joined, members, best, level)
            first = joined[0]
            for child in joined:
                component[members[child]] = first
                del members[child], best[child]
            members[first], best[first] = union, islands
        if len(members) == 1:
            break
    return [island for islands in best.values() for island in islands]


def _levels(bandwidth: Floats) -> Iterator[tuple[float, Ints, Ints]]:
    """Yields (bytes/s, nodes, nodes): links of a maximum spanning tree by distinct bandwidth, fastest first.

    Down to any bandwidth such a tree connects the same nodes as all links do.
    """
    nodes, parents = _spanning_tree(bandwidth)
    rates = bandwidth[nodes, parents]
    order = np.argsort(-rates, kind="stable")
    starts = np.flatnonzero(np.diff(rates[order], prepend=np.nan))
    for links in np.split(order, starts[1:]) if len(order) else ():
        yield float(rates[links[0]]), nodes[links], parents[links]


def _spanning_tree(bandwidth: Floats) -> tuple[Ints, Ints]:
    """(nodes but the first, the node that each is connected to by the fastest link), by Prim's algorithm."""
    waiting = np.arange(1, len(bandwidth))
    fastest, parent = bandwidth[0, 1:].copy(), np.zeros(len(waiting), dtype=np.int64)
    nodes, parents = np.empty_like(waiting), np.empty_like(waiting)
    for done in range(len(nodes)):
        best = int(np.argmax(fastest))
        node = nodes[done] = waiting[best]
        parents[done] = parent[best]
        last = len(waiting) - 1  # takes the place of the node that is tied
        waiting[best], fastest[best], parent[best] = waiting[last], fastest[last], parent[last]
        waiting, fastest, parent = waiting[:last], fastest[:last], parent[:last]
        links = bandwidth[node, waiting]
        faster = links > fastest
        fastest[faster], parent[faster] = links[faster], node
    return nodes, parents


def _connected(edges: Ints) -> list[list[int]]:
    """Connected components (of at least two nodes) of a graph given by its edges (edges, 2)."""
    names, ends = np.unique(edges, return_inverse=True)
    ends = ends.reshape(-1, 2)
    linked = np.zeros((len(names), len(names)), dtype=bool)
    linked[ends[:, 0], ends[:, 1]] = linked[ends[:, 1], ends[:, 0]] = True
    waiting, components = np.ones(len(names), dtype=bool), []
    while waiting.any():
        fresh = np.arange(len(names)) == np.argmax(waiting)
        component = fresh
        while fresh.any():
            fresh = linked[fresh].any(axis=0) & ~component
            component = component | fresh
        waiting &= ~component
        components.append(names[component].tolist())
    return components


def _join(
    cutter: _Cutter,
    joined: list[int],
    members: dict[int, list[int]],
    best: dict[int, list[list[int]]],
    level: float,
) -> list[list[int]]:
    """The fewest islands found for the union of components that links of one bandwidth join."""
    union = sorted(node for child in joined for node in members[child])
    if cutter.valid(union):
        return [union]
    uniform = [child for child in joined if cutter.spread(members[child]) is None]
    islands = [island for child in joined if child not in uniform for island in best[child]]
    for alike in _alike(cutter, uniform, members):
        # Alike components that only a stranger links are no island together: take them as they are linked.
        for part in _linked_parts(cutter, alike, members, level):
            nodes = sorted(node for child in part for node in members[child])
            if len(part) > 1 and cutter.valid(nodes):
                islands.append(nodes)
            else:
                islands += [island for child in part for island in best[child]]
    return islands


def _linked_parts(
    cutter: _Cutter, alike: list[int], members: dict[int, list[int]], level: float
) -> list[list[int]]:
    nodes = [node for child in alike for node in members[child]]
    starts = np.cumsum([0, *(len(members[child]) for child in alike[:-1])])
    reached = cutter.bandwidth[np.ix_(nodes, nodes)] >= level
    for axis in (0, 1):
        reached = np.logical_or.reduceat(reached, starts, axis=axis)
    parts = _connected(np.array(alike)[np.argwhere(np.triu(reached, 1))].reshape(-1, 2))
    linked = {child for part in parts for child in part}
    return parts + [[child] for child in alike if child not in linked]


def _alike(cutter: _Cutter, children: list[int], members: dict[int, list[int]]) -> Iterator[list[int]]:
    """Yields groups of children with one shape and, metric by metric, with values within the limits. For one
    metric this gives the fewest groups: each takes as many as allowed, from the largest value down, and
    limits hold over whole groups, not only between neighbours."""
    groups: list[list[int]] = []
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for child in children:
        by_shape.setdefault(tuple(cutter.shape[members[child][0]].tolist()), []).append(child)
    groups = [by_shape[shape] for shape in sorted(by_shape)]
    figures = {child: cutter.columns[members[child]] for child in children}
    highs = {child: own.max(axis=0).tolist() for child, own in figures.items()}
    lows = {child: own.min(axis=0).tolist() for child, own in figures.items()}
    for column in range(cutter.columns.shape[1]):
        finer: list[list[int]] = []
        for group in groups:
            top = 0.0
            current: list[int] = []
            for falling, child in sorted((-highs[child][column], child) for child in group):
                if current and top > lows[child][column] * cutter.limits[column]:
                    finer.append(current)
                    current = []
                top = top if current else -falling
                current.append(child)
            finer.append(current)
        groups = finer
    yield from groups


def _merge_pairs(cutter: _Cutter, islands: list[list[int]]) -> list[list[int]]:
    """Islands after merging pairs that may be one, fastest links between them first, until none is left."""
    islands = sorted(sorted(island) for island in islands)
    while True:
        pair = next(
            (pair for pair in _candidates(cutter, islands) if cutter.network(_union(islands, pair)) is None),
            None,
        )
        if pair is None:
            return islands
        merged = sorted(_union(islands, pair))
        islands = sorted([*(island for index, island in enumerate(islands) if index not in pair), merged])


def _union(islands: list[list[int]], pair: tuple[int, int]) -> list[int]:
    return islands[pair[0]] + islands[pair[1]]


def _candidates(cutter: _Cutter, islands: list[list[int]]) -> list[tuple[int, int]]:
    """Pairs of similar islands that are joined by the fastest link leaving each (constraint 3 needs that)."""
    count = len(islands)
    lows = np.array([cutter.columns[island].min(axis=0) for island in islands])
    highs = np.array([cutter.columns[island].max(axis=0) for island in islands])
    shapes = np.array([cutter.shape[island[0]] for island in islands])
    alike = (np.maximum(highs[:, None], highs) <= np.minimum(lows[:, None], lows) * cutter.limits).all(axis=2)
    alike &= (shapes[:, None] == shapes).all(axis=2)
    member = np.empty(cutter.n, dtype=np.int64)
    for index, island in enumerate(islands):
        member[island] = index
    reach = np.zeros((count, count), dtype=bool)
    for index, island in enumerate(islands):
        links = np.where(member == index, -np.inf, cutter.bandwidth[island[0]])
        reach[index, member[links == links.max()]] = True
    pairs = [(int(a), int(b)) for a, b in np.argwhere(alike & reach & reach.T) if a < b]
    speed = {(a, b): float(cutter.bandwidth[np.ix_(islands[a], islands[b])].min()) for a, b in pairs}
    return sorted(pairs, key=lambda pair: (-speed[pair], pair))
