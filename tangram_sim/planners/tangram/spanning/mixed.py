"""Partial plans on joint islands: a parallelizer is asked about each part, the stage priced whole.

Each island is asked about the same slice with its share of the sequences. Answers that fit with as many
stages behind form a stage of several parts, priced as in a plan: as slow as the slowest part, gradients
reduced over all copies. All islands together, at their worst member and with one layout, are asked about too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from tangram_sim.clusters import Island
from tangram_sim.errors import TangramError
from tangram_sim.layouts import Layout
from tangram_sim.planners.budget import SearchBudget
from tangram_sim.planners.tangram.composition.composed import Composed, Placed
from tangram_sim.planners.tangram.composition.finalists import pipeline_of, seats_of
from tangram_sim.planners.tangram.enumeration.enumerate import Enumeration
from tangram_sim.planners.tangram.enumeration.prefetch import SliceQuestion
from tangram_sim.planners.tangram.fleets.patterns import MANY
from tangram_sim.planners.tangram.spanning.joint import Nodes, shares
from tangram_sim.training.plan import PartialPlan, Portion, StagePrice
from tangram_sim.training.schedules import holding, holds_whole_depth
from tangram_sim.training.step.lowered import Lowering

UNEVEN = 1.34  # time of the slowest part over that of an ideal share: coarser shares are left out
WAYS = 3  # to share


@dataclass
class MixedPrices:
    """Computes partial plans of slices on joint islands."""

    enumeration: Enumeration
    lowering: Lowering
    budget: SearchBudget
    _whole: dict[Nodes, Island] = field(default_factory=dict)

    def island(self, nodes: Nodes) -> Island:
        """The first nodes of each island as one island, priced at its worst member."""
        if nodes not in self._whole:
            first = self.lowering.placement.first_rank
            taken = [
                node
                for island, count in zip(self.enumeration.islands, nodes, strict=True)
                for node in island.node_indices[:count]
            ]
            ranks = tuple(sorted(rank for node in taken for rank in range(first[node], first[node + 1])))
            self._whole[nodes] = self.lowering.placement.island(ranks)
        return self._whole[nodes]

    def partials(
        self, nodes: Nodes, start: int, stop: int, microbatch: int, pace_s: float
    ) -> Iterator[PartialPlan]:
        """Yields partial plans for atoms [start, stop) on these nodes of all islands together.

        Those that take longer than `pace_s` per microbatch are left out.
        """
        yield from self._merged(nodes, start, stop, microbatch, pace_s)
        known: list[PartialPlan] = []
        for sequences in self._shares(nodes, start, stop, microbatch):
            for partial_plan in self._uneven(nodes, start, stop, microbatch, sequences, pace_s, known=known):
                known.append(partial_plan)
                yield partial_plan

    def fastest_s(self, nodes: Nodes, start: int, stop: int, microbatch: int) -> float:
        """Seconds of a microbatch, forward and backward, on these nodes; inf where nothing fits. The better
        of one part over all nodes, and of a part on each island with the first division of sequences, scaled
        as if the parts' speeds were balanced perfectly."""
        merged = self.enumeration.ask_on(self.island(nodes), start, stop, microbatch, float("inf"))
        ends = [partial_plan.slowest_s for partial_plan in merged if len(partial_plan.stages) == 1]
        for sequences in islice(self._shares(nodes, start, stop, microbatch), 1):
            answers = [
                self.enumeration.ask(kind, count, start, stop, share)
                for (kind, count), share in zip(self._members(nodes), sequences, strict=True)
            ]
            alone = [
                [partial_plan.slowest_s for partial_plan in answer if len(partial_plan.stages) == 1]
                for answer in answers
            ]
            if all(alone):
                rates = [share / min(some) for share, some in zip(sequences, alone, strict=True)]
                ends.append(microbatch / sum(rates))
        return min(ends, default=float("inf"))

    def questions(
        self, nodes: Nodes, start: int, stop: int, microbatch: int, pace_s: float
    ) -> Iterator[SliceQuestion]:
        """Yields the questions that `partials` will ask."""
        yield SliceQuestion(self.island(nodes).anonymous(), microbatch, start, stop, pace_s)
        for sequences in self._shares(nodes, start, stop, microbatch):
            for (kind, count), share in zip(self._members(nodes), sequences, strict=True):
                part = self.enumeration.islands[kind].part(count).anonymous()
                yield SliceQuestion(part, share, start, stop, float("inf"))

    def _shares(self, nodes: Nodes, start: int, stop: int, microbatch: int) -> Iterator[tuple[int, ...]]:
        """Divisions of a microbatch by the ideal speeds of the islands."""
        islands, work = self.enumeration.islands, self.enumeration.bound.seconds[:, start:stop].sum(axis=1)
        speeds = [
            count * islands[kind].gpus_per_node / float(work[kind]) for kind, count in self._members(nodes)
        ]
        return shares(speeds, microbatch, WAYS, UNEVEN)

    def _members(self, nodes: Nodes) -> list[tuple[int, int]]:
        """(kind, nodes) of the islands that the joint island includes."""
        return [(kind, count) for kind, count in enumerate(nodes) if count]

    def _merged(
        self, nodes: Nodes, start: int, stop: int, microbatch: int, pace_s: float
    ) -> Iterator[PartialPlan]:
        """Yields partial plans with one layout over all GPUs, each priced as the worst of them."""
        islands = self.enumeration.islands
        for partial in self.enumeration.ask_on(self.island(nodes), start, stop, microbatch, pace_s):
            if len(partial.stages) == 1:
                portions = tuple(
                    Portion(islands[kind].name, count, 0, partial.layout, partial.runs)
                    for kind, count in self._members(nodes)
                )
                yield replace(partial, nodes=1, portions=portions)

    def _uneven(
        self,
        nodes: Nodes,
        start: int,
        stop: int,
        microbatch: int,
        sequences: Sequence[int],
        pace_s: float,
        known: Sequence[PartialPlan],
    ) -> Iterator[PartialPlan]:
        """Yields partial plans of one part per island, with `sequences` of every microbatch on each. Parts
        have one stage that takes less than `pace_s`. A combination is skipped where a plan in `known` is as
        fast as its slowest part alone and fits with as many stages behind. A heuristic, not dominance: costs
        once per step (gradients, optimizer) may be lower in the skipped combination, which for most jobs is
        worth less than pricing it."""
        members = self._members(nodes)
        answers = [
            [
                partial_plan
                for partial_plan in self.enumeration.ask(kind, count, start, stop, share)
                if len(partial_plan.stages) == 1 and partial_plan.slowest_s < pace_s
            ]
            for (kind, count), share in zip(members, sequences, strict=True)
        ]
        seen: set[tuple[Portion, ...]] = set()
        zeros: tuple[int, ...] = ()
        passes, atoms = self.enumeration.job.global_batch // microbatch, self.enumeration.model.layers + 2
        # Of equal slices those of the front have most atoms behind them.
        most = atoms - (stop - start) if holds_whole_depth(self.enumeration.job.schedule) else atoms - stop
        if stop - start == atoms and passes < MANY:
            zeros = (3,)  # gradients go while passes compute, which parts alone may not gain by
        for chosen in _choices(answers, passes, most):
            if any(_surpasses(partial_plan, chosen) for partial_plan in known):
                continue
            alone = [partial_plan.layout.zero_stage for partial_plan in chosen]
            for zero in dict.fromkeys((max(alone), min(alone), *zeros)):
                portions = tuple(
                    _portion(self.enumeration.islands[kind].name, count, share, partial_plan, zero)
                    for (kind, count), share, partial_plan in zip(members, sequences, chosen, strict=True)
                )
                if portions in seen or not all(self._allowed(portion) for portion in portions):
                    continue
                seen.add(portions)
                priced = self._priced(chosen[0], portions, microbatch)
                if priced is not None:
                    yield priced

    def _allowed(self, portion: Portion) -> bool:
        """Whether the layouts of a part satisfy the user's constraints."""
        layouts = [portion.layout, *(run.layout for run in portion.runs)]
        return all(self.enumeration.constraints.allows(layout, portion.sequences) for layout in layouts)

    def _priced(
        self, like: PartialPlan, portions: tuple[Portion, ...], microbatch: int
    ) -> PartialPlan | None:
        """The partial plan that these portions form; None where it never fits memory."""
        job, islands = self.enumeration.job, self.enumeration.islands
        draft = replace(
            like,
            island="+".join(portion.island for portion in portions),
            nodes=1,
            layout=portions[0].layout,
            runs=portions[0].runs,
            microbatch=microbatch,
            portions=portions,
            boundary_bytes=like.boundary_bytes / like.microbatch * microbatch,
        )
        passes = job.global_batch // microbatch
        alone = Composed(0.0, (Placed(len(islands), like.start, like.stop, draft),), microbatch, passes)
        seats = seats_of(alone, islands, self.lowering.placement)
        pipeline = pipeline_of(seats, self.enumeration.model.layers, microbatch, passes)
        try:
            step = self.lowering.lower(pipeline)
        except TangramError:  # layouts that cannot hold the same weights together
            return None
        behind = min(self._behind(chunks[0], passes) for chunks in step.part_prices[0])
        return replace(draft, stages=step.prices[0], stages_behind=behind) if behind >= 0 else None

    def _behind(self, price: StagePrice, microbatches: int) -> int:
        """The most stages behind with which a part fits memory; -1 where it never fits."""
        held = holding(self.enumeration.job.schedule, microbatches)
        return held.most_behind(price.in_flight_limit(), 0)


def _choices(
    answers: Sequence[Sequence[PartialPlan]], passes: int, most: int
) -> Iterator[tuple[PartialPlan, ...]]:
    """Yields choices of one partial plan per island that may form a mixed stage.

    The fastest of each; then, for each tensor-parallel degree that all can have, the fastest with a common
    ZeRO stage, or with any where none is common. Repeated for plans that fit with 0, 1, 2, 4, 8, ... stages
    behind, and with `most`. Unequal degrees make the exchange of gradients costly; all parts use one ZeRO
    stage in the end.
    """

    def fastest(some: Sequence[PartialPlan]) -> PartialPlan:
        return min(some, key=lambda partial_plan: passes * partial_plan.slowest_s + partial_plan.tail_s)

    fitting = {partial_plan.stages_behind for answer in answers for partial_plan in answer}
    for level in sorted({_step_down(behind, most) for behind in fitting}):
        able = [
            [partial_plan for partial_plan in answer if partial_plan.stages_behind >= level]
            for answer in answers
        ]
        if not all(able):
            return
        yield tuple(fastest(some) for some in able)
        for tp in sorted(
            set.intersection(*({partial_plan.layout.tp for partial_plan in some} for some in able))
        ):
            alike = [[partial_plan for partial_plan in some if partial_plan.layout.tp == tp] for some in able]
            stages = set.intersection(
                *({partial_plan.layout.zero_stage for partial_plan in some} for some in alike)
            )
            if not stages:
                yield tuple(fastest(some) for some in alike)
            for zero in sorted(stages):
                yield tuple(
                    fastest([partial_plan for partial_plan in some if partial_plan.layout.zero_stage == zero])
                    for some in alike
                )


def _step_down(behind: int, most: int) -> int:
    """The largest power of two (or 0) up to `behind`; `most` where `behind` reaches it."""
    return most if behind >= most else 1 << (behind.bit_length() - 1) if behind else 0


def _surpasses(known: PartialPlan, chosen: Sequence[PartialPlan]) -> bool:
    """Whether a known plan is as fast as the slowest of `chosen`, fits where they do, and has as even tp."""
    even = (
        len({partial_plan.layout.tp for partial_plan in chosen}) > 1
        or len({portion.layout.tp for portion in known.portions}) == 1
    )
    slowest_s, behind = (
        max(partial_plan.slowest_s for partial_plan in chosen),
        min(partial_plan.stages_behind for partial_plan in chosen),
    )
    return even and known.slowest_s <= slowest_s and known.stages_behind >= behind


def _portion(island: str, nodes: int, sequences: int, partial: PartialPlan, zero: int) -> Portion:
    """A part of a mixed stage, with its layouts under ZeRO stage `zero` like all parts of the stage."""

    def sharded(layout: Layout) -> Layout:
        return replace(layout, zero_stage=zero)

    runs = tuple(replace(run, layout=sharded(run.layout)) for run in partial.runs)
    return Portion(island, nodes, sequences, sharded(partial.layout), runs)
