"""ZERO-resizing, SEMI-migration and unit migration for tensor-parallel groups with a slow rank.

Shares come from `reliability.stragglers.tensor_shares`, traffic from `tensor_traffic`. Matrix products are
priced again with every rank's share; attention and memory-bound kernels run at the rank's own speed, and
transfers at the speed of the group's links. A group that gains nothing keeps even shares.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.health import Resizing
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Block
from tangram_sim.reliability.stragglers.tensor_shares import (
    LayerCosts,
    Shares,
    even,
    hybrid,
    published_shares,
    repriced,
)
from tangram_sim.reliability.stragglers.tensor_shares import resized as pruned_only
from tangram_sim.reliability.stragglers.tensor_traffic import (
    SharingCosts,
    attention_gemms,
    inner_gemms,
    sharing_costs,
)
from tangram_sim.studies.forecast import Forecast, PartAddress, forecast
from tangram_sim.studies.slow_documents import ResizedGroupDocument
from tangram_sim.training.plan import Plan
from tangram_sim.training.stage import gemms, peaks
from tangram_sim.training.stage.setting import Setting

_FIXED = ("attention", "memory")  # of a pass, what does not follow a rank's share of the columns


@dataclass(frozen=True, slots=True)
class ResizedGroup:
    """A tensor-parallel group with a slow rank: place, slowness of its ranks, shares of columns."""

    pipeline: int
    stage: int
    ranks: tuple[int, ...]
    slowness: tuple[float, ...]
    before: float  # its layers' seconds with even shares over those of healthy ranks
    after: float
    shares: Shares
    sent_bytes: float  # a step

    def document(self) -> ResizedGroupDocument:
        """The group as a document of a plan file."""
        return ResizedGroupDocument.from_objects(self, self.shares, pace_before=self.before, pace=self.after)


def resized(plan: Plan, wanted: Resizing, hwdb: Hwdb) -> tuple[Plan, tuple[ResizedGroup, ...]]:
    """(the plan with slow ranks, its tensor-parallel groups sharing columns by speed; the groups resized).

    A group that gains nothing stays as it is. In the returned plan each rank is as slow as its group's
    layers.
    """
    slow = dict(plan.cluster.health.compute)
    healthy = replace(plan, cluster=replace(plan.cluster, health=replace(plan.cluster.health, compute=())))
    groups = [
        group
        for stage in sharing_stages(forecast(healthy, hwdb), hwdb)
        for group in _groups(stage, slow, wanted)
        if group.after < group.before
    ]
    paces = slow | {rank: group.after for group in groups for rank in group.ranks}
    compute = tuple(sorted((rank, factor) for rank, factor in paces.items() if factor != 1.0))
    health = replace(plan.cluster.health, compute=compute)
    return replace(plan, cluster=replace(plan.cluster, health=health)), tuple(groups)


@dataclass(frozen=True, slots=True)
class SharingStage:
    """A part of a stage whose tensor-parallel ranks can share columns; seconds are of one micro-batch."""

    seat: PartAddress
    ranks: tuple[int, ...]
    setting: Setting  # of its layout
    blocks: tuple[Block, ...]
    costs: LayerCosts  # without pruning and sending
    added: SharingCosts
    free_bytes: float  # of a rank at its peak
    beside_s: float = 0.0  # what runs beside the products of its blocks

    @property
    def tp(self) -> int:
        """Tensor-parallel degree: ranks per group."""
        return self.setting.layouts[0].tp

    def products_s(self, attention: Sequence[float], inner: Sequence[float]) -> list[float]:
        """Seconds of each rank's matrix products, [n]; arguments: its columns relative to an even share."""
        total = np.zeros(len(inner))
        for shares, parts in ((attention, attention_gemms), (inner, inner_gemms)):
            setting = replace(
                self.setting, layouts=self.setting.layouts[:1] * len(shares), shares=tuple(shares)
            )
            for block in self.blocks:
                taken = gemms.passes(setting, parts(setting, block))
                again = 2.0 if setting.layouts[0].recompute == "full" else 1.0
                total = total + again * taken.forward + taken.input_gradient + taken.weight_gradient
        return [float(item) for item in total]

    def layers_s(self, shares: Shares) -> list[float]:
        """Seconds of all layers on a healthy rank with each rank's share of columns, [n]."""
        moved = np.subtract(shares.received, shares.sent)
        kept = 1 - np.array(shares.pruned)
        costs = self.costs
        if costs.units and max(shares.sent) <= costs.unit_part:  # feed-forward units alone have moved
            products_s = self.products_s(kept.tolist(), (kept + moved / costs.unit_part).tolist())
        else:
            products_s = self.products_s((kept + moved).tolist(), (kept + moved).tolist())
        extra = [self.added.gather_s * (11 * (1 - cut) + 1) if cut else 0.0 for cut in shares.pruned]
        return [self.beside_s + item + more for item, more in zip(products_s, extra, strict=True)]


def sharing_stages(played: Forecast, hwdb: Hwdb) -> Iterator[SharingStage]:
    """Yields the parts of a simulated plan that have tensor-parallel groups."""
    plan = played.plan
    for seat, island, causes in zip(played.seats, played.islands, played.inside, strict=True):
        part, stage = played.part_of(seat), played.stage_of(seat)
        seconds = {path_share.cause: path_share.seconds for path_share in causes}
        blocks = tuple(block for start, stop in stage.chunks for block in plan.model.blocks[start:stop])
        layout = part.layouts[0].layout
        if layout.tp < 2 or not blocks or not seconds.get("gemm"):
            continue
        setting = Setting(plan.model, island, plan.job, part.sequences_per_microbatch, (layout,), hwdb)
        step = played.lowered.steps[seat.pipeline]
        chunks, held = step.of_part(seat.stage, seat.part), step.in_flight[seat.stage]
        free = peaks.capacity_bytes(chunks) - peaks.device_bytes(chunks, held)
        added = sharing_costs(setting, blocks, plan.pipelines[seat.pipeline].microbatches)
        found = SharingStage(
            seat, part.ranks, setting, blocks, costs=LayerCosts(1.0), added=added, free_bytes=free
        )
        whole_s, no_inner_s, no_attention_s = found.products_s([1.0, 1.0, 0.0], [1.0, 0.0, 1.0])
        inner_s, attention_s = whole_s - no_inner_s, whole_s - no_attention_s
        columns_s = inner_s + attention_s
        beside_s = sum(seconds.get(cause, 0.0) for cause in _FIXED) + max(seconds["gemm"] - whole_s, 0.0)
        per_share = added.unit.listed + held * max(chunk.activation_bytes for chunk in chunks)
        costs = LayerCosts(
            columns_s,
            beside_s + whole_s - columns_s,
            most_received=max(free, 0.0) / per_share,
            units=max(blocks[0].feed_forward.width // layout.tp, 1),
            unit_part=inner_s / columns_s,
            groups=blocks[0].attention.kv_heads // layout.tp,
        )
        yield replace(found, costs=costs, beside_s=beside_s)


def shared_out(stage: SharingStage, slowness: Sequence[float], wanted: Resizing) -> Shares:
    """How ranks of this slowness share a group's columns by the wanted method; seconds per microbatch."""
    costs = stage.added.costs(stage.costs, wanted.method)
    if wanted.method == "semi-migration" and stage.added.transient_bytes > stage.free_bytes:
        return even(slowness, costs)
    if wanted.shares == "published":
        shares = published_shares(slowness, costs, wanted.method != "zero-resizing")
        if shares.pruned_share > wanted.max_pruned:
            return even(slowness, costs)
    elif wanted.method == "zero-resizing":
        shares = pruned_only(slowness, costs, wanted.cap, wanted.max_pruned)
    else:
        shares = hybrid(slowness, costs, wanted.cap, wanted.max_pruned)
    return repriced(shares, slowness, stage.layers_s(shares))


def _groups(stage: SharingStage, slow: Mapping[int, float], wanted: Resizing) -> Iterator[ResizedGroup]:
    """Yields the tensor-parallel groups of one part that have a slow rank, with their shares and gains."""
    whole_s = stage.costs.columns_s + stage.costs.fixed_s
    traffic = stage.added.traffic(wanted.method)
    for first in range(0, len(stage.ranks), stage.tp):
        ranks = stage.ranks[first : first + stage.tp]
        slowness = tuple(slow.get(rank, 1.0) for rank in ranks)
        if max(slowness) == min(slowness):
            continue
        shares = shared_out(stage, slowness, wanted)
        yield ResizedGroup(
            stage.seat.pipeline,
            stage.seat.stage,
            ranks,
            slowness,
            before=max(slowness),
            after=shares.layer_s / whole_s,
            shares=shares,
            sent_bytes=sum(traffic.at(share) for share in shares.sent),
        )
