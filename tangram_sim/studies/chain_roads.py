"""Chains of stages: links between them, stages per node group, microbatches in flight."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from tangram_sim.clusters import NodeGroup
from tangram_sim.cost.kernels import Floats
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.placement.ranks import Placement
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import in_flight
from tangram_sim.training.step.boundary import tied_exchange_s


class ChainRoads(NamedTuple):
    """Links between stages on G groups, [G, G] each."""

    bytes_per_s: Floats
    latency_s: Floats
    beside: Floats  # [3, G]: stages that a node holds, and bytes/s and latency from one to the next of them
    tied_s: Floats  # [2, G, G]: seconds to add up gradients of a tied matrix, and of each byte of them

    def seconds(
        self, model: Model, job: Job, microbatch: int, layouts: Sequence[Layout]
    ) -> tuple[Floats, Floats, Floats]:
        """`hops`, `beside` and `tied` of `ChainPrices`, seconds, for stages under these layouts."""
        handed = microbatch * job.boundary_bytes(model, 1)
        copies = max(layout.gradient_copies for layout in layouts) if model.tied else 0
        tied_s = self.tied_s[0] + copies * job.tied_bytes(model) * self.tied_s[1]
        return (
            self.latency_s + handed / self.bytes_per_s,
            np.stack([self.beside[0], self.beside[2] + handed / self.beside[1]]),
            tied_s if copies else 0.0 * tied_s,
        )


def chain_roads(
    placement: Placement, places: Sequence[Sequence[tuple[int, ...]]], *, tied: bool
) -> ChainRoads:
    """Links between stages of every pair of groups; `places`: the ranks of each stage that a group holds."""
    count = len(places)
    beside = np.stack([np.ones(count), np.full(count, inf), np.zeros(count)])
    for number, own in enumerate(places):
        nodes = [placement.node_of[ranks[0]] for ranks in own]
        if (held := nodes.count(nodes[0])) > 1:
            beside[:, number] = held, *placement.road(own[0], own[1])
    rates, latencies = np.full((count, count), inf), np.zeros((count, count))
    exchanges = np.zeros((2, count, count))
    for (a, here), (b, there) in product(enumerate(places), repeat=2):
        source, target = here[0], there[-1]
        if source == target:
            continue
        rates[a, b], latencies[a, b] = placement.road(source, target)
        if tied:  # in proportion to the bytes, but for latencies
            none, some = (tied_exchange_s(placement, source, target, size) for size in (1.0, 1e9))
            exchanges[:, a, b] = none, (some - none) / 1e9
    return ChainRoads(rates, latencies, beside, exchanges)


def stages_held(group: NodeGroup, layout: Layout) -> int:
    """Stages of a layout that a group holds; tensor-parallel ranks stay inside a node."""
    if group.node.gpus % layout.tp:
        return 0
    gpus, width = group.node.gpus, layout.gpus
    return group.count * gpus // width if width % gpus == 0 else group.count * (gpus // width)


@cache
def held_ahead(schedule: str, depth: int, passes: int, chunks: int = 1) -> Floats:
    """Microbatches in flight on a stage with 0 to `depth` - 1 stages behind it, [depth].

    Of several chunks: in a pipeline of `depth` stages, each chunk in flight counts 1 / `chunks` microbatch.
    """
    held = [
        in_flight(schedule, behind, depth if chunks > 1 else behind + 1, chunks, passes) / chunks
        for behind in range(depth)
    ]
    return np.array(held, np.float64)
