"""Transfer plans to a larger fleet that contains their nodes."""

import re
from collections.abc import Mapping
from dataclasses import replace

from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.planfile import plan_from_document
from tangram_sim.training.plan import Part, Pipeline, Plan, Stage


def known_on(
    document: PlanDocument, small: Cluster, cluster: Cluster, group_of: Mapping[int, int], hwdb: Hwdb
) -> Plan:
    """The plan in a document for the cluster `small`, transferred to a larger one as by `on_larger`."""
    return on_larger(plan_from_document(document, hwdb, "a smaller fleet", small), cluster, group_of)


def on_larger(plan: Plan, cluster: Cluster, group_of: Mapping[int, int]) -> Plan:
    """`plan` transferred to `cluster`, which contains the plan's groups with at least as many nodes.

    `group_of` maps each group of the plan's cluster to its group in `cluster`.
    """
    here, there = _first_ranks(plan.cluster), _first_ranks(cluster)
    groups = enumerate(plan.cluster.groups)
    own = [number for number, group in groups for _ in range(group.count * group.node.gpus)]

    def rank(old: int) -> int:
        return there[group_of[own[old]]] + old - here[own[old]]

    def part(old: Part) -> Part:
        named = re.sub(r"g(\d+)", lambda found: f"g{group_of[int(found[1])]}", old.island)
        return replace(old, island=named, ranks=tuple(map(rank, old.ranks)))

    def stage(old: Stage) -> Stage:
        return replace(old, parts=tuple(map(part, old.parts)))

    def pipeline(old: Pipeline) -> Pipeline:
        return replace(old, stages=tuple(map(stage, old.stages)))

    return replace(plan, cluster=cluster, pipelines=tuple(map(pipeline, plan.pipelines)))


def _first_ranks(cluster: Cluster) -> list[int]:
    """The first rank of every group."""
    first, found = 0, []
    for group in cluster.groups:
        found.append(first)
        first += group.count * group.node.gpus
    return found
