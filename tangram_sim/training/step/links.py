"""Shared network links of a step's transfers, for the engine that simulates contention.

A set of nodes has one link out and one link in (all its NICs together); groups with a limit on the traffic
between them share one more. Transfers inside a scale-up domain share no link.
"""

from collections import Counter
from dataclasses import dataclass

from tangram_sim.opgraph import OpGraph, SharedLink
from tangram_sim.placement.ranks import Placement
from tangram_sim.training.plan import Pipeline
from tangram_sim.training.schedules import StepTemplate
from tangram_sim.training.step.routes import HEADROOM, NOWHERE, Route, with_routes

_STEPS = {"SEND_F": 1, "SEND_B": -1}  # where transfers go, from the stage that sends


@dataclass
class _LinkTable:
    """Shared links found so far, by kind and endpoints."""

    placement: Placement
    found: dict[tuple[str, tuple[int, ...]], int]
    links: list[SharedLink]

    def _link(self, kind: str, key: tuple[int, ...], name: str, bytes_per_s: float) -> int:
        if (kind, key) not in self.found:
            self.found[kind, key] = len(self.links)
            self.links.append(SharedLink(name, bytes_per_s * HEADROOM))
        return self.found[kind, key]

    def nics(self, ranks: tuple[int, ...], direction: str) -> int:
        """Index of the link out of (or into) the nodes of some ranks."""
        nodes = tuple(sorted({self.placement.node_of[rank] for rank in ranks}))
        names = f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {nodes[0]} to {nodes[-1]}"
        return self._link(direction, nodes, f"{names}/NIC {direction}", self.placement.nic_rate(nodes))

    def between(self, source: tuple[int, ...], target: tuple[int, ...]) -> dict[int, float]:
        """(index of the limit, share of the traffic) for limited pairs of node groups between two stages.

        Both sides are spread evenly over their ranks.
        """
        groups = self.placement.cluster.node_group
        sides = [
            Counter(groups[self.placement.node_of[rank]] for rank in ranks) for ranks in (source, target)
        ]
        found = {}
        for a, sending in sorted(sides[0].items()):
            for b, receiving in sorted(sides[1].items()):
                rate = self.placement.group_rate(a, b)
                if rate < float("inf"):
                    link = self._link("between", (a, b), f"network/g{a} to g{b}", rate)
                    found[link] = sending * receiving / (len(source) * len(target))
        return found


def with_links(
    graph: OpGraph, template: StepTemplate, pipeline: Pipeline, placement: Placement, size: float
) -> OpGraph:
    """The step's graph with bytes and shared links on every transfer that leaves a scale-up domain.

    `size` is the bytes of one boundary transfer; gradient synchronisation over several nodes uses their NICs
    fully while it lasts.
    """
    stages, depth = pipeline.stages, len(pipeline.stages)
    links = _LinkTable(placement, {}, [])

    def route_of(kind: int, stage: int) -> Route:
        ranks, name = stages[stage].ranks, graph.kinds[kind]
        if name in _STEPS:
            other = stages[(stage + _STEPS[name]) % depth].ranks
            if not placement.same_domain(ranks, other):
                crossed = {links.nics(ranks, "out"): 1.0, links.nics(other, "in"): 1.0}
                crossed |= links.between(ranks, other)
                return Route(tuple(crossed), tuple(crossed.values()), size)
        elif name == "SYNC" and not placement.same_domain(ranks, ranks):
            out = links.nics(ranks, "out")
            return Route((out,), (1.0,), links.links[out].bytes_per_s / HEADROOM, by_second=True)
        return NOWHERE

    return with_routes(graph, (graph.kind, template.stage), route_of, links.links)
