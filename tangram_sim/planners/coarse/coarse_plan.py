"""Coarse plans: how many replicas of which GPU kind hold which atoms, in the terms of whole-cluster planners.

Also what these planners share: the closed form of a 1F1B step, and the assignment of ranks.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tangram_sim.clusters import Cluster
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.planners.coarse.profile import LayerTable, Profile
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan, Share, pipeline_of_shares
from tangram_sim.training.shares import by_earliest_end

_ROUNDS = 40  # halvings of the interval that holds the least bottleneck


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """`replicas` of one GPU kind in a stage, `tp` GPUs each, that process `sequences` of every microbatch."""

    kind: int
    replicas: int
    tp: int
    sequences: int

    @property
    def per_replica(self) -> int:
        """Sequences per microbatch of the replica with the most; that replica sets the time of the group."""
        return -(-self.sequences // self.replicas)


@dataclass(frozen=True, slots=True)
class CoarsePlan:
    """Pipeline stages, front to back; `cuts` are atom boundaries, including 0 and the number of atoms."""

    microbatches: int
    microbatch: int
    cuts: tuple[int, ...]
    stages: tuple[tuple[ReplicaGroup, ...], ...]

    def __str__(self) -> str:
        """The notation of recorded plans: `L7[8xV100/tp1] > L19[8xA100/tp1]`, with kinds as numbers."""
        words = [
            f"L{b - a}[{','.join(f'{team.replicas}x{team.kind}/tp{team.tp}' for team in stage)}]"
            for (a, b), stage in zip(pairwise(self.cuts), self.stages, strict=True)
        ]
        return f"{self.microbatches} x {self.microbatch}: {' > '.join(words)}"


def tables_of(stage: Sequence[ReplicaGroup], profile: Profile) -> list[LayerTable] | None:
    """One profile table per replica group of a stage; None where the profile lacks one of them."""
    found = [profile.layers(team.kind, team.tp, team.per_replica) for team in stage]
    return None if any(table is None for table in found) else [table for table in found if table]


def step_s(outline: CoarsePlan, profile: Profile) -> float:
    """Seconds of a step in closed form; inf where the profile lacks a table.

    (m - 1) x slowest stage + sum of stages + transfers + the longest gradient all-reduce and update. A stage
    is as slow as its slowest replica; transfers are charged once, forward and backward; nothing overlaps.
    """
    slowest = total = tail = 0.0
    for (start, stop), stage in zip(pairwise(outline.cuts), outline.stages, strict=True):
        tables = tables_of(stage, profile)
        if tables is None:
            return float("inf")
        seconds = max(table.seconds[stop] - table.seconds[start] for table in tables)
        update = max(table.updates[stop] - table.updates[start] for table in tables)
        slowest, total = max(slowest, seconds), total + seconds
        tail = max(tail, update + sync_s(stage, start, stop, profile))
    sent = sum(hop_s(a, b, outline.microbatch, profile) for a, b in pairwise(outline.stages))
    return (outline.microbatches - 1) * slowest + total + 2 * sent + tail


def sync_s(stage: Sequence[ReplicaGroup], start: int, stop: int, profile: Profile) -> float:
    """Seconds of the ring all-reduce of gradients of atoms [start, stop) over all replicas of a stage.

    The `tp` rings of a replica share its node's links, so the gradients of a whole layer cross them once.
    """
    copies = sum(team.replicas for team in stage)
    if copies == 1:
        return 0.0
    size = sum(profile.gradient_bytes[start:stop])
    kinds = [team.kind for team in stage]
    inside = len(stage) == 1 and copies * stage[0].tp <= profile.kinds[kinds[0]].gpus_per_node
    if inside:
        rate = profile.inside_rate(kinds[0], size / stage[0].tp) * stage[0].tp
    else:
        rate = min(profile.rate(a.kind, b.kind, size, min(a.tp, b.tp)) for a in stage for b in stage)
    return 2 * (copies - 1) / copies * size / rate


def hop_s(
    before: Sequence[ReplicaGroup], after: Sequence[ReplicaGroup], microbatch: int, profile: Profile
) -> float:
    """Seconds to send one microbatch to the next stage, one direction, at the slowest pair's rate."""
    size = microbatch * profile.boundary_bytes / max(min(_replicas(before), _replicas(after)), 1)
    return size / min(profile.rate(a.kind, b.kind, size, min(a.tp, b.tp)) for a in before for b in after)


def _replicas(stage: Sequence[ReplicaGroup]) -> int:
    return sum(team.replicas for team in stage)


def fits(outline: CoarsePlan, profile: Profile) -> bool:
    """Whether every replica group fits its memory, with one microbatch in flight per stage from its own to
    the last."""
    depth = len(outline.stages)
    for place, ((start, stop), stage) in enumerate(zip(pairwise(outline.cuts), outline.stages, strict=True)):
        tables = tables_of(stage, profile)
        if tables is None:
            return False
        in_flight = min(outline.microbatches, depth - place)
        for table in tables:
            held = table.bytes_with(in_flight)
            if held[stop] - held[start] > table.memory_bytes:
                return False
    return True


def balanced(
    stages: Sequence[Sequence[ReplicaGroup]],
    microbatches: int,
    profile: Profile,
    limit_s: float = float("inf"),
) -> tuple[tuple[int, ...], float] | None:
    """(cuts, seconds of the slowest stage) with the fastest slowest stage in memory; None where nothing fits.

    Also None where the slowest stage would take longer than `limit_s`.

    For a given limit, filling stages front to back as far as time and memory allow is optimal, so bisection
    finds the smallest limit.
    """
    depth, atoms = len(stages), profile.atoms
    if depth > atoms:
        return None
    seconds: list[list[list[float]]] = []
    held: list[list[tuple[list[float], float]]] = []
    for place, stage in enumerate(stages):
        tables = tables_of(stage, profile)
        if tables is None:
            return None
        in_flight = min(microbatches, depth - place)
        seconds.append([table.seconds for table in tables])
        held.append([(table.bytes_with(in_flight), table.memory_bytes) for table in tables])

    def filled(limit: float) -> tuple[int, ...] | None:
        cuts, place = [0], 0
        for number in range(depth):
            most = atoms - (depth - 1 - number)
            for row in seconds[number]:
                most = min(most, bisect_right(row, row[place] + limit, place) - 1)
            for row, room in held[number]:
                most = min(most, bisect_right(row, row[place] + room, place) - 1)
            if most <= place:
                return None
            cuts.append(most)
            place = most
        return tuple(cuts) if place == atoms else None

    high = min(max(row[-1] for rows in seconds for row in rows) * (1 + 1e-9), limit_s)
    best = filled(high)
    if best is None:
        return None
    low = 0.5 / sum(1 / max(row[-1] for row in rows) for rows in seconds)
    if filled(low) is not None:  # atoms so unequal that the ideal split says nothing
        low = 0.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        found = filled(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
        if high - low <= 1e-4 * high:
            break
    slowest = max(
        row[stop] - row[start]
        for (start, stop), rows in zip(pairwise(best), seconds, strict=True)
        for row in rows
    )
    return best, slowest


def shared_out(
    kinds: Sequence[tuple[int, int, int]], microbatch: int, profile: Profile
) -> tuple[ReplicaGroup, ...] | None:
    """Replica groups of (kind, replicas, tp) that share a microbatch so that the slowest group ends soonest.

    Round by round, the group that would then end first gets one more sequence for each of its replicas, timed
    at the seconds per sequence of an even share. A group's last replicas may have one sequence less. None
    where a group would get fewer sequences than replicas, or the profile has no table for it.
    """
    if len(kinds) == 1:
        kind, replicas, tp = kinds[0]
        return (ReplicaGroup(kind, replicas, tp, microbatch),) if microbatch >= replicas else None
    even = -(-microbatch // sum(replicas for _, replicas, _ in kinds))
    paces = []
    for kind, _, tp in kinds:
        table, size = profile.layers(kind, tp, even), even
        if table is None:
            table, size = profile.layers(kind, tp, 1), 1
        if table is None:
            return None
        paces.append(table.seconds[-1] / size)
    taken = by_earliest_end(
        microbatch, lambda kind, turns: turns * paces[kind], [replicas for _, replicas, _ in kinds]
    )
    if any(count < replicas for count, (_, replicas, _) in zip(taken, kinds, strict=True)):
        return None
    return tuple(
        ReplicaGroup(kind, replicas, tp, count)
        for (kind, replicas, tp), count in zip(kinds, taken, strict=True)
    )


def plan_of(outline: CoarsePlan, model: Model, cluster: Cluster, job: Job, profile: Profile) -> Plan:
    """The plan with ranks assigned: groups of larger tp first; those wider than a node take whole nodes."""
    free: dict[int, list[list[int]]] = {}
    for number, kind in enumerate(profile.kinds):
        size = kind.gpus_per_node
        free[number] = [list(kind.ranks[node * size : (node + 1) * size]) for node in range(kind.nodes)]
    seated: dict[tuple[int, int], tuple[int, ...]] = {}
    order = sorted(
        (
            (team.tp, place, number)
            for place, stage in enumerate(outline.stages)
            for number, team in enumerate(stage)
        ),
        key=lambda item: (-item[0], item[1], item[2]),
    )
    for tp, place, number in order:
        team = outline.stages[place][number]
        ranks: list[int] = []
        nodes = free[team.kind]
        if tp > (size := profile.kinds[team.kind].gpus_per_node):
            whole = [node for node in nodes if len(node) == size][: team.replicas * tp // size]
            ranks = [rank for node in whole for rank in node]
            free[team.kind] = [node for node in nodes if node not in whole]
        for node in nodes if tp <= size else ():
            while len(node) >= tp and len(ranks) < team.replicas * tp:
                ranks += node[:tp]
                del node[:tp]
        if len(ranks) < team.replicas * tp:
            raise ValueError(f"{outline}: not enough GPUs of {profile.kinds[team.kind].name} in one piece")
        seated[place, number] = tuple(ranks)
    shares = [
        [
            Share(
                profile.kinds[team.kind].name,
                seated[place, number],
                team.sequences,
                Layout(tp=team.tp, dp=team.replicas),
            )
            for number, team in enumerate(stage)
        ]
        for place, stage in enumerate(outline.stages)
    ]
    cuts = [min(max(cut - 1, 0), model.layers) for cut in outline.cuts]
    return Plan(model, cluster, job, (pipeline_of_shares(outline.microbatches, cuts, shares),))
