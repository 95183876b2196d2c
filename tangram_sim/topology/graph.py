"""The graph's data structure: boxes (scale-up domains, identical ones stored once) joined by a fabric.

A box holds GPUs, scale-up switches, PCIe switches, host bridges and NICs; the fabric holds leaves and spines.
10,000 GPUs in equal nodes are one box and a list of attachments.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from tangram_sim.wiring import Edge, Wire

# Kinds of links that join GPUs directly or over a scale-up switch; PCIe is used where these do not connect.
SCALE_UP = frozenset({"nvlink", "nvlink-bridge", "xgmi", "other"})


Neighbours: TypeAlias = tuple[tuple[tuple[int, int], ...], ...]  # of every vertex: (edge, other vertex)


class GraphParts:
    """Vertices and edges of a graph that is being built."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.kinds: list[str] = []
        self.edges: list[Edge[int]] = []

    def vertex(self, name: str, kind: str) -> int:
        """Add a vertex and return its index."""
        self.names.append(name)
        self.kinds.append(kind)
        return len(self.names) - 1


def _neighbours(vertices: int, edges: Sequence[Edge[int]]) -> Neighbours:
    found: list[list[tuple[int, int]]] = [[] for _ in range(vertices)]
    for index, edge in enumerate(edges):
        found[edge.a].append((index, edge.b))
        found[edge.b].append((index, edge.a))
    return tuple(tuple(item) for item in found)


def _edge_name(names: Sequence[str], edge: Edge[int]) -> str:
    return f"{names[edge.a]} - {names[edge.b]} ({edge.link})"


@dataclass(frozen=True, slots=True)
class Port(Wire):
    """The connection of a NIC to the fabric: the link from its box to the leaf."""

    nic: int  # vertex of the box


@dataclass(frozen=True)
class Box:
    """The graph of one scale-up domain. Vertices are indices; `gpus` are in rank order."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    edges: tuple[Edge[int], ...]
    gpus: tuple[int, ...]
    ports: tuple[Port, ...]
    limits: tuple[tuple[int, float], ...] = ()  # (host bridge, bytes/s of peer traffic it turns around)

    @cached_property
    def _hash(self) -> int:
        return hash((self.names, self.edges, self.ports))

    def __hash__(self) -> int:  # boxes are keys of caches asked thousands of times
        return self._hash

    @cached_property
    def neighbours(self) -> Neighbours:
        """(edge, other vertex) pairs of every vertex."""
        return _neighbours(len(self.names), self.edges)

    def reachable(self, start: int, edges: frozenset[int], without: int = -1) -> frozenset[int]:
        """Vertices connected to `start` by `edges`, without edge `without`."""
        seen, ahead = {start}, [start]
        while ahead:
            for edge, other in self.neighbours[ahead.pop()]:
                if edge in edges and edge != without and other not in seen:
                    seen.add(other)
                    ahead.append(other)
        return frozenset(seen)

    @cached_property
    def scale_up_edges(self) -> frozenset[int]:
        """Edges of scale-up links."""
        return frozenset(index for index, edge in enumerate(self.edges) if edge.kind in SCALE_UP)

    @cached_property
    def host_edges(self) -> frozenset[int]:
        """Edges that are not scale-up links: PCIe, between host bridges, and to NICs."""
        return frozenset(range(len(self.edges))) - self.scale_up_edges

    @cached_property
    def near_side(self) -> Mapping[int, frozenset[int]]:
        """For every edge whose removal disconnects its kind of graph: the vertices on the side of `a`."""
        found = {}
        for edges in (self.scale_up_edges, self.host_edges):
            for index in edges:
                side = self.reachable(self.edges[index].a, edges, without=index)
                if self.edges[index].b not in side:
                    found[index] = side
        return found

    def edge_name(self, index: int) -> str:
        """Name of an edge, e.g. `gpu0 - nvswitch (NVLink4)`."""
        return _edge_name(self.names, self.edges[index])


@dataclass(frozen=True)
class Fabric:
    """The network between boxes: leaves and spines."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    edges: tuple[Edge[int], ...]
    # Stated limits on the traffic of one box with its neighbours under the same vertex: (bytes/s, latency s).
    inside: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def neighbours(self) -> Neighbours:
        """(edge, other vertex) pairs of every vertex."""
        return _neighbours(len(self.names), self.edges)

    def edge_name(self, index: int) -> str:
        """Name of an edge, e.g. `g0/leaf - core (uplink)`."""
        return _edge_name(self.names, self.edges[index])


@dataclass(frozen=True)
class Topology:
    """A cluster's graph. Ranks are numbered box by box, as in the cluster file."""

    name: str
    kinds: tuple[Box, ...]  # the different boxes
    boxes: tuple[int, ...]  # kind of every box
    labels: tuple[str, ...]  # name of every box
    attached: tuple[tuple[int, ...], ...]  # fabric vertex of every port, per box
    fabric: Fabric
    derived: bool

    @cached_property
    def first_rank(self) -> tuple[int, ...]:
        """The first rank of every box, and the number of ranks at the end."""
        found = [0]
        for kind in self.boxes:
            found.append(found[-1] + len(self.kinds[kind].gpus))
        return tuple(found)

    @property
    def gpus(self) -> int:
        """Number of GPUs in the whole graph."""
        return self.first_rank[-1]

    def box_of(self, rank: int) -> int:
        """Index of the box that holds a rank."""
        return bisect_right(self.first_rank, rank) - 1

    def split(self, ranks: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        """Positions of `ranks` inside their boxes, by box."""
        found: dict[int, list[int]] = {}
        for rank in sorted(ranks):
            box = self.box_of(rank)
            found.setdefault(box, []).append(rank - self.first_rank[box])
        return {box: tuple(places) for box, places in found.items()}
