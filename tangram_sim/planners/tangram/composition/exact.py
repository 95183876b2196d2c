"""Pipelines whose bound on the played step lies below a limit, and what that proves about all others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.tangram.composition.compose import Composed, Placed
from tangram_sim.planners.tangram.enumeration.enumerate import Table
from tangram_sim.training.job import Job

# Facts of all labels, which of them are complete, and the bounds of these.
Labels: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]

PLAYED = 1 << 13  # pipelines played here, those with the least bound first
KEPT = 256  # of these, handed over
MOST_LABELS = 1 << 22
FEW_LABELS = 1 << 10  # after a first look with so many labels a second one drops none
SOME_LABELS = 1 << 14  # after one with more there is no second look
PASSES = 1 << 24  # of microbatches through stages, played for labels
PROVEN = 1e-3  # a gap that is not worth a second look


@dataclass(frozen=True, slots=True)
class Roads:
    """What bounds transfers between stages of two kinds of island from below; exact but on stated graphs."""

    size: float  # bytes of one microbatch at a boundary
    latency_s: NDArray[np.float64]  # (kinds, kinds); infinite where --order forbids the neighbourhood
    bytes_per_s: NDArray[np.float64]  # (kinds, kinds): what groups allow between them
    node_bytes_per_s: NDArray[np.float64]  # (kinds): what leaves one node
    estimate_s: NDArray[np.float64]  # (kinds, kinds): node to node; where `rough`, the better estimate
    rough: bool


def roads(
    islands: Sequence[Island],
    placement: Placement,
    hwdb: Hwdb,
    size: float,
    estimate_s: NDArray[np.float64],
) -> Roads:
    """Roads between stages as `Placement.road` prices them; `estimate_s` also says what is forbidden."""
    cluster, kinds = placement.cluster, len(islands)
    latency, rate = np.zeros((kinds, kinds)), np.full((kinds, kinds), np.inf)
    nodes = np.full(kinds, np.inf)
    rough = cluster.wiring.full or any(island.scale_up_nodes > 1 for island in islands)
    if not rough:
        efficiency = hwdb.network_efficiency.value
        nodes = np.array([island.nic_bytes_per_s * efficiency for island in islands])
        for a, source in enumerate(islands):
            for b, target in enumerate(islands):
                limits = [cluster.group_limit(i, j) for i in source.groups for j in target.groups]
                rate[a, b] = max(limit for limit, _ in limits) * efficiency
                latency[a, b] = min(lag for _, lag in limits)
    latency[np.isinf(estimate_s)] = np.inf
    return Roads(size, latency, rate, nodes, estimate_s, rough)


@dataclass(frozen=True, slots=True)
class Proof:
    """Pipelines worth playing, best first, and the bound that holds for all pipelines of the table."""

    pipelines: list[Composed]
    bound_s: float  # at most the limit; 0 where the schedule allows no bound, or labels were too many
    exact: bool = True  # objectives are played steps, links not shared; else estimates


def find(
    table: Table,
    counts: Sequence[int],
    ways: Roads,
    model: Model,
    job: Job,
    limit_s: float,
    best_s: float,
) -> Proof:
    """Pipelines that may be played in less than `limit_s`, and what all of the table take at least.

    The first look composes under quantities for which dominance proves something, and plays what comes out.
    If that leaves a gap below the best step known (`best_s` or a better one found), a second look closes it
    where few labels are left, none dropped and all played; else it drops what another beats as played, which
    finds better pipelines and proves nothing.
    """
    problem = _Problem(table, counts, ways, model, job)
    exact = problem.lost > 0 and not ways.rough
    if not len(table.floats):
        return Proof([], limit_s if problem.lost else 0.0, exact)
    found = problem.below(limit_s, 1, MOST_LABELS, 0)
    if found is None:
        return Proof([], 0.0, exact)
    first = problem.judge(*found, limit_s)
    best_s = min([limit_s, best_s, *(one.objective_s for one in first.pipelines[:1])])
    labels = len(found[0])
    if not problem.lost or first.bound_s >= best_s * (1 - PROVEN) or labels > SOME_LABELS:
        return replace(first, exact=exact)
    closing = problem.below(best_s, 0, SOME_LABELS, PASSES) if labels <= FEW_LABELS else None
    if closing is not None:
        second = problem.judge(*closing, best_s)
    else:
        found = problem.below(best_s, 1, MOST_LABELS, PASSES, proving=False)
        second = replace(problem.judge(*found, best_s), bound_s=0.0) if found else Proof([], 0.0)
    seen = {one.places for one in first.pipelines}
    pipelines = first.pipelines + [one for one in second.pipelines if one.places not in seen]
    pipelines.sort(key=lambda one: one.objective_s)
    return Proof(pipelines, max(first.bound_s, second.bound_s), exact)


class _Problem:
    """One table as the kernels read it."""

    def __init__(self, table: Table, counts: Sequence[int], ways: Roads, model: Model, job: Job) -> None:
        self.table, self.ways = table, ways
        self.counts = np.asarray(counts, dtype=np.int64)
        repeats = table.microbatches - 1.0
        slowest, latency, forward, closing = table.floats.T
        kinds, depth = table.ints[:, 0], table.ints[:, 2]
        inner = np.zeros(len(slowest))
        for option in np.flatnonzero(depth > 1).tolist():
            inner[option] = table.partials[option].hop_s
        passes = latency - 2 * (depth - 1) * inner
        ahead = forward - (depth - 1) * inner
        units = np.array([partial.nodes for partial in table.partials], dtype=np.float64)
        # Cuts between inner stages may move when a plan is refined, and with them times and tails: what
        # holds for all cuts is that the times add up.
        own = passes / (1.0 - (1.0 - 1.0 / table.microbatches) ** depth)
        self.floats = np.column_stack(
            [
                latency,
                forward,
                own,
                repeats * passes / depth,
                np.minimum(ahead, passes - ahead) / depth,
                np.where(depth > 1, 0.0, closing - slowest),
                inner,
                ways.node_bytes_per_s[kinds] * units / depth,
                np.where(depth > 1, 0.0, np.maximum(ahead, passes - ahead)),
            ]
        )
        stages = [stage for partial in table.partials for stage in partial.stages]
        self.times = np.array(
            [(one.forward_s, one.backward_s, one.gradient_sync_s, one.optimizer_s) for one in stages]
        )
        self.stage_ptr = np.concatenate([[0], np.cumsum(depth)])
        self.lost = {"1f1b": 1, "gpipe": 2}.get(job.schedule, 0)
        self.between = np.stack([ways.latency_s, ways.bytes_per_s])
        self.tied_bytes = model.vocabulary_parameters * job.recipe.gradient_bytes if model.tied else 0.0
        most = sum(
            int(count) * int(depth[kinds == kind].max(initial=0)) for kind, count in enumerate(self.counts)
        )
        behind = min(most, len(table.slice_class) - 1) - 1
        self.most_behind = {0: 0.0, 1: min(behind, repeats), 2: repeats}[self.lost]

    def below(
        self, limit_s: float, rivals: int, most_labels: int, passes: int, *, proving: bool = True
    ) -> Labels | None:
        """(label facts, complete labels, bounds); None when there are too many labels."""
        from tangram_sim.planners.tangram.composition import exact_kernels as kernels
        from tangram_sim.planners.tangram.composition import play_kernels

        table = self.table
        kept = self.floats[:, play_kernels.OWN] < limit_s
        pointers = np.concatenate([[0], np.cumsum(kept)])[table.option_ptr]
        floats, ints = np.ascontiguousarray(self.floats[kept]), np.ascontiguousarray(table.ints[kept])
        least = kernels.still_to_come(
            table.slice_class, pointers, floats, ints, self.counts, self.most_behind, limit_s
        )
        inner = np.repeat(kept, table.ints[:, 2])
        times = self.times[inner]
        pointers_of_stages = np.concatenate([[0], np.cumsum(ints[:, 2])])
        values, facts, complete, bounds = kernels.below(
            table.slice_class,
            pointers,
            floats,
            ints,
            self.counts,
            self.between,
            self.ways.size,
            self.tied_bytes,
            least,
            table.microbatches,
            pointers_of_stages,
            times,
            self.lost,
            table.whole_depth,
            limit_s,
            proving,
            rivals,
            most_labels,
            passes,
        )
        if not len(values):
            return None
        facts, original = facts.copy(), np.append(np.flatnonzero(kept), -1)
        for column in (play_kernels.OPTION, play_kernels.BACK):
            facts[:, column] = original[facts[:, column]]
        return facts, complete, bounds

    def judge(
        self,
        facts: NDArray[np.int64],
        complete: NDArray[np.int64],
        bounds: NDArray[np.float64],
        limit_s: float,
    ) -> Proof:
        """Play complete pipelines, those with the least bound, and say what that proves."""
        from tangram_sim.planners.tangram.composition import play_kernels

        order = np.argsort(bounds, kind="stable")
        least_s = min(limit_s, float(bounds[order[PLAYED]])) if len(order) > PLAYED else limit_s
        complete, bounds = complete[order[:PLAYED]], bounds[order[:PLAYED]]
        values = bounds
        if self.lost:
            values = self.played(facts, complete, self.floats, self.between, self.ways.size)
            # Cuts between inner stages may move, and a shadowed label stands for others.
            proven = (facts[complete, play_kernels.SHADOW] == 0) & (facts[complete, play_kernels.NESTED] == 0)
            bounds = np.where(proven, np.maximum(bounds, values), bounds)
        if self.lost and self.ways.rough:
            infinite = np.full(self.between.shape[1:], np.inf)
            estimated = np.stack([self.ways.estimate_s, infinite])
            floats = self.floats.copy()
            floats[:, play_kernels.RATE] = np.inf
            values = self.played(facts, complete, floats, estimated, 0.0)
        least_s = min(least_s, float(bounds.min(initial=np.inf)))
        best = np.argsort(values, kind="stable")[:KEPT]
        return Proof(
            [self.composed(float(values[one]), facts, int(complete[one])) for one in best.tolist()],
            least_s if self.lost else 0.0,
        )

    def played(
        self,
        facts: NDArray[np.int64],
        complete: NDArray[np.int64],
        floats: NDArray[np.float64],
        between: NDArray[np.float64],
        size: float,
    ) -> NDArray[np.float64]:
        """Seconds of the steps of complete pipelines, their transfers over roads of their own."""
        from tangram_sim.planners.tangram.composition import play_kernels

        tied = self.tied_bytes if size else 0.0
        return play_kernels.play_all(
            complete,
            facts,
            floats,
            self.table.ints,
            self.stage_ptr,
            self.times,
            between,
            size,
            tied,
            self.table.microbatches,
            self.lost == 2,
        )

    def composed(self, value: float, facts: NDArray[np.int64], label: int) -> Composed:
        """Follow a label from the front of the pipeline to its back."""
        from tangram_sim.planners.tangram.composition.play_kernels import OPTION, PARENT

        places: list[Placed] = []
        start = 0
        while facts[label, OPTION] >= 0:
            option = int(facts[label, OPTION])
            partial = self.table.partials[option]
            stop = start + partial.stop - partial.start
            places.append(Placed(int(self.table.ints[option, 0]), start, stop, partial))
            label, start = int(facts[label, PARENT]), stop
        return Composed(value, tuple(places), self.table.microbatch, self.table.microbatches)
