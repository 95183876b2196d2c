"""Sharing of the same weights by parts of mixed stages and by stages of pipelines side by side.

The ranks that hold one shard of a parameter form a ring over all parts. A ring of D ranks moves 2 (D - 1) / D
of its shard through every member. A rank of part p holds 1 / tp_p of a layer, so the fine shards common to
all parts move at the speed of the part with the least bandwidth per layer:

    seconds = max over p of 2 (D - 1) / D x bytes / (tp_p x bandwidth_p) + latency,   D = sum of dp_p x cp_p

(ring bound of Thakur et al., IJHPCA 2005, with the widths of the parts; docs/models/mixed-stages.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tangram_sim.clusters import Island
from tangram_sim.cost.collectives.groups import group, network_parameters, network_rate
from tangram_sim.layouts import Layout
from tangram_sim.placement.ranks import Placement
from tangram_sim.training.plan import Part, Pipeline, Stage


@dataclass(frozen=True, slots=True)
class Holder:
    """The ranks of one part, and the layout under which they hold some layers."""

    ranks: tuple[int, ...]
    layout: Layout
    microbatches: int  # of its pipeline


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a part shares its weights with other parts.

    `dense`, `experts`: bytes/s of one rank in a ring over unequal parts; None where all shard alike.
    """

    island: Island  # all ranks that hold a copy, at their worst member; without a name or a place
    replicas: int  # copies of dense weights
    expert_replicas: int
    dense: float | None = None
    experts: float | None = None


def layout_of(part: Part, atom: int, layers: int) -> Layout:
    """The layout under which a part holds an atom; embedding and head belong to the first and last run."""
    runs = part.layouts
    if atom == 0 or len(runs) == 1:
        return runs[0].layout
    if atom == layers + 1:
        return runs[-1].layout
    return next(run.layout for run in runs if run.layers[0] <= atom - 1 < run.layers[1])


def atoms_held(stage: Stage, layers: int) -> list[tuple[int, int]]:
    """Atoms [start, stop) of each chunk: block i is atom i + 1; the ends join the first and last chunk."""
    return runs_of(stage.chunks, stage.embedding, stage.head, layers)


def runs_of(
    chunks: Sequence[tuple[int, int]], embedding: bool, head: bool, layers: int
) -> list[tuple[int, int]]:
    """Runs of atoms [start, stop) of chunks given in blocks; the model's ends join the first and last."""
    runs = [(start + 1, stop + 1) for start, stop in chunks]
    if not runs:
        return [(0, 1)] if embedding else [(layers + 1, layers + 2)]
    if embedding:
        runs[0] = (0, runs[0][1])
    if head:
        runs[-1] = (runs[-1][0], layers + 2)
    return runs


def holders_by_atom(pipelines: Sequence[Pipeline], layers: int) -> tuple[tuple[Holder, ...], ...]:
    """All holders of every atom, in the order of pipelines and parts."""
    found: list[list[Holder]] = [[] for _ in range(layers + 2)]
    for pipeline in pipelines:
        for stage in pipeline.stages:
            for start, stop in atoms_held(stage, layers):
                for atom in range(start, stop):
                    for part in stage.parts:
                        found[atom].append(
                            Holder(part.ranks, layout_of(part, atom, layers), pipeline.microbatches)
                        )
    known: dict[tuple[Holder, ...], tuple[Holder, ...]] = {}
    return tuple(known.setdefault(tuple(holders), tuple(holders)) for holders in found)


def shards_alike(holders: Sequence[Holder]) -> bool:
    """Whether all holders shard their state jointly: the same ZeRO stage everywhere.

    ZeRO 2 and 3 communicate in every microbatch, so they also need equal numbers of microbatches.
    """
    zero = {holder.layout.zero_stage for holder in holders}
    return len(zero) == 1 and (max(zero) < 2 or len({holder.microbatches for holder in holders}) == 1)


@dataclass
class Sharings:
    """Sharings within one cluster, cached."""

    placement: Placement
    # By holders, with paces of whole layers: those of shards are a rank's part of them.
    _known: dict[tuple[Holder, ...], Sharing] = field(default_factory=dict)

    def of(self, holders: tuple[Holder, ...], own: int) -> Sharing:
        """How holder number `own` shares weights with the others (all with the same ZeRO stage)."""
        ring = self._known.get(holders)
        if ring is None:
            ring = self._known[holders] = self._find(holders)
        layout = holders[own].layout
        return replace(
            ring,
            dense=None if ring.dense is None else ring.dense / layout.tp,
            experts=None if ring.experts is None else ring.experts / (layout.tp * layout.ep),
        )

    def exchange_s(self, holders: Sequence[Holder], total_bytes: float) -> float:
        """Seconds of an all-reduce of `total_bytes` between parts, each of which holds them once, sharded.

        For parts with different ZeRO stages: a ring over the parts that uses all of their links together.
        """
        count = len(holders)
        roads = [
            self.placement.road(holders[index].ranks, holders[(index + 1) % count].ranks)
            for index in range(count)
        ]
        rate, latency = min(rate for rate, _ in roads), max(latency for _, latency in roads)
        return 2.0 * (count - 1) * (total_bytes / count / rate + latency)

    def _find(self, holders: tuple[Holder, ...]) -> Sharing:
        ranks = tuple(sorted({rank for holder in holders for rank in holder.ranks}))
        island = self.placement.island(ranks)
        layouts = [holder.layout for holder in holders]
        same_tp = len({layout.tp for layout in layouts}) == 1
        same_ep = len({layout.ep for layout in layouts}) == 1
        together = not (same_tp and same_ep) and self.placement.same_domain(ranks, ranks)
        dense, experts = (
            None if alike else self._pace(holders, island, together, widths)
            for alike, widths in (
                (same_tp, [layout.tp for layout in layouts]),
                (same_tp and same_ep, [layout.tp * layout.ep for layout in layouts]),
            )
        )
        return Sharing(
            island.anonymous(),
            sum(layout.dp * layout.cp for layout in layouts),
            sum(max(layout.dp * layout.cp // layout.ep, 1) for layout in layouts),
            dense,
            experts,
        )

    def _pace(self, holders: Sequence[Holder], union: Island, together: bool, shards: list[int]) -> float:
        """Bytes/s of whole layers in rings over all holders, whose layers are divided into `shards` each.

        `together`: all of them are in one scale-up domain.
        """
        placement, hwdb = self.placement, self.placement.hwdb
        slowest = float("inf")
        for holder, width in zip(holders, shards, strict=True):
            island = placement.island(holder.ranks)
            copies = max(len(holder.ranks) // width, 1)
            own_group = group(island, np.array([copies]), np.array([width]), hwdb)
            inside, scale_up = float(own_group.inside[0]), float(np.max(own_group.ring.bytes_per_s))
            # The slowest NIC and the limits between groups are those of the part and of the whole ring.
            stated = island.paths is not None
            limited = min(
                placement.node_share(holder.ranks) if stated else network_rate(island, hwdb),
                union.network_bytes_per_s * network_parameters(hwdb).rate_share,
            )
            crossing = limited * inside / island.gpus_per_node
            rate = scale_up if together else min(scale_up, crossing) if inside > 1 else crossing
            slowest = min(slowest, max(rate, 1.0) * width)
        return slowest
