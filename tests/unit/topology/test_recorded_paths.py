"""Paths on clusters of every form, derived and stated: rates, latencies and what limits, as recorded."""

import copy
from collections.abc import Callable
from dataclasses import astuple, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.cost.paths import IslandPaths, path_finder, ring_finder
from tangram_sim.cost.switchtree import tree_of
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import cluster_from_dict, cluster_to_dict, load_cluster
from tangram_sim.topology import PathFinder
from tangram_sim.topology.full import full_wiring
from tests.records import HWDB, hold

SHIPPED = (
    "p3-p4d-p5", "mi300x-mi250x", "azure-c3-a100x4-v100x8", "lab-v100-a100-a6000", "consumer-3090-4090",
    "l40s-pcie", "b200-h100",
)  # fmt: skip
DGX_V100 = {"count": 3, "node": "DGX-1-V100"}
DGX_A100 = {"count": 4, "node": "DGX-A100-80GB"}
SLOTS = (
    {
        "count": 2, "gpu": "T4", "gpus": 8, "intra_link": "PCIe3x16", "nic_gbps": 50, "nics": 2,
        "pcie_switches": 0, "nic_latency_us": 7,
    },
    {
        "count": 2, "gpu": "RTX-A6000", "gpus": 4, "intra_link": "PCIe4x16", "links": [[0, 2], [1, 3]],
        "nic_gbps": 100, "nics": 2, "pcie_switches": 2, "sockets": 2,
    },
)  # fmt: skip
DRAWS = 16


def stated(cluster: Cluster, drop: int, slow: int) -> Cluster:
    """The cluster with its graph written out, every `drop`-th inner edge gone and every `slow`-th halved."""
    data = copy.deepcopy(cluster_to_dict(replace(cluster, wiring=full_wiring(cluster))))
    edges = data["topology"]["edges"]
    inner = [edge for edge in edges if edge.get("kind") not in ("network", "host")]
    gone = inner[drop - 1 :: drop]
    left = [edge for edge in edges if edge not in gone]
    for edge in [edge for edge in left if edge.get("gb_per_s")][slow - 1 :: slow]:
        edge["back_gb_per_s"] = edge["gb_per_s"] / 2
    data["topology"]["edges"] = left
    return cluster_from_dict(data, HWDB, "stated.yaml")


def clusters() -> dict[str, Cluster]:
    """Clusters by name: shipped ones, switches that are oversubscribed, graphs that are written out."""
    found = {name: load_cluster(name, HWDB) for name in SHIPPED}
    mixed = {"nodes": [DGX_V100, DGX_A100], "network": {"oversubscription": 4.0}}
    found["oversubscribed"] = cluster_from_dict(mixed, HWDB, "mixed.yaml")
    rails = {"rails": True, "leaf_nodes": 2, "leaf_oversubscription": 2.0}
    found["rails"] = cluster_from_dict({"nodes": [DGX_A100], "topology": rails}, HWDB, "rails.yaml")
    within = [{"groups": [0, 0], "gbps": rate, "latency_us": late} for rate, late in ((40, 9), (70, 19))]
    inside = {"nodes": [DGX_A100], "network": {"between": within}}
    found["limited inside"] = cluster_from_dict(inside, HWDB, "inside.yaml")
    apart = {"between": [*within, {"groups": [0, 1], "gbps": 30, "latency_us": 40}]}
    slots = {"nodes": list(SLOTS), "network": apart, "topology": {"leaf_nodes": 1}}
    found["slots and switches"] = cluster_from_dict(slots, HWDB, "slots.yaml")
    found["one mesh"] = cluster_from_dict({"nodes": [{**DGX_V100, "count": 1}]}, HWDB, "mesh.yaml")
    found["mesh, edges gone"] = stated(found["oversubscribed"], 5, 3)
    found["bridges, edges gone"] = stated(found["consumer-3090-4090"], 4, 3)
    return found


def drawn(draw: Random, gpus: int) -> tuple[int, ...]:
    """Ranks of a group: neighbours, a stride, or any."""
    size = draw.randint(2, min(gpus, 12))
    start = draw.randrange(gpus - size + 1)
    ways = (
        range(start, start + size),
        range(draw.randrange(4), gpus, draw.choice((2, 4, 8))),
        draw.sample(range(gpus), size),
    )
    return tuple(draw.choice(ways)) or (0,)


def told(ask: Callable[[], Any]) -> Any:
    """What is answered, or the words of the refusal."""
    try:
        return ask()
    except TangramError as refused:
        return str(refused)


def road(finder: PathFinder, source: tuple[int, ...], target: tuple[int, ...], busy: bool) -> list[Any]:
    """Rate, what limits it, and latency from some ranks to others."""
    rate, latency_s = finder.road(source, target, busy)
    return [*astuple(rate), latency_s]


def paths(finder: PathFinder, seed: str) -> dict[str, Any]:
    """Groups, roads and exits of a topology, drawn by a seed."""
    draw, gpus = Random(seed), finder.topology.gpus
    groups, roads, exits = [], [], []
    for _ in range(DRAWS):
        ranks, beside = drawn(draw, gpus), [drawn(draw, gpus) for _ in range(draw.randrange(3))]
        groups.append(told(lambda r=ranks, b=beside: astuple(finder.group(r, b))))
        source, target, busy = drawn(draw, gpus), drawn(draw, gpus), bool(draw.randrange(2))
        if draw.randrange(2):  # within one box
            inner = finder.topology.split(source)
            first = finder.topology.first_rank[min(inner)]
            source = tuple(first + place for place in inner[min(inner)])
            target = tuple(first + place for place in draw.sample(range(2), draw.randint(1, 2)))
        roads.append(told(lambda s=source, t=target, b=busy: road(finder, s, t, b)))
        box = draw.randrange(len(finder.topology.boxes))
        places = tuple(sorted(draw.sample(range(2), draw.randint(1, 2))))
        back = bool(draw.randrange(2))
        exits.append(told(lambda b=box, p=places, k=back: astuple(finder.exit_rate(b, p, k))))
    halves = told(lambda: astuple(finder.halves()))
    return {"groups": groups, "roads": roads, "exits": exits, "halves": halves}


def islands(finder: PathFinder) -> list[Any]:
    """Worst figures of groups of every size and stride, on all boxes and on a part of them."""
    first = finder.topology.first_rank
    places = tuple(tuple(range(a, b)) for a, b in pairwise(first))
    alike = [place for place in places if len(place) == len(places[0])]
    whole, rows = IslandPaths.of(finder, tuple(alike)), []
    for island in (whole, whole.part(max(len(alike) // 2, 1), max(len(alike[0]) // 2, 1))):
        gpus = len(island.alternatives[0]) * len(island.alternatives[0][0])
        for ranks in (size for size in (2, 4, 8, 16) if size <= gpus):
            for stride in (step for step in (1, 2, 4, 8) if ranks * step <= gpus):
                rows.append((ranks, stride, told(lambda i=island, r=ranks, s=stride: astuple(i.rates(r, s)))))
    return rows


def recorded() -> dict[str, Callable[[], Any]]:
    """What is recorded of each cluster, by its name."""

    def figures(name: str, cluster: Cluster) -> dict[str, Any]:
        finder, rings = path_finder(cluster, HWDB), ring_finder(cluster, HWDB)
        return {
            **paths(finder, name),
            "rings": paths(rings, f"{name}/rings")["groups"],
            "islands": islands(finder),
            "tree": told(lambda: repr(tree_of(cluster, HWDB))),
        }

    return {
        name: lambda n=name, c=cluster: told(lambda: figures(n, c)) for name, cluster in clusters().items()
    }


CASES = recorded()


@pytest.mark.parametrize("case", CASES)
def test_paths_are_as_recorded(case: str) -> None:
    hold("paths", case, CASES[case]())
