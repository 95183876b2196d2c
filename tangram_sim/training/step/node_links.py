"""Shared NICs of the transfers of mixed stages and pipelines side by side, node by node.

A transfer crosses the NIC of each node involved with that node's share of its bytes: an op moves a single
number of bytes, and each link has a weight.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import numpy as np

from tangram_sim.opgraph import IntArray, OpGraph, SharedLink
from tangram_sim.placement.ranks import Placement
from tangram_sim.training.plan import Pipeline, Stage
from tangram_sim.training.stage.sharing import Holder
from tangram_sim.training.step.boundary import flows, group_shares
from tangram_sim.training.step.routes import HEADROOM, NOWHERE, Route, with_routes


class PipelineView(Protocol):
    """The fields of a lowered pipeline that this module reads."""

    @property
    def pipeline(self) -> Pipeline: ...  # noqa: D102 - fields of `lowering.step.LoweredStep`

    @property
    def placement(self) -> Placement: ...  # noqa: D102

    @property
    def boundary_bytes(self) -> float: ...  # noqa: D102

    @property
    def holders(self) -> Sequence[tuple[Holder, ...]]: ...  # noqa: D102


@dataclass
class _NodeLinkTable:
    """Shared links found so far."""

    placement: Placement
    links: list[SharedLink] = field(default_factory=list)
    _found: dict[str, int] = field(default_factory=dict)

    def _index(self, name: str, bytes_per_s: float) -> int:
        if name not in self._found:
            self._found[name] = len(self.links)
            self.links.append(SharedLink(name, bytes_per_s * HEADROOM))
        return self._found[name]

    def nic(self, node: int, direction: str) -> int:
        """All NICs of a node, in one direction."""
        return self._index(f"node {node}/NIC {direction}", self.placement.nic_rate((node,)))

    def between(self, a: int, b: int) -> int | None:
        """Index of the limit on the traffic between two groups; None where there is none."""
        rate = self.placement.group_rate(a, b)
        return None if rate == float("inf") else self._index(f"network/g{a} to g{b}", rate)

    def boundary(self, before: Stage, after: Stage, total_bytes: float) -> Route:
        """The route of one microbatch between two stages."""
        node_of = self.placement.node_of
        shares: dict[int, Fraction] = {}
        for flow in flows(before, after):
            if self.placement.same_domain(flow.source, flow.target):
                continue
            for direction, ranks in (("out", flow.source), ("in", flow.target)):
                for node, count in Counter(node_of[rank] for rank in ranks).items():
                    link = self.nic(node, direction)
                    shares[link] = shares.get(link, Fraction(0)) + flow.share * Fraction(count, len(ranks))
            for groups, share in group_shares(self.placement, flow).items():
                limit = self.between(*groups)
                if limit is not None:
                    shares[limit] = shares.get(limit, Fraction(0)) + flow.share * share
        return _weighted(shares, total_bytes)

    def ring(self, ranks: Sequence[int]) -> Route:
        """The route of a part's gradients: all NICs of its nodes, in bytes per second of the transfer."""
        counts = Counter(self.placement.node_of[rank] for rank in ranks)
        shares = {self.nic(node, "out"): Fraction(count) for node, count in counts.items()}
        rank_rate = min(self.placement.nic_share((rank,)) for rank in ranks)
        return _weighted(shares, rank_rate, by_second=True)


def _weighted(shares: Mapping[int, Fraction], total_bytes: float, by_second: bool = False) -> Route:
    """The route with each link's share of the total as its weight; the largest share has weight 1."""
    if not shares:
        return NOWHERE
    most, found = max(shares.values()), sorted(shares.items())
    weights = tuple(float(share / most) for _, share in found)
    return Route(tuple(link for link, _ in found), weights, float(most) * total_bytes, by_second)


def with_node_links(
    graph: OpGraph,
    steps: Sequence[PipelineView],
    step_of: IntArray | None = None,
    stage_of: IntArray | None = None,
) -> OpGraph:
    """The graph of pipelines side by side with bytes and shared links on every transfer that leaves a node.

    `step_of` and `stage_of` give the step, and the stage in it, of each op.
    """
    links = _NodeLinkTable(steps[0].placement)
    number = np.zeros(len(graph), np.int32) if step_of is None else step_of
    place = np.zeros(len(graph), np.int32) if stage_of is None else stage_of
    routes: dict[tuple[int, str, int], Route] = {}
    for index, step in enumerate(steps):
        stages = step.pipeline.stages
        for stage, noun in enumerate(stages):
            for kind, way in (("SEND_F", 1), ("SEND_B", -1)):
                other = stages[(stage + way) % len(stages)]
                if other is not noun:
                    routes[index, kind, stage] = links.boundary(noun, other, step.boundary_bytes)
            if _leaves(noun, step):
                routes[index, "SYNC", stage] = links.ring(noun.ranks)
    keys = (number, graph.kind, place)

    def route_of(step: int, kind: int, stage: int) -> Route:
        return routes.get((step, graph.kinds[kind], stage), NOWHERE)

    return with_routes(graph, keys, route_of, links.links)


def _leaves(stage: Stage, step: PipelineView) -> bool:
    """Whether a stage's gradients leave its scale-up domain, to its own ranks or to other holders."""
    placement, own = step.placement, stage.ranks
    if not placement.same_domain(own, own):
        return True
    mine = set(own)
    return any(
        not placement.same_domain(own, holder.ranks)
        for holders in set(step.holders)
        if any(mine.issuperset(holder.ranks) for holder in holders)
        for holder in holders
    )
