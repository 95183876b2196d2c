"""Which transfers of a step share which network links: for the engine that plays contention.

A set of nodes has one link out and one link in (all its NICs together); groups with a limit on the traffic
between them share one more. Transfers inside a scale-up domain share nothing.
"""

from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.lowering.placement import Placement
from tangram_sim.opgraph import OpGraph, SharedLink, column
from tangram_sim.plans import Pipeline
from tangram_sim.schedules import StepTemplate

# A transfer may be this much faster than its link by rounding alone.
_HEADROOM = 1.0 + 1e-9


@dataclass
class _Links:
    """Links met so far, by what they are."""

    placement: Placement
    found: dict[tuple[str, tuple[int, ...]], int]
    links: list[SharedLink]

    def _link(self, kind: str, key: tuple[int, ...], name: str, bytes_per_s: float) -> int:
        if (kind, key) not in self.found:
            self.found[kind, key] = len(self.links)
            self.links.append(SharedLink(name, bytes_per_s * _HEADROOM))
        return self.found[kind, key]

    def nics(self, ranks: tuple[int, ...], direction: str) -> int:
        """The link out of (or into) the nodes of some ranks."""
        nodes = tuple(sorted({self.placement.node_of[rank] for rank in ranks}))
        names = f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {nodes[0]} to {nodes[-1]}"
        return self._link(direction, nodes, f"{names}/NIC {direction}", self.placement.nic_rate(nodes))

    def between(self, source: tuple[int, ...], target: tuple[int, ...]) -> list[int]:
        """Limits on the traffic between the groups of two stages, where there are any."""
        groups, efficiency = self.placement.cluster.node_group, self.placement.hwdb.network_efficiency.value
        sides = [
            sorted({groups[self.placement.node_of[rank]] for rank in ranks}) for ranks in (source, target)
        ]
        found = []
        for a in sides[0]:
            for b in sides[1]:
                rate, _ = self.placement.cluster.group_limit(a, b)
                if rate < float("inf"):
                    found.append(self._link("between", (a, b), f"network/g{a} to g{b}", rate * efficiency))
        return found


def with_links(
    graph: OpGraph, template: StepTemplate, pipeline: Pipeline, placement: Placement, size: float
) -> OpGraph:
    """The step's graph with bytes and shared links on every transfer that leaves a scale-up domain.

    `size` is the bytes of one boundary transfer; gradient synchronisation over several nodes fills their
    NICs while it lasts.
    """
    stages, depth = pipeline.stages, len(pipeline.stages)
    links = _Links(placement, {}, [])
    kinds = graph.kinds
    routes: dict[tuple[str, int], tuple[list[int], float]] = {}
    for stage in range(depth):
        ranks = stages[stage].ranks
        for kind, step in (("SEND_F", 1), ("SEND_B", -1)):
            other = stages[(stage + step) % depth].ranks
            if not placement.same_domain(ranks, other):
                routes[kind, stage] = (
                    [links.nics(ranks, "out"), links.nics(other, "in"), *links.between(ranks, other)],
                    size,
                )
        if len({placement.node_of[rank] for rank in ranks}) > 1 and not placement.same_domain(ranks, ranks):
            routes["SYNC", stage] = ([links.nics(ranks, "out")], float("nan"))
    crossed = [
        routes.get((kinds[kind], int(stage)), ([], 0.0))
        for kind, stage in zip(graph.kind, template.stage, strict=True)
    ]
    moved = np.array([amount for _, amount in crossed])
    for op in np.flatnonzero(np.isnan(moved)):
        moved[op] = graph.duration_s[op] * links.links[crossed[op][0][0]].bytes_per_s / _HEADROOM
    pointers = np.concatenate([[0], np.cumsum([len(route) for route, _ in crossed])])
    return replace(
        graph,
        bytes=column(moved, np.float64),
        link_ptr=column(pointers, np.int32),
        link=column([link for route, _ in crossed for link in route], np.int32),
        links=tuple(links.links),
    )
