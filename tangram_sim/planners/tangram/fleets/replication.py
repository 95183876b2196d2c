"""Pipelines side by side: each island, or each share of one, runs its own pipeline on its share of the batch.

A small set is built from partial plans: copies of a pipeline over stages of equal nodes, atoms balanced by
ideal work, passes assigned one by one to the pipeline that ends first; and, with few islands, pipelines over
every combination of disjoint subsets of islands (`subsets.py`). Candidates whose objective is near the best
plan are simulated whole, with gradients synchronised across pipelines, and kept only if they are faster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tangram_sim.clusters import Island
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.parallelizers.partition import balanced
from tangram_sim.planners.api import Scored
from tangram_sim.planners.tangram.composition.composed import Composed, Placed
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator, pipeline_of, seats_of
from tangram_sim.planners.tangram.enumeration.enumerate import Enumeration
from tangram_sim.planners.tangram.fleets.subsets import Paced, likeliest
from tangram_sim.planners.tangram.second_look import SecondLook
from tangram_sim.planners.tangram.told_apart import used_islands
from tangram_sim.sim import contention
from tangram_sim.training.plan import PartialPlan, Plan
from tangram_sim.training.schedules import holds_whole_depth
from tangram_sim.training.shares import by_earliest_end
from tangram_sim.training.step.side_by_side import lower_plan

_NEAR = 1.05  # times the best step: how near the objective of pipelines side by side lies
_MOST = 8  # pipelines side by side


@dataclass(frozen=True, slots=True)
class BesideBudget(SecondLook):
    """Limits on pipelines side by side; `sizes` counts microbatch sizes of the best choices of islands."""

    islands: int = 5  # of which all sets are looked at, with the usual microbatches


BESIDE = {
    "quick": BesideBudget(share=160, least=10, sizes=2, played=2),
    "normal": BesideBudget(share=40, least=40, sizes=4, played=4),
    "exhaustive": BesideBudget(share=40, least=40, sizes=4, played=4),
}

# (kind, nodes) of every stage, front to back.
Stages = tuple[tuple[int, int], ...]
Islands = tuple[Island, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """A pipeline: `fill_s` for one pass with all that follows, `pace_s` for each further pass."""

    places: tuple[Placed, ...]
    fill_s: float
    pace_s: float

    def step_s(self, passes: int) -> float:
        """Seconds of a step with this many passes, by the composition's objective."""
        return self.fill_s + (passes - 1) * self.pace_s


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Pipelines side by side with islands, passes and microbatch sizes; `step_s` is estimated."""

    step_s: float
    pipelines: list[tuple[Islands, Built]]
    passes: tuple[int, ...]
    sizes: tuple[int, ...]


def share_passes(pipelines: Sequence[Built], passes: int) -> tuple[int, ...]:
    """Passes of each pipeline, at least one, such that the last one ends as early as possible."""
    return by_earliest_end(
        passes, lambda number, count: pipelines[number].step_s(count), [1] * len(pipelines), least=1
    )


@dataclass
class Replication:
    """Searches for pipelines side by side that beat a plan, built from the partial plans of a search."""

    enumeration: Enumeration
    referee: PlanEvaluator
    budget: BesideBudget

    def improve(self, best: Scored) -> Scored | None:
        """A faster plan of several pipelines, simulated with shared links; None where none is found."""
        budget = self.budget
        asked = self.enumeration.counts.asked
        last = asked + budget.questions(asked)
        found: list[SideBySide] = []
        used = used_islands(self.enumeration.islands, best.plan)
        for microbatch in self._sizes(best.plan.pipelines[0].microbatch):
            if self.enumeration.counts.asked >= last or self.enumeration.deadline.over():
                break
            passes = self.enumeration.job.global_batch // microbatch
            for side_by_side in self._combinations(microbatch, used):
                if not 2 <= len(side_by_side) <= min(passes, _MOST):
                    continue
                built = [built_fleet for _, built_fleet in side_by_side]
                shares = share_passes(built, passes)
                step_s = max(
                    built_fleet.step_s(share) for built_fleet, share in zip(built, shares, strict=True)
                )
                found.append(SideBySide(step_s, side_by_side, shares, (microbatch,) * len(built)))
        found.sort(key=lambda item: item.step_s)
        winner: Scored | None = None
        for item in [*found[: budget.played], *self._over_subsets(best)]:
            limit_s = winner.step_s if winner else best.step_s
            if item.step_s < limit_s * _NEAR and not self.enumeration.deadline.over():
                scored = self._played(best.plan, item)
                if scored is not None and scored.step_s < limit_s:
                    winner = scored
        return winner

    def _over_subsets(self, best: Scored) -> list[SideBySide]:
        """Candidates of pipelines over disjoint sets of islands, fastest first. All sets are tried with the
        usual microbatch size, the most promising choices of sets also with others."""
        enumeration, budget, usual = self.enumeration, self.budget, best.plan.pipelines[0].microbatch
        islands, batch = len(enumeration.islands), enumeration.job.global_batch
        if not 2 <= islands <= budget.islands or enumeration.deadline.over():
            return []
        pool: dict[frozenset[int], list[Paced]] = {}
        pipelines: dict[Paced, Built] = {}

        def add(kinds: frozenset[int], size: int) -> None:
            if enumeration.deadline.over():
                return
            for order in {tuple(sorted(kinds)), tuple(sorted(kinds))[::-1]}:
                stages = tuple((kind, enumeration.islands[kind].nodes) for kind in order)
                built = self._built(stages, size)
                if built is not None:
                    subset = Paced(kinds, size, built.fill_s, built.pace_s, self._sync_s(built))
                    pool.setdefault(kinds, []).append(subset)
                    pipelines[subset] = built

        for number in range(1, 2**islands - 1):
            add(frozenset(kind for kind in range(islands) if number >> kind & 1), usual)
        first = likeliest(pool, islands, batch, best.step_s * _NEAR, budget.played)
        sets = dict.fromkeys(subset.islands for _, chosen, _ in first for subset in chosen)
        for kinds in sets:
            for size in self._sizes(usual)[: budget.sizes]:
                if size != usual:
                    add(kinds, size)
        chosen = likeliest(pool, islands, batch, best.step_s, budget.played)
        whole = tuple(enumeration.islands)
        return [
            SideBySide(
                step_s,
                [(whole, pipelines[subset]) for subset in some],
                shares,
                tuple(subset.size for subset in some),
            )
            for step_s, some, shares in chosen
            if step_s < best.step_s  # plays come out longer
        ]

    def _sync_s(self, built: Built) -> float:
        """Seconds of an all-reduce of this pipeline's gradients with one other, at its slowest NIC."""
        enumeration, job = self.enumeration, self.enumeration.job
        share = job.recipe.gradient_bytes / job.bytes_per_parameter
        efficiency = enumeration.hwdb.network_efficiency.value
        return max(
            enumeration.weights_bytes(place.start, place.stop)
            * share
            / (enumeration.islands[place.kind].nic_bytes_per_s * efficiency)
            for place in built.places
        )

    def _sizes(self, usual: int) -> list[int]:
        """Microbatch sizes below the global batch, those near half of `usual` first."""
        batch = self.enumeration.job.global_batch
        return sorted(divisors(batch)[:-1], key=lambda size: (abs(np.log2(2 * size / usual) + 0.01), size))

    def _combinations(self, microbatch: int, used: tuple[int, ...]) -> Iterator[list[tuple[Islands, Built]]]:
        """Sets of pipelines that use (almost) all nodes: of all islands, then of the islands `used`."""
        every = tuple(range(len(self.enumeration.islands)))
        for kinds in dict.fromkeys((every, used)):
            yield from self._over(kinds, microbatch)

    def _over(self, kinds: tuple[int, ...], microbatch: int) -> Iterator[list[tuple[Islands, Built]]]:
        """Sets of pipelines: each of these islands alone in copies, and copies across all of them."""
        islands = self.enumeration.islands
        # Every island for itself, in one pipeline or in equal copies.
        alone: list[list[tuple[int, Built, int]]] = []
        for kind in kinds:
            options = []
            for copies in divisors(islands[kind].nodes):
                if copies > _MOST:
                    continue
                nodes = islands[kind].nodes // copies
                share = self._share(kind, kinds, microbatch, copies)
                built = [
                    item
                    for depth in divisors(nodes)
                    if (item := self._built(((kind, nodes // depth),) * depth, microbatch)) is not None
                ]
                if built:
                    options.append(
                        (kind, min(built, key=lambda built_fleet: built_fleet.step_s(share)), copies)
                    )
            alone.append(options)
        if all(alone):
            for pick in (min, max):  # fewest and most copies
                chosen = [pick(options, key=lambda option: option[2]) for options in alone]
                yield self._side_by_side(chosen)
            yield self._side_by_side(
                [
                    min(
                        options,
                        key=lambda item: item[1].step_s(self._share(item[0], kinds, microbatch, item[2])),
                    )
                    for options in alone
                ]
            )
        if len(kinds) > 1:
            common = int(np.gcd.reduce([islands[kind].nodes for kind in kinds]))
            for copies in divisors(common)[1:]:
                for order in (kinds, kinds[::-1]):
                    stages = tuple((kind, islands[kind].nodes // copies) for kind in order)
                    built_whole = self._built(stages, microbatch)
                    if built_whole is not None:
                        yield _copies(tuple(islands[kind] for kind in kinds), built_whole, copies)

    def _side_by_side(self, chosen: Sequence[tuple[int, Built, int]]) -> list[tuple[Islands, Built]]:
        """All copies of the chosen (island, pipeline, copies) as a list of (islands, pipeline)."""
        islands = self.enumeration.islands
        return [copy for kind, built, copies in chosen for copy in _copies((islands[kind],), built, copies)]

    def _share(self, kind: int, kinds: tuple[int, ...], microbatch: int, copies: int) -> int:
        """Passes of one of an island's `copies` pipelines if these islands ran at their ideal speed."""
        bound = self.enumeration.bound
        speed = bound.gpus / bound.seconds.sum(axis=1)
        passes = self.enumeration.job.global_batch / microbatch
        return max(1, round(passes * float(speed[kind] / speed[list(kinds)].sum()) / copies))

    def _built(self, stages: Stages, microbatch: int) -> Built | None:
        """A pipeline over these stages, each with its best partial plan, from the back; None: no fit."""
        enumeration, atoms = self.enumeration, self.enumeration.model.layers + 2
        if len(stages) > atoms:
            return None
        seconds, islands = enumeration.bound.seconds, enumeration.islands
        weights = [seconds[kind] / (nodes * islands[kind].gpus_per_node) for kind, nodes in stages]
        cuts = balanced(weights, 0)
        passes = max(1, enumeration.job.global_batch // microbatch // 2)
        places: list[Placed] = []
        behind, latency, closing, slowest = 0, 0.0, 0.0, 0.0
        whole = holds_whole_depth(enumeration.job.schedule)
        for (kind, nodes), (start, stop) in reversed(list(zip(stages, pairwise(cuts), strict=True))):
            able = [
                partial
                for partial in enumeration.ask(kind, nodes, start, stop, microbatch)
                if partial.stages_behind >= (atoms if whole and len(stages) > 1 else behind)
            ]
            if not able:
                return None
            paced = slowest

            def cost(partial: PartialPlan, paced: float = paced) -> float:
                return partial.latency_s + partial.tail_s + (passes - 1) * max(partial.slowest_s, paced)

            partial = min(able, key=cost)
            places.append(Placed(kind, start, stop, partial))
            behind += len(partial.stages)
            latency += partial.latency_s
            closing = max(closing, partial.tail_s)
            slowest = max(slowest, partial.slowest_s)
        return Built(tuple(reversed(places)), latency + closing, slowest)

    def _played(self, like: Plan, found: SideBySide) -> Scored | None:
        """The plan simulated with shared links; None where it does not fit memory."""
        placement, islands = self.referee.lowering.placement, self.enumeration.islands
        pipelines = []
        for (members, built), passes, microbatch in zip(
            found.pipelines, found.passes, found.sizes, strict=True
        ):
            by_name = {member.name: member for member in members}
            held = [by_name.get(island.name, island) for island in islands]
            composed = Composed(built.step_s(passes), built.places, microbatch, passes)
            seats = seats_of(composed, held, placement)
            pipelines.append(pipeline_of(seats, like.model.layers, microbatch, passes))
        plan = replace(like, pipelines=tuple(pipelines))
        lowered = lower_plan(plan, self.referee.lowering)
        self.enumeration.counts.played += 1
        if not lowered.fits():
            return None
        graph = lowered.graph()
        step_s = contention.play(graph).makespan_s
        return Scored(plan, lowered.steps[0], step_s)


def _copies(islands: tuple[Island, ...], built: Built, copies: int) -> list[tuple[Islands, Built]]:
    """Identical pipelines, each on consecutive nodes of the islands: (islands, pipeline) for every copy."""
    found = []
    for copy in range(copies):
        members = []
        for island in islands:
            nodes = island.nodes // copies
            taken = island.node_indices[copy * nodes : (copy + 1) * nodes]
            members.append(replace(island, nodes=nodes, node_indices=taken))
        found.append((tuple(members), built))
    return found
