"""ZERO-resizing and SEMI-migration in a plan: tensor-parallel groups with a slow rank, priced anew.

Every group's layer follows the model of `reliability.stragglers.tensor_shares`: products over columns are
what can be pruned or sent, attention and memory-bound kernels run at the rank's own speed. A rank that sends
columns broadcasts their weights once a step over the group's link, so a microbatch's layer pays its share.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from tangram_sim.clusters import Island
from tangram_sim.health import Resizing
from tangram_sim.hwdb import Hwdb
from tangram_sim.reliability.stragglers.tensor_shares import LayerCosts, Shares, even, hybrid
from tangram_sim.studies.forecast import Forecast, PartAddress, forecast
from tangram_sim.studies.slow_documents import ResizedGroupDocument
from tangram_sim.training.plan import Plan

_FIXED = ("attention", "memory")  # of a pass, what does not follow a rank's share of the columns


@dataclass(frozen=True, slots=True)
class ResizedGroup:
    """A tensor-parallel group with a slow rank: its place, ranks, how slow they are, what it does."""

    pipeline: int
    stage: int
    ranks: tuple[int, ...]
    slowness: tuple[float, ...]
    before: float  # its pace with even shares: the slowest rank's
    after: float
    shares: Shares
    sent_bytes: float  # a step

    def document(self) -> ResizedGroupDocument:
        """This resizing as plan files hold it."""
        return ResizedGroupDocument(
            pipeline=self.pipeline,
            stage=self.stage,
            ranks=list(self.ranks),
            slowness=list(self.slowness),
            pace_before=self.before,
            pace=self.after,
            pruned=list(self.shares.pruned),
            sent=list(self.shares.sent),
            received=list(self.shares.received),
            pruned_share=self.shares.pruned_share,
            sent_bytes=self.sent_bytes,
        )


def resized(plan: Plan, wanted: Resizing, hwdb: Hwdb) -> tuple[Plan, tuple[ResizedGroup, ...]]:
    """A plan on a cluster with slow ranks, its tensor-parallel groups sharing their columns by speed.

    A group that gains nothing stays as it is. The plan given back runs on a cluster whose ranks have the pace
    of their group.
    """
    slow = dict(plan.cluster.health.compute)
    healthy = replace(plan, cluster=replace(plan.cluster, health=replace(plan.cluster.health, compute=())))
    played = forecast(healthy, hwdb)
    groups = [
        group
        for seat, island, causes in zip(played.seats, played.islands, played.inside, strict=True)
        for group in _groups(played, seat, island, {one.cause: one.seconds for one in causes}, slow, wanted)
        if group.after < group.before
    ]
    paces = slow | {rank: group.after for group in groups for rank in group.ranks}
    compute = tuple(sorted((rank, factor) for rank, factor in paces.items() if factor != 1.0))
    health = replace(plan.cluster.health, compute=compute)
    return replace(plan, cluster=replace(plan.cluster, health=health)), tuple(groups)


def _groups(
    played: Forecast,
    seat: PartAddress,
    island: Island,
    seconds: Mapping[str, float],
    slow: Mapping[int, float],
    wanted: Resizing,
) -> Iterator[ResizedGroup]:
    """The tensor-parallel groups of one part that have a slow rank, with what they come to."""
    part, stage, model = played.part_of(seat), played.stage_of(seat), played.plan.model
    layers = sum(stop - start for start, stop in stage.chunks)
    tp, columns_s = part.layouts[0].layout.tp, seconds.get("gemm", 0.0)
    if tp < 2 or not layers or not columns_s:
        return
    share_bytes = (
        played.plan.job.precision.weight_bytes
        * sum(
            block.parameters(model.hidden)
            for start, stop in stage.chunks
            for block in model.blocks[start:stop]
        )
        / layers
        / tp
    )
    often = played.plan.pipelines[seat.pipeline].microbatches
    costs = LayerCosts(
        columns_s / layers,
        sum(seconds.get(cause, 0.0) for cause in _FIXED) / layers,
        island.intra.latency_s / often,
        share_bytes / island.intra.bytes_per_s / often if island.intra.bytes_per_s else inf,
    )
    whole_s = costs.columns_s + costs.fixed_s
    for first in range(0, len(part.ranks), tp):
        ranks = part.ranks[first : first + tp]
        slowness = tuple(slow.get(rank, 1.0) for rank in ranks)
        if max(slowness) == min(slowness):
            continue
        shares = hybrid(slowness, costs, wanted.cap, wanted.max_pruned)
        yield ResizedGroup(
            seat.pipeline,
            seat.stage,
            ranks,
            slowness,
            even(slowness, costs).layer_s / whole_s,
            shares.layer_s / whole_s,
            shares,
            sum(shares.sent) * share_bytes * layers,
        )
