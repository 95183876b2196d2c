"""Metis as its authors published it (github:SamsungLabs/Metis); `metis` has the repaired version.

Its estimates decide: a plan may need more memory than its GPUs have. Six points differ from `metis`; each can
be repaired alone, to see how much it changes the plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np

from tangram_sim.clusters import Cluster
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors, head_counts
from tangram_sim.planners.coarse.coarse_plan import (
    CoarsePlan,
    ReplicaGroup,
    balanced,
    fits,
    plan_of,
    shared_out,
    step_s,
    tables_of,
)
from tangram_sim.planners.coarse.profile import LayerTable, Profile
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.peers.metis import DEEPEST, PERMUTED, VARIANCE, Place, device_groups, occupied
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner, best_that_fits, no_answer
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan

# memory: five times the first kind's rows against the memory of all GPUs of a stage, nothing in flight;
# bandwidth: between nodes as inside a node; layers: by compute shares, at most three repairs; orders: later
# orders of kinds are costed by their first stage; data: by the speed of one sequence; degrees: beyond a node.
DEFECTS = ("memory", "bandwidth", "layers", "orders", "data", "degrees")
_MEMORY_FACTOR = 5.0
_REPAIRS, _REPAIRED = 3, 0.9


class MetisPublished(WholeClusterPlanner):
    """Metis with the published estimates; `mended` names the one of `DEFECTS` to repair.

    `trusted`: return its best plan even where the simulator says that the plan does not fit memory.
    """

    name = "metis-published"
    limits = (
        "it trusts five times the first GPU kind's bytes against the sum of a stage's memories, and knows "
        "neither recomputation nor ZeRO, experts or context parallelism"
    )
    compared = False

    def __init__(self, mended: str = "", trusted: bool = False) -> None:
        self.mended, self.trusted = mended, trusted

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The best plan by the published estimates; unless `trusted`, the best of those that fit memory."""
        heads = int(np.gcd.reduce(list(head_counts(model))))
        search = PublishedSearch(price.profile, job.global_batch, heads, self.mended)
        found = search.outlines(price.deadline)
        if not self.trusted:
            return best_that_fits(found, price, self)
        for outline in found:
            return plan_of(outline, model, cluster, job, price.profile)
        raise no_answer(self, price, f"no plan it considers for {model.name} passes its memory estimate")


@dataclass(frozen=True)
class PublishedSearch:
    """The published search over coarse plans, ranked by its own step estimate."""

    profile: Profile
    global_batch: int
    heads: int  # what tensor-parallel degrees divide
    mended: str = ""

    def outlines(self, deadline: Deadline) -> Iterator[CoarsePlan]:
        """Coarse plans that pass the published memory estimate, fastest first by its own estimate."""
        found: list[tuple[float, int, CoarsePlan]] = []
        for later, places in self._arrangements(deadline):
            for microbatches in divisors(self.global_batch):
                for outline in self._strategies(places, microbatches):
                    found.append((self.cost_s(outline, later), len(found), outline))
            if deadline.over():
                break
        found.sort(key=lambda item: item[:2])
        yield from dict.fromkeys(outline for _, _, outline in found)

    def _arrangements(self, deadline: Deadline) -> Iterator[tuple[bool, tuple[Place, ...]]]:
        """Yields (whether this is not the first order of kinds, device groups front to back)."""
        gpus = sum(kind.gpus for kind in self.profile.kinds)
        for number, order in enumerate(permutations(range(len(self.profile.kinds)))):
            for depth in range(1, min(DEEPEST, self.profile.atoms, gpus) + 1):
                for sizes in device_groups(gpus, depth, VARIANCE, PERMUTED):
                    if deadline.over():
                        return
                    yield number > 0, occupied(self.profile, order, sizes)

    def _strategies(self, places: tuple[Place, ...], microbatches: int) -> Iterator[CoarsePlan]:
        """Coarse plans from pure data parallelism on; then the stage with the least room doubles its tp."""
        microbatch, tps = self.global_batch // microbatches, [1] * len(places)
        while True:
            stages = [self._stage(place, tp, microbatch) for place, tp in zip(places, tps, strict=True)]
            whole = [stage for stage in stages if stage]
            rooms = [0.0] * len(places)
            if len(whole) == len(stages):
                cuts = self._cuts(whole, microbatches)
                outline = CoarsePlan(microbatches, microbatch, cuts, tuple(whole)) if cuts else None
                if outline:
                    rooms = [room - demand for demand, room in self._demands(outline)]
                    if min(rooms) >= 0 if self.mended != "memory" else fits(outline, self.profile):
                        yield outline
            order = sorted(range(len(places)), key=lambda index: (bool(stages[index]), rooms[index], index))
            widened = next((item for item in order if self._degree(places[item], tps[item] * 2)), -1)
            if widened < 0:
                return
            tps[widened] *= 2

    def _degree(self, place: Place, tp: int) -> bool:
        """Whether the published code allows this tensor-parallel degree on a device group."""
        if self.mended == "degrees" and any(tp not in self.profile.tps(kind) for kind, _ in place):
            return False
        return self.heads % tp == 0 and all(count % tp == 0 for _, count in place)

    def _stage(self, place: Place, tp: int, microbatch: int) -> tuple[ReplicaGroup, ...] | None:
        """Replica groups of a stage, data shared by the speed of one sequence; None where impossible."""
        if not self._degree(place, tp):
            return None
        kinds = [(kind, count // tp, tp) for kind, count in place]
        known = self.profile if self.mended == "data" else _OneSequence(self.profile)
        teams = shared_out(kinds, microbatch, known)
        return teams if teams and tables_of(teams, self.profile) else None

    def _cuts(self, stages: list[tuple[ReplicaGroup, ...]], microbatches: int) -> tuple[int, ...] | None:
        """Boundaries with atoms in proportion to speed, fewer where memory is short; None if impossible."""
        if self.mended == "layers":
            found = balanced(stages, microbatches, self.profile)
            return found[0] if found else None
        shares = [1 / max(table.seconds[-1] for table in self._tables(stage)) for stage in stages]
        weights = self._tables(stages[0])[0].seconds
        cuts = _by_shares(shares, weights)
        for _ in range(_REPAIRS):
            if cuts is None:
                return None
            demands = self._demands(CoarsePlan(microbatches, 1, cuts, tuple(stages)))
            short = {number: room / demand for number, (demand, room) in enumerate(demands) if demand > room}
            if not short:
                return cuts
            held = [b - a for a, b in pairwise(weights[cut] for cut in cuts)]
            kept = {number: held[number] * _REPAIRED * share for number, share in short.items()}
            rest = sum(share for number, share in enumerate(shares) if number not in kept)
            free = weights[-1] - sum(kept.values())
            scale = free / rest if rest else 0.0
            cuts = _by_shares([kept.get(n, share * scale) for n, share in enumerate(shares)], weights)
        return cuts

    def _tables(self, stage: tuple[ReplicaGroup, ...]) -> list[LayerTable]:
        return tables_of(stage, self.profile) or []

    def _demands(self, outline: CoarsePlan) -> list[tuple[float, float]]:
        """(bytes needed, bytes available) of every stage by the published estimate."""
        first, found = outline.stages[0][0].kind, []
        for (start, stop), stage in zip(pairwise(outline.cuts), outline.stages, strict=True):
            table = self.profile.layers(first, stage[0].tp, stage[0].per_replica) or self._tables(stage)[0]
            held = table.bytes_with(1)
            pairs = zip(stage, self._tables(stage), strict=True)
            room = sum(team.replicas * team.tp * own.memory_bytes for team, own in pairs)
            found.append((_MEMORY_FACTOR * (held[stop] - held[start]), room))
        return found

    def cost_s(self, outline: CoarsePlan, later: bool) -> float:
        """Seconds of a step as published, which costs only the first stage for `later` orders of kinds."""
        known = self.profile if self.mended == "bandwidth" else _FlatNetwork(self.profile)
        if later and self.mended != "orders":
            outline = CoarsePlan(
                outline.microbatches, outline.microbatch, outline.cuts[:2], outline.stages[:1]
            )
        return step_s(outline, known)


def _by_shares(shares: list[float], weights: list[float]) -> tuple[int, ...] | None:
    """Boundaries that give every stage about its share of the total; `weights` are cumulative."""
    total, cuts, reached = sum(shares), [0], 0.0
    for number, share in enumerate(shares[:-1], 1):
        reached += share / total * weights[-1]
        nearest = min(range(len(weights)), key=lambda cut: abs(weights[cut] - reached))
        cuts.append(max(min(nearest, len(weights) - 1 - (len(shares) - number)), cuts[-1] + 1))
    cuts.append(len(weights) - 1)
    return tuple(cuts) if all(a < b for a, b in pairwise(cuts)) else None


class _Changed(Profile):
    """A profile that delegates to another one; subclasses override single answers."""

    def __init__(self, under: Profile) -> None:
        self._under = under
        self.kinds, self.atoms = under.kinds, under.atoms
        self.boundary_bytes, self.gradient_bytes = under.boundary_bytes, under.gradient_bytes

    def tps(self, kind: int) -> tuple[int, ...]:
        """Tensor-parallel degrees of the profile underneath."""
        return self._under.tps(kind)

    def layers(self, kind: int, tp: int, sequences: int) -> LayerTable | None:
        """Layer table of the profile underneath."""
        return self._under.layers(kind, tp, sequences)

    def rate(self, a: int, b: int, size: float, gpus: int) -> float:
        """Bytes/s between nodes, from the profile underneath."""
        return self._under.rate(a, b, size, gpus)

    def inside_rate(self, kind: int, size: float) -> float:
        """Bytes/s inside a node, from the profile underneath."""
        return self._under.inside_rate(kind, size)


class _OneSequence(_Changed):
    """Only tables for one sequence, so that callers take the time of n sequences as n times that."""

    def layers(self, kind: int, tp: int, sequences: int) -> LayerTable | None:
        """The table for one sequence; None for any other number."""
        return super().layers(kind, tp, 1) if sequences == 1 else None


class _FlatNetwork(_Changed):
    """A network between nodes that is as fast as the links inside the slower of the two nodes."""

    def rate(self, a: int, b: int, size: float, gpus: int) -> float:
        """Bytes/s of one GPU inside a node, the slower of the two kinds."""
        return min(self.inside_rate(a, size), self.inside_rate(b, size))
