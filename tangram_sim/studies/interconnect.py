"""Answers on a cluster's interconnect: its graph in short, and the plan of a collective on it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tangram_sim.clusters import Cluster
from tangram_sim.cost.algorithms import algorithm, algorithm_names
from tangram_sim.cost.gentree import TreePlan
from tangram_sim.cost.paths import path_finder
from tangram_sim.cost.switchtree import tree_of
from tangram_sim.hwdb import Hwdb
from tangram_sim.topology import GroupPaths, Rate


def describe_topology(cluster: Cluster, hwdb: Hwdb) -> dict[str, Any]:
    """Summary of the interconnect graph: vertices, links by class, boxes, the group of all GPUs."""
    finder = path_finder(cluster, hwdb)
    topology = finder.topology
    many = Counter(topology.boxes)
    vertices = Counter(topology.fabric.kinds)
    links: dict[str, list[float]] = {}
    boxes = []
    for index, box in enumerate(topology.kinds):
        for kind, count in Counter(box.kinds).items():
            vertices[kind] += count * many[index]
        for edge in box.edges:
            links.setdefault(f"{edge.link} ({edge.kind})", []).extend([edge.bytes_per_s] * many[index])
        first = topology.boxes.index(index)
        ranks = range(topology.first_rank[first], topology.first_rank[first + 1])
        inside = finder.group(ranks).ring_inside if len(ranks) > 1 else Rate(0.0, "")
        boxes.append(
            {
                "like": topology.labels[first],
                "count": many[index],
                "gpus": len(box.gpus),
                "nics": len({port.nic for port in box.ports}),
                "vertices": dict(sorted(Counter(box.kinds).items())),
                "ring_bytes_per_s": inside.bytes_per_s,
                "ring_limited_by": inside.limited_by,
                "nic_bytes_per_s": sum(port.bytes_per_s for port in box.ports),
            }
        )
    for cable in topology.fabric.edges:
        links.setdefault(f"{cable.link} (network)", []).append(cable.bytes_per_s)
    everyone = finder.group(range(topology.gpus))
    halves = finder.halves()
    return {
        "cluster": topology.name,
        "derived": topology.derived,
        "gpus": topology.gpus,
        "vertices": dict(sorted(vertices.items())),
        "links": [
            {
                "link": name,
                "count": len(rates),
                "least_bytes_per_s": min(rates),
                "most_bytes_per_s": max(rates),
            }
            for name, rates in sorted(links.items())
        ],
        "boxes": boxes,
        "bisection_bytes_per_s": halves.bytes_per_s,
        "bisection_limited_by": halves.limited_by,
        "all_gpus": _paths(everyone),
    }


def _paths(found: GroupPaths) -> dict[str, Any]:
    given: dict[str, Any] = {"ranks": found.ranks, "boxes": found.boxes}
    for name in ("ring", "tree", "all_to_all"):
        rate: Rate = getattr(found, name)
        finite = rate.bytes_per_s if rate.bytes_per_s < float("inf") else 0.0
        given[name] = {"bytes_per_s": finite, "limited_by": rate.limited_by}
    return given | {"hop_inside_s": found.hop_inside_s, "hop_outside_s": found.hop_outside_s}


def plan_collective(
    cluster: Cluster,
    hwdb: Hwdb,
    op: str,
    size: float,
    name: str = "gentree",
    changes: Sequence[tuple[str, float]] = (),
) -> dict[str, Any]:
    """The plan of algorithm `name` on the cluster's tree, and the times of all others.

    `changes` are GenModel parameters to set at every switch. Raises UnknownNameError for an unknown
    algorithm or collective, BadInputError for sizes and parameters that make no sense.
    """
    tree = tree_of(cluster, hwdb).with_parameters(**dict(changes))
    found: TreePlan = algorithm(name)(tree, size, op)
    others = {other: algorithm(other)(tree, size, op).seconds for other in algorithm_names() if other != name}
    return {
        "cluster": cluster.name,
        "op": op,
        "bytes": size,
        "gpus": tree.size,
        "algorithm": name,
        "seconds": found.seconds,
        "steps": [
            {
                "level": step.level,
                "switch": step.switch,
                "switches": step.switches,
                "members": step.members,
                "plan": str(step.plan),
                "flat": step.flat,
                "rearranged": step.rearranged,
                "seconds": step.seconds,
            }
            for step in found.steps
        ],
        "others_s": dict(sorted(others.items(), key=lambda item: item[1])),
    }
