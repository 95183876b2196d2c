"""Which checkpoint tier restores state that is lost with some nodes, and why other tiers cannot."""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tangram_sim.clusters import Cluster
from tangram_sim.reliability.checkpointing import CheckpointTier
from tangram_sim.reliability.state import ring_partners


@dataclass(frozen=True, slots=True)
class TierVerdict:
    """Whether a checkpoint tier still holds the lost state; `reason` says why not."""

    tier: CheckpointTier
    left: bool
    reason: str
    costs_s: (
        float  # work done again in the mean, until durable, loading; the period counts where it is stated
    )


def leaf_of(cluster: Cluster) -> list[tuple[int, int]]:
    """(group, leaf number) of every node; a group shares leaf 0 unless the cluster sets `leaf_nodes`."""
    size = cluster.wiring.leaf_nodes
    first = [list(cluster.node_group).index(group) for group in range(len(cluster.groups))]
    return [
        (group, (node - first[group]) // size if size else 0) for node, group in enumerate(cluster.node_group)
    ]


def judged(
    tiers: Sequence[CheckpointTier], lost: AbstractSet[int], used: Sequence[int], cluster: Cluster
) -> tuple[TierVerdict, ...]:
    """For each tier, in order, whether its checkpoint survives losing `lost` of the nodes that a plan uses.

    `survives: node` keeps each node's copy in the memory of the next node: it survives unless two neighbours
    are lost. `survives: leaf` keeps the copy on another leaf of the plan, where there is one.
    """
    struck = lost & set(used)
    return tuple(
        TierVerdict(tier, not reason, reason, _costs_s(tier))
        for tier in tiers
        for reason in (_why_not(tier, struck, used, cluster) if struck else "",)
    )


def chosen(verdicts: Sequence[TierVerdict]) -> TierVerdict | None:
    """The cheapest tier that survived; None where no tier did."""
    return min(
        (verdict for verdict in verdicts if verdict.left),
        key=lambda tier_verdict: tier_verdict.costs_s,
        default=None,
    )


def _why_not(tier: CheckpointTier, lost: AbstractSet[int], used: Sequence[int], cluster: Cluster) -> str:
    if tier.survives == "all":
        return ""
    if tier.survives == "process":
        return "it lies in the memory of the nodes that are gone"
    if tier.survives == "leaf":
        leaves = leaf_of(cluster)
        hit, all_used = ({leaves[node] for node in nodes} for nodes in (lost, used))
        if len(all_used) == 1:
            return "all nodes of the plan are on one leaf, no other holds its copy"
        return "" if len(hit) <= 1 else f"nodes of {len(hit)} leaves are gone, it survives one"
    partners = ring_partners(used)
    pair = next((node for node in used if node in lost and partners[node] in lost), None)
    if pair is None:
        return ""
    other = partners[pair]
    return (
        f"n{pair} and n{other}, which holds its copy, are both gone" if other != pair else "it has no partner"
    )


def _costs_s(tier: CheckpointTier) -> float:
    again = 0.0 if math.isnan(tier.period_s) else tier.period_s / 2
    return again + tier.save_s + tier.load_s
