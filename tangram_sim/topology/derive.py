"""The graph of a cluster: of its node rows and network section, or as its file states it, held to both."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError
from tangram_sim.topology.forms import box_of
from tangram_sim.topology.graph import Box, Fabric, GraphParts, Port, Topology
from tangram_sim.wiring import FABRIC_KINDS, Edge, Vertex, Wire


def stated_topology(cluster: Cluster) -> Topology:
    """The graph of a cluster whose file states vertices and edges.

    GPUs are ranked in the order they are listed. What stays joined when the network's edges (to leaves and
    spines, or from NIC to NIC) are cut is one box. Raises BadInputError for vertices that contradict the
    cluster, GPUs of one box that are not listed together, and GPUs that no path joins.
    """
    where = f"cluster {cluster.name}: topology"
    vertices, edges = cluster.wiring.vertices, cluster.wiring.edges
    place = {vertex.name: index for index, vertex in enumerate(vertices)}
    gpus = [index for index, vertex in enumerate(vertices) if vertex.kind == "gpu"]
    if len(gpus) != cluster.gpus:
        raise BadInputError(
            f"{where}: {len(gpus)} vertices of kind gpu; nodes list {cluster.gpus} GPUs. "
            "List each once, in rank order"
        )
    _hold_together(vertices, edges, place, gpus, where)
    fabric_of = _fabric_vertices(vertices)
    inner = [edge for edge in edges if not _network(edge, vertices, place)]
    component = _components(len(vertices), [(place[edge.a], place[edge.b]) for edge in inner])
    order: dict[int, int] = {}
    for gpu in gpus:
        order.setdefault(component[gpu], len(order))
    walked = [order[component[gpu]] for gpu in gpus]
    for before, after, gpu in zip(walked, walked[1:], gpus[1:], strict=False):
        if after < before:
            raise BadInputError(
                f"{where}: {vertices[gpu].name} is joined to GPUs listed before those of another box; "
                "list the GPUs of a box one after the other"
            )
    kinds: list[Box] = []
    boxes, labels, attached = list[int](), list[str](), list[tuple[int, ...]]()
    for root, number in order.items():
        members = [index for index in range(len(vertices)) if component[index] == root]
        box, leaves = _box(members, vertices, edges, inner, place, fabric_of)
        if box not in kinds:
            kinds.append(box)
        boxes.append(kinds.index(box))
        labels.append(f"box {number} ({vertices[members[0]].name}, ...)")
        attached.append(leaves)
    topology = Topology(
        cluster.name,
        tuple(kinds),
        tuple(boxes),
        tuple(labels),
        tuple(attached),
        _fabric(vertices, edges, place, fabric_of),
        derived=False,
    )
    for label, kind in zip(topology.labels, topology.boxes, strict=True):
        if len(topology.boxes) > 1 and not topology.kinds[kind].ports:
            raise BadInputError(f"{where}: {label} has no NIC that leads to a leaf, a spine or another NIC")
    return topology


def _network(edge: Edge[str], vertices: Sequence[Vertex], place: dict[str, int]) -> bool:
    ends = [vertices[place[name]].kind for name in (edge.a, edge.b)]
    return bool(FABRIC_KINDS & set(ends)) or ends == ["nic", "nic"]


def _fabric_vertices(vertices: Sequence[Vertex]) -> dict[int, int]:
    """Number in the fabric of every leaf and spine, and of every NIC (cables from NIC to NIC end there)."""
    kept = [
        index for index, vertex in enumerate(vertices) if vertex.kind in FABRIC_KINDS or vertex.kind == "nic"
    ]
    return {index: number for number, index in enumerate(kept)}


def _components(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """A representative of the connected component of every vertex."""
    parent = list(range(count))

    def root(vertex: int) -> int:
        while parent[vertex] != vertex:
            parent[vertex] = parent[parent[vertex]]
            vertex = parent[vertex]
        return vertex

    for a, b in pairs:
        parent[root(a)] = root(b)
    return [root(vertex) for vertex in range(count)]


def _box(
    members: Sequence[int],
    vertices: Sequence[Vertex],
    edges: Sequence[Edge[str]],
    inner: Sequence[Edge[str]],
    place: dict[str, int],
    fabric_of: dict[int, int],
) -> tuple[Box, tuple[int, ...]]:
    """One box with names that equal boxes share, and where its NICs are plugged in."""
    local = {index: number for number, index in enumerate(members)}
    counts: dict[str, int] = {}
    names = []
    for index in members:
        kind = vertices[index].kind
        names.append(f"{kind}{counts.setdefault(kind, 0)}")
        counts[kind] += 1
    kept = tuple(
        edge.between(local[place[edge.a]], local[place[edge.b]]) for edge in inner if place[edge.a] in local
    )
    ports, leaves = [], []
    for edge in edges:
        ends = place[edge.a], place[edge.b]
        for nic, other, out, back in (
            (ends[0], ends[1], edge.bytes_per_s, edge.back_bytes_per_s),
            (ends[1], ends[0], edge.back_bytes_per_s, edge.bytes_per_s),
        ):
            if nic in local and vertices[nic].kind == "nic" and other in fabric_of:
                ports.append(Port(edge.link, "network", out, back, edge.latency_s, local[nic]))
                # A cable between two NICs: both ends meet at one vertex, the NIC that the edge names first.
                cable = vertices[other].kind == "nic"
                leaves.append(fabric_of[ends[0]] if cable else fabric_of[other])
    box = Box(
        tuple(names),
        tuple(vertices[index].kind for index in members),
        kept,
        tuple(local[index] for index in members if vertices[index].kind == "gpu"),
        tuple(ports),
        tuple(
            (local[index], vertices[index].bytes_per_s) for index in members if vertices[index].bytes_per_s
        ),
    )
    return box, tuple(leaves)


def _fabric(
    vertices: Sequence[Vertex], edges: Sequence[Edge[str]], place: dict[str, int], fabric_of: dict[int, int]
) -> Fabric:
    kept = []
    for edge in edges:
        a, b = place[edge.a], place[edge.b]
        if vertices[a].kind in FABRIC_KINDS and vertices[b].kind in FABRIC_KINDS:
            kept.append(replace(edge, kind="network").between(fabric_of[a], fabric_of[b]))
    return Fabric(
        tuple(vertices[index].name for index in fabric_of),
        tuple(vertices[index].kind for index in fabric_of),
        tuple(kept),
    )


def _hold_together(
    vertices: Sequence[Vertex],
    edges: Sequence[Edge[str]],
    place: dict[str, int],
    gpus: Sequence[int],
    where: str,
) -> None:
    """Raise unless a path joins all GPUs."""
    component = _components(len(vertices), [(place[edge.a], place[edge.b]) for edge in edges])
    apart = [gpu for gpu in gpus if component[gpu] != component[gpus[0]]]
    if apart:
        shown = ", ".join(vertices[gpu].name for gpu in apart[:4]) + (", ..." if len(apart) > 4 else "")
        raise BadInputError(
            f"{where}: no path joins {vertices[gpus[0]].name} to {len(apart)} GPUs ({shown}); "
            "add the missing edges"
        )


@lru_cache(maxsize=64)
def topology_of(cluster: Cluster) -> Topology:
    """The cluster's graph; identical nodes share one box. Raises BadInputError if it is disconnected."""
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
    """The fabric of a derived graph: leaves of every group, an uplink per group, limits between groups."""

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
        """Add the leaves of one group; returns the vertex through which other groups reach it."""
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
