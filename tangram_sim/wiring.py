"""Interconnect graph as a cluster file states it: vertices, edges, shape of the fabric. No I/O, no search.

A cluster without a stated graph gets one derived from its node types (`tangram_sim.topology`).
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

End = TypeVar("End")

FABRIC_KINDS = frozenset({"leaf", "spine"})


@dataclass(frozen=True, slots=True)
class Vertex:
    """A GPU, switch, host bridge (socket), NIC, leaf or spine."""

    name: str
    kind: str  # gpu, nvswitch (any scale-up switch), pcie-switch, host, nic, leaf or spine
    # Peer traffic that a host bridge turns around among its own devices, one direction; 0 = not limited.
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wire:
    """A link; each direction has its own rate, which may be infinite."""

    link: str  # class of the link, a row of `hwdb/links.csv` or of the file's own hardware
    kind: str  # of that class: nvlink, nvlink-bridge, xgmi, pcie, network, other
    bytes_per_s: float  # away from its first end
    back_bytes_per_s: float
    latency_s: float

    def between(self, a: End, b: End) -> "Edge[End]":
        """The same link between two vertices."""
        return Edge(self.link, self.kind, self.bytes_per_s, self.back_bytes_per_s, self.latency_s, a=a, b=b)


@dataclass(frozen=True, slots=True)
class Edge(Wire, Generic[End]):
    """A link from vertex `a` to vertex `b`, given by names in files and by index in a graph."""

    a: End
    b: End


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a cluster file says of its graph: all of it, or the shape of the derived fabric."""

    vertices: tuple[Vertex, ...] = ()
    edges: tuple[Edge[str], ...] = ()
    rails: bool = False  # NICs of equal index share a leaf
    leaf_nodes: int = 0  # nodes under one leaf (or one set of rail leaves); 0 = the whole group
    leaf_oversubscription: float = 1.0  # summed NIC rate under a leaf over its uplinks

    @property
    def full(self) -> bool:
        """Whether vertices and edges are stated, so that nothing is derived."""
        return bool(self.vertices)


DERIVED = Wiring()  # nothing stated: the graph follows from the node rows
