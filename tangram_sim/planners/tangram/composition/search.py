"""Sweeps over microbatch sizes: compose pipelines and simulate the finalists."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Cluster, Island
from tangram_sim.cost.collectives import network_rate, transfer_s
from tangram_sim.hwdb import Hwdb
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.placement.between import group_limits
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import Progress, Scored
from tangram_sim.planners.budget import SearchBudget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import has_equal_members
from tangram_sim.planners.tangram.composition.composed import Composed
from tangram_sim.planners.tangram.composition.exact import Composition, Proof
from tangram_sim.planners.tangram.composition.finalists import (
    Finalist,
    PlanEvaluator,
    StageAssignment,
    seats_of,
)
from tangram_sim.planners.tangram.composition.labels import PipelineTable, roads
from tangram_sim.planners.tangram.enumeration.enumerate import Enumeration, Grain
from tangram_sim.planners.tangram.told_apart import in_units
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import puts_off_weights

# Limits over the lower bound of sweeps over all nodes, while there is nothing to beat.
_LIMITS = (1.2, 1.4, 1.7, 2.0, 2.5, 3.5, 5.0, 10.0, 100.0, float("inf"))
# How close to the best step finalists are played whole; wider where steps are only estimated.
_SLACK, _ROUGH_SLACK = 0.003, 0.03


def hop_seconds(
    islands: Sequence[Island], cluster: Cluster, hwdb: Hwdb, size: float, order: Sequence[str]
) -> NDArray[np.float64]:
    """(kinds, kinds): seconds to send one microbatch from a node of one island to one of the next.

    inf where `order` forbids the neighbourhood. One node on each side: simulating finalists is more precise.
    """
    hops = np.zeros((len(islands), len(islands)))
    placement = Placement(cluster, hwdb) if cluster.wiring.full else None
    limits, lags = group_limits(cluster)
    for a, source in enumerate(islands):
        for b, target in enumerate(islands):
            if order and order.index(source.name) > order.index(target.name):
                hops[a, b] = np.inf
                continue
            if placement is not None:
                first = placement.first_rank
                ends = source.node_indices[0], target.node_indices[-1]
                if ends[0] != ends[1]:
                    near, far = (tuple(range(first[node], first[node + 1])) for node in ends)
                    hops[a, b] = placement.transfer_s(near, far, size)
                continue
            both = np.ix_(source.groups, target.groups)
            rate = min(float(limits[both].min()), source.nic_bytes_per_s, target.nic_bytes_per_s)
            rate *= hwdb.network_efficiency.value
            if a == b:
                rate = min(rate, network_rate(source, hwdb))
                if source.scale_up_nodes >= source.nodes > 1:
                    rate = (
                        source.intra.bytes_per_s
                        * hwdb.link_efficiency(source.intra).value
                        * source.gpus_per_node
                    )
            hops[a, b] = transfer_s(size, rate, float(lags[both].max()))
    return hops


def coarse(nodes: int, unit: int) -> tuple[int, ...]:
    """Nodes of the coarse parts of an island: all, and half of them (both halves if uneven), in units."""
    units, parts = nodes // unit, in_units(nodes, unit)
    return tuple(parts[some - 1] for some in sorted({units, -(-units // 2), units // 2} - {0}))


class Search:
    """Search over microbatch sizes by sweeps under a limit on the step time; no plan below the limit is
    pruned.

    Sweeps over whole islands, then over halves, find a good plan quickly; its simulated step, plus some
    slack, is the limit of the full sweep. Without such a plan, limits rise from the lower bound. The lower
    bounds that the full sweep proves are kept in `bounds`, by microbatch size.
    """

    def __init__(
        self,
        enumeration: Enumeration,
        referee: PlanEvaluator,
        bound_s: float,
        units: Sequence[int],
        work: NDArray[np.float64],
        order: Sequence[str],
        budget: SearchBudget,
        deadline: Deadline,
    ) -> None:
        self.budget, self.deadline = budget, deadline
        self.bounds: dict[int, float] = {}  # by microbatch size: no single pipeline is played in less
        self.enumeration, self.referee, self.bound_s = enumeration, referee, bound_s
        self.units, self.work, self.order = units, work, order
        self.options = 0  # of the tables of the full sweep
        self.priced_before = 0  # layouts, when this sweep began
        self.vain: dict[int, bool] = {}  # by microbatch size: the last look at it found nothing better
        self.left_out: list[int] = []  # microbatch sizes for which the budget did not suffice
        self.best_s = float("inf")
        self.halves_s = float("inf")  # the best step of whole islands and halves
        self.best_of: dict[int, float] = {}  # by microbatch size
        self.provable = (
            budget.bounding
            and max(units) == 1
            and all(has_equal_members(island, referee.cluster) for island in enumeration.islands)
        )
        estimated = puts_off_weights(enumeration.job.schedule)
        self.slack = _ROUGH_SLACK if estimated else _SLACK
        self.estimated = estimated
        self.from_known = False  # whether it began at a plan that was known before
        self.over = 1.0  # estimates of what was played, over its step, at most
        self.played: dict[Finalist, float] = {}
        self.begun: dict[int, Composition] = {}  # by microbatch size: more can be looked at
        self.counted: dict[int, int] = {}  # by microbatch size: pipelines of its last looks, counted

    def begin_at(self, known: Scored) -> None:
        """Start from a known plan: search only for faster plans, its microbatch size first."""
        first, self.from_known = known.plan.pipelines[0], True
        self.best_s = self.best_of[first.microbatch] = known.step_s
        if self.estimated:
            # Of equal stages whose three passes take alike: they wait a third of what the estimate says.
            # A plan of one stage does not wait, others may.
            works = 3 * (known.plan.job.global_batch // first.microbatch)
            waits = max(len(first.stages) - 1, 1)
            self.over = (works + 3 * waits) / (works + waits)

    def begin_below(self, step_s: float) -> None:
        """Search only for plans faster than `step_s`."""
        self.best_s = min(self.best_s, step_s)

    def best_islands(self) -> frozenset[str]:
        """Names of the islands that the fastest simulated pipeline uses."""
        seats, _ = min(self.played, key=lambda item: self.played[item])
        return frozenset(seat.island for seat in seats)

    def within(self, enumeration: Enumeration, units: Sequence[int], progress: Progress | None) -> None:
        """Sweep over every number of nodes of fewer islands below the best step, and record the results.

        Skips microbatch sizes for which a proven bound rules out an improvement.
        """
        names = {island.name for island in enumeration.islands}
        order = [name for name in self.order if name in names]
        bound_s = enumeration.bound.step_s()
        given = self.referee, bound_s, units, self.work, order, self.budget, self.deadline
        fewer = Search(enumeration, *given)
        fewer.best_s, fewer.over, fewer.played, fewer.best_of = (
            self.best_s,
            self.over,
            self.played,
            self.best_of,
        )
        islands = zip(enumeration.islands, units, strict=True)
        every = tuple(in_units(island.nodes, unit) for island, unit in islands)
        sizes = [
            size
            for size in self._likeliest(microbatch_sizes(enumeration.job))
            if self.bounds.get(size, 0.0) < self.best_s
        ]
        fewer._sweep(sizes, every, _LIMITS, progress, full=True)
        self.best_s = fewer.best_s

    def run(
        self, progress: Progress | None, *, halves: bool = False
    ) -> list[tuple[float, tuple[StageAssignment, ...], int]]:
        """Run all sweeps, or only whole and half islands; (seconds, stages, microbatch) of what fits."""
        islands = list(zip(self.enumeration.islands, self.units, strict=True))
        every = tuple(in_units(island.nodes, unit) for island, unit in islands)
        half = tuple(coarse(island.nodes, unit) for island, unit in islands)
        sizes = microbatch_sizes(self.enumeration.job)
        sizes.sort(key=lambda size: self.best_of.get(size, float("inf")))
        whole = tuple(parts[-1:] for parts in every)
        if whole != every:
            self._sweep(sizes[:1], whole, self.budget.coarse_limits, None)
        if half != every:
            self._sweep(sizes, half, self.budget.coarse_limits, progress)
            sizes = self._likeliest(sizes)
        self.halves_s = self.best_s
        if not halves:
            self._sweep(sizes, every, _LIMITS, progress, full=True)
        elif half == every:
            self._sweep(sizes, every, self.budget.coarse_limits, progress)
        if progress:
            progress(len(sizes), len(sizes), "finalists")
        return self.finalists()

    def finalists(self) -> list[tuple[float, tuple[StageAssignment, ...], int]]:
        """(seconds, stages, microbatch) of every pipeline simulated that fits memory."""
        return [(seconds, seats, microbatch) for (seats, microbatch), seconds in self.played.items()]

    def _likeliest(self, sizes: Sequence[int]) -> list[int]:
        """Microbatch sizes in search order: those with the shortest step on half islands first.

        Sizes without a result on halves follow in turns: two small ones, which leave most memory, then one
        near the best.
        """
        told = sorted(
            (size for size in sizes if size in self.best_of), key=lambda item: (self.best_of[item], item)
        )
        small = sorted(set(sizes) - set(told))
        near = sorted(small, key=lambda size: (abs(np.log2(size / told[0])), size)) if told else small
        turns = (item for turn, size in enumerate(near) for item in (*small[2 * turn : 2 * turn + 2], size))
        return list(dict.fromkeys([*told, *turns]))

    def _sweep(
        self,
        sizes: Sequence[int],
        grain: Grain,
        factors: Sequence[float],
        progress: Progress | None,
        *,
        full: bool = False,
    ) -> None:
        """Search these microbatch sizes below the best step, or without one below increasing limits."""
        self.enumeration.sizes = tuple(sizes[: self.budget.sizes] if full else sizes)
        self.priced_before = self.enumeration.priced if full else 0
        for factor in factors:
            limit_s = self.bound_s * factor if self.best_s == float("inf") else float("inf")
            for position, microbatch in enumerate(sizes):
                if self.deadline.over():
                    return
                if self._enough(position, microbatch, sizes, full):
                    if full and self.provable:
                        self.bounds[microbatch] = self.enumeration.least_s(microbatch, self.units, grain)
                    continue
                if progress:
                    progress(position, len(sizes), f"microbatch {microbatch}{', all nodes' * full}")
                before_s = self.best_s
                self._size(microbatch, min(limit_s, before_s * (1 + self.slack)), grain, full)
                self.vain[microbatch] = self.best_s >= before_s
            if full:
                self._go_on(limit_s, progress)
            if self.best_s <= limit_s:
                return

    def _go_on(self, limit_s: float, progress: Progress | None) -> None:
        """Run wider beams and proofs for the microbatch sizes begun, below the best step known.

        The most promising size comes first; sizes for which even a narrow beam took too much work follow,
        smallest lower bound first. Wide beams are for sizes near the best step (`near`), and for others where
        they take little work (`far_work`). The widest beam has a tighter limit (`widest_work`), except for
        the best size at the end if a wide beam gained something there (`last_work`).
        """
        budget, begun, self.begun = self.budget, self.begun, {}
        order, gained = sorted(begun, key=lambda size: self._likely(size, begun[size])), list[int]()
        for position, size in enumerate(order):
            if progress:
                progress(position, len(begun), f"microbatch {size}, wider")
            for width in budget.widths:
                before_s, looks = self._best_s(size), begun[size]
                work = budget.far_work
                if before_s <= budget.near * self.best_s:
                    work = budget.widest_work if width == budget.widths[-1] else budget.beam_work
                self._beams(size, looks, limit_s, width, work)
                gained += [size] * (self._best_s(size) < before_s * (1 - self.slack))
        best = min(begun, key=self._best_s, default=0)
        if best in gained and self._best_s(best) <= self.best_s:
            self._beams(best, begun[best], limit_s, budget.widths[-1], budget.last_work)
        for size in order:
            if self.deadline.over():
                return
            looks = begun[size]
            looks.end(self._below_s(limit_s), self.best_s * self.over)
            self._play(size, looks.proof())
            if self.provable and not self.deadline.over():
                self.bounds[size] = looks.proof().bound_s

    def _likely(self, size: int, looks: Composition) -> tuple[bool, float, int]:
        return looks.late, looks.problem.least_s if looks.late else self._best_s(size), size

    def _best_s(self, size: int) -> float:
        return self.best_of.get(size, float("inf"))

    def _below_s(self, limit_s: float) -> float:
        """Limit in seconds for compositions, in terms of their estimates: the limit or the best step."""
        return min(limit_s, self.best_s * (1 + self.slack)) * self.over

    def _beams(self, size: int, looks: Composition, limit_s: float, widest: int, wide_work: int) -> None:
        """Run the beams of one microbatch size up to a width, and simulate the pipelines they find."""
        below_s, wide = self._below_s(limit_s), len(looks.widths)
        if looks.problem.least_s < below_s and not self.deadline.over():
            looks.go_on(below_s, self.best_s * self.over, widest, wide_work=wide_work)
            if len(looks.widths) < wide:
                self._play(size, looks.proof())

    def _enough(self, position: int, microbatch: int, sizes: Sequence[int], full: bool) -> bool:
        """Whether to skip a microbatch size for lack of budget, given that a plan is known.

        If only a plan from before this search is known, the number of layouts alone decides, since it is not
        known which sizes are promising.
        """
        budget = self.budget
        if not position or not (self.played or self.from_known):
            return False
        if full:
            spent = self.played and position >= budget.sizes and self.options >= budget.options
            priced = self.enumeration.priced - self.priced_before
            if spent or priced >= budget.layouts:
                self.left_out.append(microbatch)
                return True
            return False
        if self.enumeration.priced >= budget.layouts // 2:
            return True
        if not self.played:
            return False
        # Outward from the size in the middle: those before it on the same side, the last first.
        middle = sizes[0]
        side = [size for size in sizes[:position] if (size < middle) == (microbatch < middle)][::-1]
        vain = [self.vain.get(size, True) for size in side[: budget.patience]]
        return len(vain) == budget.patience and all(vain)

    def _looks(self, microbatch: int, limit_s: float, grain: Grain, full: bool) -> Composition:
        """The composition of one microbatch size below the limit."""
        enumeration, job, islands = self.enumeration, self.enumeration.job, self.enumeration.islands
        table = enumeration.table(microbatch, limit_s, self.units, grain=grain)
        self.options += len(table.floats) * full
        placement = self.referee.lowering.placement
        size = job.boundary_bytes(enumeration.model, microbatch)
        hops = hop_seconds(islands, placement.cluster, enumeration.hwdb, size, self.order)
        counts = [island.nodes // unit for island, unit in zip(islands, self.units, strict=True)]
        ways = roads(islands, placement.cluster, enumeration.hwdb, size, hops)
        problem = PipelineTable(table, counts, ways, enumeration.model, job)
        budget = self.budget if full else self.budget.coarse
        return Composition(problem, self.slack, budget, self.deadline, proving=full)

    def least_s(self) -> float:
        """Lower bound in seconds on single pipelines with each stage on one island; 0: not known."""
        sizes = microbatch_sizes(self.enumeration.job)
        return min((self.bounds.get(size, 0.0) for size in sizes), default=0.0)

    def _size(self, microbatch: int, limit_s: float, grain: Grain, full: bool) -> None:
        """Compose and simulate pipelines of one microbatch size that could take less than `limit_s`."""
        enumeration = self.enumeration
        if enumeration.least_s(microbatch, self.units, grain) >= limit_s:
            if self.provable and full:
                self.bounds[microbatch] = max(limit_s, self.bounds.get(microbatch, 0.0))
            return
        # What an estimate is compared with has to be one: zb-h1 with few microbatches takes a fifth less.
        limit_s *= self.over
        looks, best_s = self._looks(microbatch, limit_s, grain, full), self.best_s * self.over
        looks.begin(limit_s, best_s)
        if full:
            looks.go_on(limit_s, best_s, self.budget.narrow, work=self.budget.narrow_work)
            if looks.done:
                if self.provable and not self.deadline.over():
                    self.bounds[microbatch] = looks.proof().bound_s
            else:
                self.begun[microbatch] = looks
        else:
            looks.go_on(limit_s, best_s, 1 << 60)
            looks.end(limit_s, best_s)
        self.counted[microbatch] = 0
        self._play(microbatch, looks.proof())

    def _play(self, microbatch: int, proof: Proof) -> None:
        """Simulate the best pipelines of one microbatch size, and count those that are new."""
        known, self.counted[microbatch] = self.counted.get(microbatch, 0), len(proof.pipelines)
        self.enumeration.counts.composed += len(proof.pipelines) - known
        islands = self.enumeration.islands
        most = self.budget.played if proof.exact else self.budget.rough_played
        for seats, estimate_s in _distinct(proof.pipelines, islands, self.referee.lowering.placement, most):
            if self.deadline.over() and self.played:
                return
            seconds = self.referee.step_s(seats, microbatch)
            if seconds < float("inf"):
                if self.estimated:
                    self.over = max(self.over, estimate_s / seconds)
                self.played[seats, microbatch] = seconds
                self.best_s = min(self.best_s, seconds)
                self.best_of[microbatch] = min(self.best_of.get(microbatch, seconds), seconds)


def microbatch_sizes(job: Job) -> list[int]:
    """Divisors of the global batch, those that give about 32 microbatches first.

    The order affects only the search time: a good plan found early prunes later sizes.
    """
    return sorted(
        divisors(job.global_batch), key=lambda size: (abs(np.log2(job.global_batch / size) - 5.0), size)
    )


def _distinct(
    composed: list[Composed], islands: Sequence[Island], placement: Placement, most: int
) -> list[tuple[tuple[StageAssignment, ...], float]]:
    """The best different pipelines with ranks, `most` at most, each with its composition objective."""
    seen: dict[tuple[StageAssignment, ...], float] = {}
    for item in composed[: 4 * most]:
        seen.setdefault(seats_of(item, islands, placement), item.objective_s)
    return list(seen.items())[:most]
