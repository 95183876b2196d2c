"""The graph of a cluster: of its node rows and network section, or as its file states it."""

from functools import lru_cache

from tangram_sim.clusters import Cluster
from tangram_sim.topology.forms import box_of
from tangram_sim.topology.given import stated_topology
from tangram_sim.topology.graph import Box, Fabric, GraphParts, Topology
from tangram_sim.wiring import Wire


@lru_cache(maxsize=64)
def topology_of(cluster: Cluster) -> Topology:
    """The cluster's graph; equal nodes share one box. BadInputError for a stated graph that is torn."""
    if cluster.wiring.full:
        return stated_topology(cluster)
    kinds: list[Box] = []
    known: dict[tuple[object, int], int] = {}
    boxes: list[int] = []
    labels: list[str] = []
    attached: list[tuple[int, ...]] = []
    net = _Net(cluster)
    for index, group in enumerate(cluster.groups):
        node, left, number = group.node, group.count, 0
        while left:
            together = min(node.scale_up_nodes, left)
            key = (node, together)
            if key not in known:
                known[key] = len(kinds)
                kinds.append(box_of(node, together))
            boxes.append(known[key])
            nodes = range(number, number + together)
            inside = f"node {number}" if together == 1 else f"nodes {number} to {number + together - 1}"
            labels.append(f"{group.name} {inside}")
            attached.append(tuple(net.leaf(index, item, nic) for item in nodes for nic in range(node.nics)))
            left, number = left - together, number + together
    return Topology(
        cluster.name, tuple(kinds), tuple(boxes), tuple(labels), tuple(attached), net.fabric(), derived=True
    )


class _Net(GraphParts):
    """Leaves of every group, an uplink per group, limits between groups."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.inside: dict[int, tuple[float, float]] = {}
        self._leaves: list[list[int]] = []
        many = len(cluster.groups) > 1
        tops = [self._group(index) for index in range(len(cluster.groups))]
        if many:
            core = self.vertex("core", "spine")
            for index, top in enumerate(tops):
                self._edge(top, core, "uplink", self._uplink(index))
        for limit in cluster.network.between:
            a, b = limit.groups
            if a == b:
                continue
            # Traffic between these two takes its own road behind both uplinks.
            latency = max(cluster.groups[index].node.nic_latency_s for index in (a, b))
            rate = min(limit.bytes_per_s, self._uplink(a), self._uplink(b))
            extra = max(limit.latency_s - latency, 0.0)
            self._edge(tops[a], tops[b], "stated limit", rate, extra)

    def _uplink(self, index: int) -> float:
        group = self.cluster.groups[index]
        return group.count * group.node.nic_bytes_per_s / self.cluster.network.oversubscription

    def _group(self, index: int) -> int:
        """The leaves of one group; the vertex that its other groups are reached from."""
        wiring, group = self.cluster.wiring, self.cluster.groups[index]
        nodes = wiring.leaf_nodes or group.count
        pods = -(-group.count // nodes)
        rails = group.node.nics if wiring.rails else 1
        names = [
            f"{group.name}/leaf" + (f"{pod}" if pods > 1 else "") + (f".rail{rail}" if rails > 1 else "")
            for pod in range(pods)
            for rail in range(rails)
        ]
        leaves = [self.vertex(name, "leaf") for name in names]
        self._leaves.append(leaves)
        own = [limit for limit in self.cluster.network.between if limit.groups == (index, index)]
        if own:
            rate = min(limit.bytes_per_s for limit in own)
            latency = max(limit.latency_s for limit in own)
            for leaf in leaves:
                self.inside[leaf] = rate / rails, max(latency - group.node.nic_latency_s, 0.0)
        if len(leaves) == 1:
            return leaves[0]
        spine = self.vertex(f"{group.name}/spine", "spine")
        for leaf in leaves:
            below = min(nodes, group.count) * group.node.nic_bytes_per_s / rails
            self._edge(leaf, spine, "leaf uplink", below / wiring.leaf_oversubscription)
        return spine

    def leaf(self, group: int, node: int, nic: int) -> int:
        """The leaf that a NIC of a node of a group is plugged into."""
        wiring, leaves = self.cluster.wiring, self._leaves[group]
        rails = self.cluster.groups[group].node.nics if wiring.rails else 1
        pod = node // wiring.leaf_nodes if wiring.leaf_nodes else 0
        return leaves[pod * rails + nic % rails]

    def fabric(self) -> Fabric:
        return Fabric(tuple(self.names), tuple(self.kinds), tuple(self.edges), self.inside)

    def _edge(self, a: int, b: int, link: str, rate: float, latency_s: float = 0.0) -> None:
        self.edges.append(Wire(link, "network", rate, rate, latency_s).between(a, b))
