"""A derived graph written out vertex by vertex, so that it can be edited, e.g. to remove a link."""

from math import inf

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError
from tangram_sim.topology.derive import topology_of
from tangram_sim.wiring import Edge, Vertex, Wiring

MOST_GPUS = 2048  # a person edits this


def full_wiring(cluster: Cluster) -> Wiring:
    """The cluster's graph in the form in which a cluster file states it.

    Raises BadInputError for graphs too large to write out, and for stated limits inside a group, which are
    not edges.
    """
    topology = topology_of(cluster)
    if not topology.derived:
        return cluster.wiring
    if topology.gpus > MOST_GPUS:
        raise BadInputError(f"{topology.gpus} GPUs; graphs of {MOST_GPUS} or fewer are written out in full")
    if topology.fabric.inside:
        raise BadInputError(
            "network.between limits traffic inside a group: such a limit is no edge, drop it first"
        )
    vertices: list[Vertex] = []
    edges: list[Edge[str]] = []
    used: set[int] = set()
    for number, kind in enumerate(topology.boxes):
        box, limits = topology.kinds[kind], dict(topology.kinds[kind].limits)
        names = [f"{number}/{name}" for name in box.names]
        vertices += [
            Vertex(name, what, limits.get(index, 0.0))
            for index, (name, what) in enumerate(zip(names, box.kinds, strict=True))
        ]
        edges += [edge.between(names[edge.a], names[edge.b]) for edge in box.edges]
        if len(topology.boxes) > 1:
            for port, leaf in zip(box.ports, topology.attached[number], strict=True):
                used.add(leaf)
                edges.append(port.between(names[port.nic], topology.fabric.names[leaf]))
    fabric = topology.fabric
    if used:
        vertices += [Vertex(name, kind) for name, kind in zip(fabric.names, fabric.kinds, strict=True)]
    edges += [
        edge.between(fabric.names[edge.a], fabric.names[edge.b])
        for edge in fabric.edges
        if used and edge.bytes_per_s < inf
    ]
    return Wiring(tuple(vertices), tuple(edges))
