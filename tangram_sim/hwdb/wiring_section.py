"""The `topology` section of a cluster file: reading it, and writing a self-contained one."""

from collections.abc import Callable
from typing import Any

from tangram_sim.clusters import Link
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb.cluster_schema import EdgeIn, TopologyIn
from tangram_sim.units import GIGA, MEGA, inverse
from tangram_sim.wiring import Edge, Vertex, Wiring


def wiring_of(given: TopologyIn, link: Callable[[str, str], Link], where: str) -> Wiring:
    """The wiring of a file's `topology`. `link` finds a link class by name (and the key that names it).

    Raises BadInputError for a name given twice, an edge without bandwidth or to a vertex that is not listed,
    a graph without vertices, a fabric's parameters beside a full graph; UnknownNameError for unknown links.
    """
    key = f"{where}: topology"
    if given.edges and not given.vertices:
        raise BadInputError(f"{key}.edges are given without vertices; list the vertices too")
    if not given.vertices:
        return Wiring((), (), given.rails, given.leaf_nodes, float(given.leaf_oversubscription))
    if given.rails or given.leaf_nodes or given.leaf_oversubscription > 1:
        raise BadInputError(
            f"{key}: rails, leaf_nodes and leaf_oversubscription shape a derived fabric; "
            "with vertices and edges, state its leaves as such"
        )
    names: set[str] = set()
    for index, vertex in enumerate(given.vertices):
        if vertex.name in names:
            raise BadInputError(f"{key}.vertices[{index}].name: {vertex.name!r} given twice")
        names.add(vertex.name)
        if vertex.gb_per_s is not None and vertex.kind != "host":
            raise BadInputError(
                f"{key}.vertices[{index}].gb_per_s: {vertex.name} is of kind {vertex.kind}; "
                "only host bridges have it"
            )
    vertices = tuple(
        Vertex(vertex.name, vertex.kind, (vertex.gb_per_s or 0.0) * GIGA) for vertex in given.vertices
    )
    edges = tuple(_edge(edge, names, link, f"{key}.edges[{index}]") for index, edge in enumerate(given.edges))
    return Wiring(vertices, edges)


def _edge(edge: EdgeIn, names: set[str], link: Callable[[str, str], Link], key: str) -> Edge[str]:
    a, b = edge.ends
    for end in edge.ends:
        if end not in names:
            raise unknown_name("vertex", end, names, f"{key}.ends names it; list it under vertices.")
    if a == b:
        raise BadInputError(f"{key}.ends: {a!r} given twice; an edge joins two vertices")
    if edge.kind is None or edge.gb_per_s is None:
        found = link(edge.link, f"{key}.link")
    else:  # figures that stand alone need no class
        found = Link(edge.link, edge.kind, edge.gb_per_s * GIGA, 0.0)
    rate = found.bytes_per_s if edge.gb_per_s is None else edge.gb_per_s * GIGA
    back = rate if edge.back_gb_per_s is None else edge.back_gb_per_s * GIGA
    if rate <= 0 or back <= 0:
        raise BadInputError(
            f"{key}: {a} - {b} ({edge.link}) has no bandwidth "
            f"({'from' if rate <= 0 else 'back to'} {a}); give gb_per_s above 0 or leave the edge out"
        )
    latency_s = found.latency_s if edge.latency_us is None else edge.latency_us / MEGA
    return Edge(
        a=a,
        b=b,
        link=found.name,
        kind=edge.kind or found.kind,
        bytes_per_s=rate,
        back_bytes_per_s=back,
        latency_s=latency_s,
    )


def wiring_to_dict(wiring: Wiring) -> dict[str, Any]:
    """The section from which `wiring` is read back, under any database."""
    if not wiring.full:
        return {
            "rails": wiring.rails,
            "leaf_nodes": wiring.leaf_nodes,
            "leaf_oversubscription": wiring.leaf_oversubscription,
        }
    vertices = []
    for vertex in wiring.vertices:
        entry: dict[str, Any] = {"name": vertex.name, "kind": vertex.kind}
        if vertex.bytes_per_s:
            entry["gb_per_s"] = inverse(
                lambda value: value * GIGA, vertex.bytes_per_s, vertex.bytes_per_s / GIGA
            )
        vertices.append(entry)
    edges = []
    for edge in wiring.edges:
        entry = {
            "ends": [edge.a, edge.b],
            "link": edge.link,
            "kind": edge.kind,
            "gb_per_s": inverse(lambda value: value * GIGA, edge.bytes_per_s, edge.bytes_per_s / GIGA),
        }
        if edge.back_bytes_per_s != edge.bytes_per_s:
            back = edge.back_bytes_per_s
            entry["back_gb_per_s"] = inverse(lambda value: value * GIGA, back, back / GIGA)
        entry["latency_us"] = inverse(lambda value: value / MEGA, edge.latency_s, edge.latency_s * MEGA)
        edges.append(entry)
    return {"vertices": vertices, "edges": edges}
