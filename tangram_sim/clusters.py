"""Hardware: GPUs, links, nodes, clusters and the islands they are cut into. No I/O, no search.

Every bandwidth is bytes per second in one direction; peaks are dense with fp32 accumulation.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from tangram_sim.fields import described, fact, stated
from tangram_sim.health import HEALTHY, Health
from tangram_sim.naming import require_text
from tangram_sim.wiring import DERIVED, Wiring


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as software sees it (an MI250X is two). Source of each row: `hwdb/gpus.csv`."""

    name: str
    vendor: str
    architecture: str
    peaks: tuple[tuple[str, float], ...]  # (dtype, flop/s), only the dtypes that have units
    memory_bytes: float
    memory_bytes_per_s: float
    power_w: float = 0.0
    measured: bool = False  # efficiency rows rest on this device's own measurements

    def __post_init__(self) -> None:
        for text in (self.name, self.vendor, self.architecture):
            require_text(text, "GPU:")

    def peak_flop_per_s(self, dtype: str) -> float:
        """Dense peak of `dtype`, 0.0 where the device has no units for it (never another dtype's)."""
        return dict(self.peaks).get(dtype, 0.0)

    def slowed(self, compute: float, memory: float = 1.0) -> "Gpu":
        """This GPU slowed by a factor `compute` in everything, and its memory by another factor `memory`."""
        if compute == memory == 1.0:
            return self
        peaks = tuple((dtype, peak / compute) for dtype, peak in self.peaks)
        return replace(self, peaks=peaks, memory_bytes_per_s=self.memory_bytes_per_s / (compute * memory))


@dataclass(frozen=True, slots=True)
class Link:
    """A class of links. Source: `hwdb/links.csv`."""

    name: str
    kind: str  # nvlink, nvlink-bridge, xgmi, pcie, network, none
    bytes_per_s: float  # per GPU (scale-up) or per port (network), one direction
    latency_s: float

    def __post_init__(self) -> None:
        require_text(self.name, "link:")


@dataclass(frozen=True, slots=True)
class Node:
    """One machine: equal GPUs on one intra-node link class, behind some NICs."""

    gpu: Gpu
    gpus: int
    intra: Link
    nic_bytes_per_s: float  # all NICs of the node together
    nics: int = 1
    nic_latency_s: float = 10e-6
    scale_up_nodes: int = 1  # nodes that share one scale-up domain (18 trays of an NVL72 rack)
    bridges: tuple[tuple[int, int], ...] = ()  # GPU pairs joined by `bridge` beside `intra`
    bridge: Link | None = None
    host: str = ""
    labels: tuple[str, ...] = ()
    usd_per_hour: float = 0.0  # per node; 0 = not stated
    power_w: float = 0.0  # per node; 0 = not stated
    name: str = ""  # the hwdb row it came from, if any
    sockets: int = 0  # host bridges; 0 = as usual for the form of node
    pcie_switches: int = -1  # between GPUs, NICs and host bridges; -1 = as usual for the form of node

    def __post_init__(self) -> None:
        for text in (self.name, self.host, *self.labels):
            require_text(text, "node:")


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """`count` equal nodes, as a cluster file lists them. Groups are named g0, g1, ... in file order."""

    name: str
    count: int
    node: Node


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """A limit on all traffic between two groups."""

    groups: tuple[int, int]
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Network:
    """The network between nodes: NICs, an uplink per group, limits between groups."""

    oversubscription: float = 1.0  # summed NIC rate of a group over its uplink
    between: tuple[GroupLimit, ...] = ()


@described
@dataclass(frozen=True)
class Cluster:
    """Groups of equal nodes and the network between them; nodes are numbered in file order."""

    name: str = field(metadata=stated("What it is called: a shipped name, its file's, or its nodes'."))
    groups: tuple[NodeGroup, ...] = field(
        metadata=stated("Groups of equal nodes, named g0, g1, ... in file order.")
    )
    network: Network = fact(Network(), "Uplinks of groups, and limits between them.")
    wiring: Wiring = fact(
        DERIVED, "What its file says of the graph of links; nothing: derived from its nodes."
    )
    health: Health = fact(HEALTHY, "What runs slower than its hardware rows say.")

    def __post_init__(self) -> None:
        require_text(self.name, "cluster:")

    @cached_property
    def first_rank(self) -> tuple[int, ...]:
        """The first rank of every node, and the number of ranks at the end; ranks count GPUs node by node."""
        ranks = [0]
        for group in self.node_group:
            ranks.append(ranks[-1] + self.groups[group].node.gpus)
        return tuple(ranks)

    @cached_property
    def _slow_gpus(self) -> tuple[dict[int, float], dict[int, float]]:
        return dict(self.health.compute), dict(self.health.memory)

    @cached_property
    def _slow_nics(self) -> dict[int, float]:
        return dict(self.health.network)

    def gpu_of(self, node: int, ranks: Iterable[int] | None = None) -> Gpu:
        """The slowest of some GPUs of a node as they run now; default: of all of them."""
        gpu = self.groups[self.node_group[node]].node.gpu
        if not (self.health.compute or self.health.memory):
            return gpu
        among = range(*self.first_rank[node : node + 2]) if ranks is None else tuple(ranks)
        compute, memory = (max(known.get(rank, 1.0) for rank in among) for known in self._slow_gpus)
        return gpu.slowed(compute, memory)

    def nic_of(self, node: int) -> float:
        """Present bytes/s of all NICs of a node together, one direction."""
        rate = self.groups[self.node_group[node]].node.nic_bytes_per_s
        return rate / self._slow_nics.get(node, 1.0)

    @cached_property
    def node_group(self) -> tuple[int, ...]:
        """Index of the group of every node, in node order."""
        return tuple(index for index, group in enumerate(self.groups) for _ in range(group.count))

    def kinds_of(self, ranks: Iterable[int]) -> tuple[Gpu, ...]:
        """The kinds of GPUs, healthy, that these ranks are on: each once, in the order of their nodes."""
        nodes = sorted({bisect_right(self.first_rank, rank) - 1 for rank in ranks})
        return tuple(dict.fromkeys(self.groups[self.node_group[node]].node.gpu for node in nodes))

    @cached_property
    def gpus(self) -> int:
        """GPUs in the whole cluster."""
        return sum(group.count * group.node.gpus for group in self.groups)

    def group_limit(self, a: int, b: int) -> tuple[float, float]:
        """(bytes/s, latency s) that all traffic between groups `a` and `b` shares.

        Between different groups: the slower uplink and any limit stated. Within one group: the
        uplink does not apply (leaf switch), so the limit is infinite.
        """
        latency = max(self.groups[a].node.nic_latency_s, self.groups[b].node.nic_latency_s)
        if a == b:
            limits = [limit for limit in self.network.between if limit.groups == (a, a)]
            rate = float("inf")
        else:
            limits = [limit for limit in self.network.between if set(limit.groups) == {a, b}]
            rate = min(
                self.groups[index].count * self.groups[index].node.nic_bytes_per_s for index in (a, b)
            ) / (self.network.oversubscription)
        for limit in limits:
            rate, latency = min(rate, limit.bytes_per_s), max(latency, limit.latency_s)
        return rate, latency


@dataclass(frozen=True, slots=True)
class PathRates:
    """Bytes/s reached by the worst of several groups that communicate at once, from a stated graph.

    Infinite where nothing of that kind limits: rings inside for groups of one rank per scale-up domain,
    crossing for groups inside one domain.
    """

    inside: int  # fewest members in one scale-up domain
    ring_bytes_per_s: float  # among the members of one domain
    exchange_bytes_per_s: float  # of an all-to-all among them, per rank
    crossing_bytes_per_s: float  # of a ring, out of all members in one domain
    leaving_bytes_per_s: float  # of an all-to-all, out of one rank
    hop_inside_s: float
    hop_outside_s: float


class Paths(Protocol):
    """Rates on the stated graph for the ranks of an island; equal objects give equal rates."""

    def part(self, nodes: int, gpus_per_node: int) -> "Paths":
        """Paths of `nodes` of the island's nodes, `gpus_per_node` GPUs of each, at their worst place."""

    def rates(self, ranks: int, stride: int) -> PathRates:
        """Groups of `ranks` members `stride` apart, all of them communicating at once."""


def domain_block(nodes: int, domain_nodes: int) -> int:
    """Nodes that a job of `nodes` takes in each scale-up domain of `domain_nodes`.

    All, where one domain is enough. Else equal blocks that fill more than half of a domain if there are such
    (a power of two takes 16 of the 18 trays of an NVL72 rack), so that groups of ranks need not straddle
    domains; and full domains where there are none.
    """
    if nodes <= domain_nodes:
        return nodes
    blocks = (size for size in range(domain_nodes, domain_nodes // 2, -1) if nodes % size == 0)
    return next(blocks, domain_nodes)


@dataclass(frozen=True, slots=True)
class Island:
    """GPUs equal within tolerance, whole nodes, one class of links; figures are the worst member's.

    Also the unit that a slice is priced on: a part of an island (fewer nodes, or a share of one
    node's GPUs) is itself an Island, made by `part`.
    """

    name: str
    gpu: Gpu  # element-wise worst member
    nodes: int
    gpus_per_node: int
    intra: Link
    nic_bytes_per_s: float  # per node, for the GPUs of this island
    nic_latency_s: float
    network_bytes_per_s: float = float("inf")  # limit of one node-to-node flow inside the island
    scale_up_nodes: int = 1
    bridge: Link | None = None  # set when GPUs are joined in pairs inside the node
    groups: tuple[int, ...] = ()  # indices of the node groups it covers
    node_indices: tuple[int, ...] = ()
    reason: str = ""
    paths: Paths | None = None  # set where the cluster states its graph: groups get what its paths deliver

    @property
    def gpus(self) -> int:
        """GPUs in the island."""
        return self.nodes * self.gpus_per_node

    def part(self, nodes: int, gpus_per_node: int | None = None) -> "Island":
        """The first `nodes` nodes of this island, or a share of the GPUs of each, with its NIC share."""
        share = gpus_per_node or self.gpus_per_node
        return replace(
            self,
            nodes=nodes,
            gpus_per_node=share,
            nic_bytes_per_s=self.nic_bytes_per_s * share / self.gpus_per_node,
            node_indices=self.node_indices[:nodes],
            paths=self.paths and self.paths.part(nodes, share),
        )

    def anonymous(self) -> "Island":
        """This island without its name and place, so that equal parts of different islands compare equal."""
        return replace(self, name=self.gpu.name, groups=(), node_indices=(), reason="")
