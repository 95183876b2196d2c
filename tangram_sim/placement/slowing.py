"""Applying slowdowns to a cluster: the ranks, nodes and links that their names refer to."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from tangram_sim.clusters import Cluster, GroupLimit
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.health import Health, Slowdown

WHAT = ("compute", "memory", "network")

_NODE, _GPU, _RANK = re.compile(r"n(\d+)"), re.compile(r"n(\d+)\.(\d+)"), re.compile(r"r(\d+)")
_LINK = re.compile(r"(g\d+)-(g\d+)")
_STAGE = re.compile(r"stage (\d+)(?: replica (\d+))?")

# Ranks of each stage of a plan, by (pipeline, stage).
Stages = Mapping[tuple[int, int], Sequence[int]]


def with_slowdowns(cluster: Cluster, slowdowns: Sequence[Slowdown], stages: Stages | None = None) -> Cluster:
    """The cluster with these slowdowns applied; several on one thing multiply, factors of 1 have no effect.

    `stages` maps `stage N` to ranks if there is a plan. Raises `BadInputError` or `UnknownNameError` for
    unknown targets, and for network slowdowns of a cluster that states its own graph.
    """
    compute: dict[int, float] = {}
    memory: dict[int, float] = {}
    network: dict[int, float] = {}
    links: dict[tuple[int, int], float] = {}
    for one in slowdowns:
        _check(one, cluster)
        link = _LINK.fullmatch(one.where)
        if (link is not None or one.where == "network") and one.what != "network":
            raise BadInputError(f"slow {one.where}: a link has no {one.what}; give what: network")
        for pair in [_link(cluster, one, (link[1], link[2]))] if link else _links(cluster, one.where):
            links[pair] = links.get(pair, 1.0) * one.factor
        if link is not None:
            continue
        ranks = _ranks(one.where, cluster, stages)
        if one.what == "network":
            for node in sorted({_node_of(cluster, rank) for rank in ranks}):
                network[node] = network.get(node, 1.0) * one.factor
            continue
        factors = compute if one.what == "compute" else memory
        for rank in ranks:
            factors[rank] = factors.get(rank, 1.0) * one.factor
    limits = [*cluster.network.between]
    for pair in (pair for pair, factor in links.items() if factor != 1.0):
        rate, latency = cluster.group_limit(*pair)
        limits.append(GroupLimit(pair, rate / links[pair], latency))
    health = Health(_kept(compute), _kept(memory), _kept(network))
    return replace(cluster, health=health, network=replace(cluster.network, between=tuple(limits)))


def _kept(factors: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    return tuple((key, factors[key]) for key in sorted(factors) if factors[key] != 1.0)


def _check(one: Slowdown, cluster: Cluster) -> None:
    if not 0 < one.factor < inf:
        raise BadInputError(
            f"slow {one.where}: a factor of {one.factor:g}; give a number above 0 (1.5: 1.5 times slower; "
            f"below 1: "
            "faster)"
        )
    if one.what not in WHAT:
        raise unknown_name("kind of slowness", one.what, WHAT)
    if one.what == "network" and cluster.wiring.full:
        raise BadInputError(
            f"slow {one.where}: {cluster.name} states its own graph of links; give the slow link its rate "
            f"there"
        )


def _ranks(where: str, cluster: Cluster, stages: Stages | None) -> list[int]:
    nodes, gpus = len(cluster.node_group), cluster.gpus
    if where == "network":
        return list(range(gpus))
    if match := _GPU.fullmatch(where):
        node, local = int(match[1]), int(match[2])
        _require(where, "node", node, nodes)
        _require(where, "GPU", local, cluster.first_rank[node + 1] - cluster.first_rank[node])
        return [cluster.first_rank[node] + local]
    if match := _NODE.fullmatch(where):
        _require(where, "node", int(match[1]), nodes)
        return list(_of_node(cluster, int(match[1])))
    if match := _RANK.fullmatch(where):
        _require(where, "rank", int(match[1]), gpus)
        return [int(match[1])]
    if match := _STAGE.fullmatch(where):
        return _of_stage(where, int(match[1]), int(match[2]) if match[2] else None, stages)
    members = [
        node
        for node, group in enumerate(cluster.node_group)
        if where in (cluster.groups[group].name, cluster.groups[group].node.gpu.name)
    ]
    if not members:
        known = [group.name for group in cluster.groups] + [group.node.gpu.name for group in cluster.groups]
        raise unknown_name(
            "part of the cluster",
            where,
            known,
            f"Or give a node (n0 to n{nodes - 1}), a GPU (n0.0), a rank (r0 to r{gpus - 1}), a link "
            "between groups (g0-g1), the whole `network` or, next to a plan, `stage 0`.",
        )
    return [rank for node in members for rank in _of_node(cluster, node)]


def _of_stage(where: str, stage: int, replica: int | None, stages: Stages | None) -> list[int]:
    if stages is None:
        raise BadInputError(
            f"slow {where}: which ranks a stage has is known of a plan only; name nodes or GPUs"
        )
    found = [
        rank
        for (pipeline, place), ranks in stages.items()
        for rank in ranks
        if place == stage and replica in (None, pipeline)
    ]
    if not found:
        pipelines, depth = ({key[index] for key in stages} for index in (0, 1))
        raise BadInputError(
            f"slow {where}: the plan has stages 0 to {max(depth)} and replicas 0 to {max(pipelines)}"
        )
    return found


def _of_node(cluster: Cluster, node: int) -> Iterable[int]:
    return range(cluster.first_rank[node], cluster.first_rank[node + 1])


def _node_of(cluster: Cluster, rank: int) -> int:
    return next(node for node in range(len(cluster.node_group)) if rank < cluster.first_rank[node + 1])


def _require(where: str, kind: str, number: int, count: int) -> None:
    if number >= count:
        raise BadInputError(f"slow {where}: there is no {kind} {number}; they are 0 to {count - 1}")


def _links(cluster: Cluster, where: str) -> list[tuple[int, int]]:
    """All pairs of groups with limited traffic if `where` is the whole network; else none."""
    count = len(cluster.groups) if where == "network" else 0
    pairs = ((a, b) for a in range(count) for b in range(a, count))
    return [pair for pair in pairs if cluster.group_limit(*pair)[0] < inf]


def _link(cluster: Cluster, one: Slowdown, names: tuple[str, str]) -> tuple[int, int]:
    groups = [group.name for group in cluster.groups]
    for name in names:
        if name not in groups:
            raise unknown_name("node group", name, groups)
    a, b = sorted(groups.index(name) for name in names)
    if cluster.group_limit(a, b)[0] == inf:
        raise BadInputError(
            f"slow {one.where}: nothing limits traffic inside a group; slow its nodes' network"
        )
    return a, b
