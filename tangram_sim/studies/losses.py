"""State lost with nodes, where to restore it from, and what must move to the plan without them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.file_parts import FiniteOrNull
from tangram_sim.findings import Finding, Severity, behind_stops, declare
from tangram_sim.hwdb import Hwdb
from tangram_sim.placement.ranks import Placement
from tangram_sim.reliability.checkpointing import CheckpointTier
from tangram_sim.reliability.moves import assign, moves, transfer_seconds
from tangram_sim.reliability.restoring import chosen, judged
from tangram_sim.reliability.state import (
    StateMap,
    copies,
    lost_with,
    ring_partners,
    state_of,
    with_partners,
)
from tangram_sim.studies.documents import AnswerDocument, Document
from tangram_sim.studies.results import Result
from tangram_sim.training.plan import Plan

_MOVED = (
    "without {nodes:listed}: step {before_s:seconds} before, {after_s:seconds} now; {moved_bytes:bytes} of "
    "weights and optimizer state move in {transfer_s:seconds}, {kept_bytes:bytes} are where they must be"
)
MOVES = declare("state-moves", Severity.NOTE, _MOVED)
MOVES_AND_LOADS = declare(
    "state-moves-and-is-loaded",
    Severity.NOTE,
    _MOVED + "; {checkpoint_bytes:bytes} have no copy left and come from a checkpoint",
)


class GoneDocument(Document):
    """Layers whose state has no copy left, and its bytes."""

    place: str
    what: str = Field(description="weights, or optimizer: moments and master copy")
    part: str = Field(description="dense, or expert")
    layers: tuple[int, int] = Field(
        description="atoms [start, stop): 0 the embedding, then blocks, then head"
    )
    bytes: float


class TierLeftDocument(Document):
    """A checkpoint tier after a loss."""

    name: str
    survives: str
    left: bool
    reason: str = Field(description="why it is gone; empty: it is left")
    costs_s: float = Field(description="work done again in the mean (stated periods), saving, loading")
    period_s: FiniteOrNull = Field(None, description="null: auto, and its half is not part of costs_s")


class LostDocument(AnswerDocument):
    """`explain --lost --json`."""

    lost: list[str]
    nodes_used: int
    copies: dict[str, int] = Field(description="nodes that hold any share of it, at least")
    survives: bool = Field(description="whether live nodes still have everything")
    gone: list[GoneDocument]
    gone_bytes: float
    restored_from: str = Field(description="nothing lost, peers, partner copies, or checkpoint")
    tiers: list[TierLeftDocument] = Field([], description="of `--checkpoint`, as given")
    restored_by: str | None = Field(None, description="the cheapest tier left; null: no tiers, or none left")
    refetched_bytes: float = Field(description="what replacements of the lost nodes must hold")
    survives_any_one: bool = Field(description="whether everything is left whichever node goes")


@dataclass(frozen=True, slots=True)
class Migration:
    """State to move from a plan to one without some nodes. Bytes and seconds."""

    moved_bytes: float  # from live nodes to others
    kept_bytes: float  # needed and already there
    checkpoint_bytes: float  # no live copy: read from a checkpoint
    transfer_s: float  # all transfers at once, NICs shared evenly

    def finding(self, names: Sequence[str], before_s: float, after_s: float) -> Finding:
        """A finding on the loss of the nodes `names`: what must move, and the step before and after."""
        figures = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kind = MOVES_AND_LOADS if self.checkpoint_bytes else MOVES
        return kind(nodes=[*names], before_s=before_s, after_s=after_s, **figures)


def nodes_named(names: Sequence[str], cluster: Cluster) -> frozenset[int]:
    """Node numbers of names n0, n1, ... in file order. Raises UnknownNameError."""
    known = {f"n{index}": index for index in range(len(cluster.node_group))}
    for name in names:
        if name not in known:
            raise unknown_name("node", name, known, "Nodes are numbered in file order, n0 first.")
    return frozenset(known[name] for name in names)


def lost_document(
    plan: Plan,
    hwdb: Hwdb,
    names: Sequence[str],
    partners: bool,
    tiers: Callable[[StateMap], Sequence[CheckpointTier]] | None = None,
) -> LostDocument:
    """State lost with the named nodes; `partners`: every node's state is also in the next node's memory.

    `tiers` returns the checkpoint tiers for a map of the state.
    """
    lost = nodes_named(names, plan.cluster)
    state = state_of(plan, Placement(plan.cluster, hwdb).node_of)
    held = with_partners(state, ring_partners(state.nodes)) if partners else state
    gone = lost_with(held, lost)
    without = bool(lost_with(state, lost))
    hit = lost & set(state.nodes)
    verdicts = judged(tiers(state) if tiers else (), lost, state.nodes, plan.cluster)
    restoring = chosen(verdicts) if gone else None
    source = "checkpoint" if gone else "partner copies" if without else "peers" if hit else "nothing lost"
    return LostDocument(
        lost=list(names),
        nodes_used=len(state.nodes),
        copies={" ".join(reversed(section)): count for section, count in copies(held).items()},
        survives=not gone,
        gone=[
            GoneDocument(
                place=loss.place,
                what=loss.section[0],
                part=loss.section[1],
                layers=(loss.start, loss.stop),
                bytes=loss.lost_bytes,
            )
            for loss in gone
        ],
        gone_bytes=sum(loss.lost_bytes for loss in gone),
        restored_from=source,
        tiers=[TierLeftDocument.from_objects(verdict, verdict.tier) for verdict in verdicts],
        restored_by=restoring.tier.name if restoring else None,
        refetched_bytes=sum(size for node, size in state.held_bytes().items() if node in hit),
        survives_any_one=not any(lost_with(held, {node}) for node in state.nodes),
    )


def without_nodes(cluster: Cluster, lost: frozenset[int]) -> tuple[Cluster, tuple[int, ...]]:
    """(the cluster without the nodes `lost`, the old number of every node kept).

    Raises InfeasibleError if no node is left, BadInputError for a cluster that states its graph in full.
    """
    if cluster.wiring.full:
        raise BadInputError(
            f"{cluster.name} states its interconnect node by node; take the nodes out of that file instead"
        )
    kept = tuple(node for node in range(len(cluster.node_group)) if node not in lost)
    if not kept:
        raise InfeasibleError(
            f"all {len(cluster.node_group)} nodes of {cluster.name} are lost: nothing is left"
        )
    counts = [sum(cluster.node_group[node] == index for node in kept) for index in range(len(cluster.groups))]
    standing = [index for index, count in enumerate(counts) if count]
    place = {index: at for at, index in enumerate(standing)}
    groups = tuple(replace(cluster.groups[index], count=counts[index]) for index in standing)
    between = tuple(
        replace(limit, groups=(place[limit.groups[0]], place[limit.groups[1]]))
        for limit in cluster.network.between
        if set(limit.groups) <= set(standing)
    )
    return replace(cluster, groups=groups, network=replace(cluster.network, between=between)), kept


def migration(old: Plan, new: Plan, kept: Sequence[int], names: Sequence[str], hwdb: Hwdb) -> Migration:
    """State to move from the plan `old` to the plan `new`.

    `kept`: old numbers of `new`'s nodes, in order; each place in `new` may go to any node of the same group.
    """
    lost = nodes_named(names, old.cluster)
    held = state_of(old, Placement(old.cluster, hwdb).node_of)
    wanted = state_of(new, Placement(new.cluster, hwdb).node_of)
    placed = wanted.on(_places(held, wanted, old.cluster, new.cluster, kept))
    found = moves(held, placed, lost)
    group_of, cluster = old.cluster.node_group, old.cluster

    def nic(node: int) -> float:
        return cluster.groups[group_of[node]].node.nic_bytes_per_s

    def rate(a: int, b: int) -> float:
        return min(nic(a), nic(b), cluster.group_limit(group_of[a], group_of[b])[0])

    seconds = transfer_seconds(found, rate, nic)
    return Migration(found.fetched_bytes, found.kept_bytes, found.restored_bytes, seconds)


def plan_without(
    cluster: Cluster, names: Sequence[str], hwdb: Hwdb, planned: Callable[[Cluster], Result]
) -> Result:
    """The plan without the nodes `names`, with a note on the state that must move to it.

    Raises UnknownNameError for unknown nodes, InfeasibleError where no node is left.
    """
    left, kept = without_nodes(cluster, nodes_named(names, cluster))
    after, before = planned(left), planned(cluster)
    found = migration(before.forecast.plan, after.forecast.plan, kept, names, hwdb)
    moved = found.finding(names, before.document.step_s, after.document.step_s)
    findings = behind_stops(moved, after.document.findings)
    return replace(after, document=after.document.with_findings(findings))


def _places(
    held: StateMap, wanted: StateMap, old: Cluster, new: Cluster, kept: Sequence[int]
) -> dict[int, int]:
    """Node for each place of the new plan: of the same group, so that the fewest bytes are fetched."""
    name_of = {node: old.groups[old.node_group[node]].name for node in kept}
    kind_of = {
        **name_of,
        **{-1 - place: new.groups[group].name for place, group in enumerate(new.node_group)},
    }
    return assign(held, wanted, kind_of, list(kept))
