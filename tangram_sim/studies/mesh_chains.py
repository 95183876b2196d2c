"""Chains whose node groups differ in their degrees, which FlagScale's heterogeneous mode launches.

The program of `chain_problem` with a separate layout for every group: all stages on a group have the same
tensor, data and expert degrees and recomputation. All stages take the same microbatches; there is one
pipeline, and no sequence is split (cp 1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import inf
from typing import TypeAlias

import numpy as np

from tangram_sim.clusters import NodeGroup
from tangram_sim.cost.kernels import Floats
from tangram_sim.errors import TangramError
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.layouts import divisors, expert_degrees, head_counts
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import Counts
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator, StageAssignment
from tangram_sim.planners.uniform.frameworks import Framework, plan_objections
from tangram_sim.planners.uniform.layouts import places_together, rank_order
from tangram_sim.studies.chain_prices import ChainPrices, StageRoom, group_prices
from tangram_sim.studies.chain_problem import Chain, ChainProblem, surely_slower
from tangram_sim.studies.chain_roads import ChainRoads, chain_roads, held_ahead, stages_held
from tangram_sim.studies.launchable_layouts import LaunchLayouts, usable_groups
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline, Plan
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.lowered import Lowering

# Set by hand on the cases of `python -m benchmarks anywhere --narrower --answers flagscale`.
_LEAN = 0.6  # of the state of the fastest layout
_TOGETHER = 400  # choices of a layout for every group, the fastest first; most do not fit
_CHOICES = 4096  # of these that are put in order
_ALONE = 1e-4  # of the step: what links that are shared may take without being looked at
_PLAYED = 12  # chains that are made plans


@dataclass(frozen=True, slots=True)
class _GroupLayout:
    """A layout for the stages on one group, with `sums` and `fixed` as in `ChainPrices`."""

    layout: Layout
    slots: int
    sums: Floats
    fixed: Floats

    @property
    def rate(self) -> float:
        """Microbatches per second if each of the group's stages held the whole model."""
        return float(self.slots / self.sums[0, -1])


# A chain, its groups with the layout of each, and the sequences of a microbatch.
_Found: TypeAlias = tuple[Chain, tuple[tuple[NodeGroup, Layout], ...], int]


class MeshChains:
    """Finds plans over one vendor's groups, each group with its own degrees, that a framework can launch."""

    def __init__(self, layouts: LaunchLayouts, framework: Framework) -> None:
        self.layouts, self.framework = layouts, framework
        self._placement = Placement(layouts.cluster, layouts.hwdb)
        self._depth = min(layouts.budget.stages, layouts.model.layers)
        self._roads_of: dict[tuple[tuple[str, ...], tuple[int, ...]], ChainRoads] = {}

    def fastest(self, limit_s: float) -> Plan | None:
        """The fastest plan found with a step below `limit_s`; None: none found."""
        found, job = list[_Found](), self.layouts.job
        usable = usable_groups(self.layouts.cluster, job, self.layouts.options)
        if self.layouts.options.order or job.schedule not in self.framework.schedules:
            return None
        for vendor in dict.fromkeys(group.node.gpu.vendor for group in usable):
            groups = [group for group in usable if group.node.gpu.vendor == vendor]
            priced = {group.name: self._priced(group) for group in groups}
            for microbatch in divisors(self.layouts.job.global_batch):
                menus = [(group, priced[group.name].get(microbatch, [])) for group in groups]
                for result in self._solve(microbatch, [pair for pair in menus if pair[1]], limit_s):
                    found.append(result)
                    limit_s = min(limit_s, result[0].step_s)
        best: Plan | None = None
        for result in sorted(found, key=lambda result: result[0].step_s)[:_PLAYED]:
            step_s, plan = self._played(result)
            if plan and step_s < limit_s * (1.0 if best else 1.02):
                best, limit_s = plan, step_s
        return best

    def _priced(self, group: NodeGroup) -> dict[int, list[_GroupLayout]]:
        """The most promising layouts of stages on a group, by sequences per microbatch."""
        layouts, job, gpus = self.layouts, self.layouts.job, group.count * group.node.gpus
        rows: list[tuple[int, Layout]] = []
        for tp, dp in product(divisors(group.node.gpus), divisors(job.global_batch)):
            if tp * dp > gpus or any(heads % tp for heads in head_counts(layouts.model)):
                continue
            for ep, recompute in product(expert_degrees(layouts.model, dp), self.framework.recompute):
                layout = Layout(
                    tp, dp, ep=ep, zero_stage=int(dp > 1), recompute=recompute, sequence_parallel=tp > 1
                )
                for size in (item for item in layouts.microbatches if job.global_batch // dp % item == 0):
                    allowed = layouts.options.constraints.allows(layout, size * dp)
                    if allowed and stages_held(group, layout):
                        rows.append((size * dp, layout))
        if not rows:
            return {}
        ranks = tuple(rank_order(layouts.cluster, [group.name]))
        island, of = self._placement.island(ranks).anonymous(), [layout for _, layout in rows]
        sizes = [microbatch for microbatch, _ in rows]
        sums, fixed = group_prices(layouts.model, island, job, layouts.hwdb, of, sizes)
        menus: dict[int, dict[tuple[str, int], list[_GroupLayout]]] = {}
        for number, (microbatch, layout) in enumerate(rows):
            group_layout = _GroupLayout(layout, stages_held(group, layout), sums[:, number], fixed[:, number])
            alike = menus.setdefault(microbatch, {}).setdefault((layout.recompute, layout.gpus), [])
            alike.append(group_layout)
        return {
            microbatch: [group_layout for some in of_kind.values() for group_layout in _likeliest(some)]
            for microbatch, of_kind in menus.items()
        }

    def _solve(
        self, microbatch: int, menus: Sequence[tuple[NodeGroup, list[_GroupLayout]]], limit_s: float
    ) -> Iterator[_Found]:
        """Yields chains faster than `limit_s` for the most promising layouts of each group."""
        job, passes = self.layouts.job, self.layouts.job.global_batch // microbatch
        few = int(_CHOICES ** (1.0 / max(len(menus), 1)))
        short = [sorted(menu, key=lambda group_layout: -group_layout.rate)[:few] for _, menu in menus]
        choices = sorted(product(*short), key=lambda some: -sum(group_layout.rate for group_layout in some))
        groups, held = tuple(group for group, _ in menus), held_ahead(job.schedule, self._depth, passes)
        for some in islice(choices, _TOGETHER):
            if not some or passes >= limit_s * sum(group_layout.rate for group_layout in some):
                return
            slots = np.array([group_layout.slots for group_layout in some], np.int32)
            sums = np.stack([group_layout.sums for group_layout in some], axis=1)
            fixed = np.stack([group_layout.fixed for group_layout in some], axis=1)
            if surely_slower(limit_s, passes, self._depth, 1, slots, StageRoom(sums, fixed, held)):
                continue
            roads = self._roads(groups, tuple(group_layout.layout.gpus for group_layout in some))
            of = [group_layout.layout for group_layout in some]
            road_s = roads.seconds(self.layouts.model, job, microbatch, of)
            names = tuple(group.name for group in groups)
            problem = ChainProblem(names, passes, slots, ChainPrices(sums, fixed, *road_s, held))
            for chain in map(problem.improved, problem.solve(self._depth, limit_s)[:1]):
                if chain.step_s < limit_s:
                    limit_s = chain.step_s
                    yield chain, tuple(zip(groups, of, strict=True)), microbatch

    def _roads(self, groups: tuple[NodeGroup, ...], widths: tuple[int, ...]) -> ChainRoads:
        """Links between stages of these widths in GPUs, one width per group."""
        key = tuple(group.name for group in groups), widths
        if key not in self._roads_of:
            cluster, pairs = self.layouts.cluster, zip(groups, widths, strict=True)
            places = [places_together(cluster, group.name, width) for group, width in pairs]
            self._roads_of[key] = chain_roads(self._placement, places, tied=self.layouts.model.tied)
        return self._roads_of[key]

    def _played(self, found: _Found) -> tuple[float, Plan | None]:
        """(seconds of the step, the plan) after moving atoms; None for the plan if it cannot be launched."""
        layouts = self.layouts
        chain, of, microbatch = found
        free = [places_together(layouts.cluster, group.name, layout.gpus) for group, layout in of]
        seats = tuple(
            StageAssignment(of[kind][0].name, free[kind].pop(), of[kind][1], *cut)
            for kind, cut in zip(chain.groups[::-1], chain.cuts[::-1], strict=True)
        )[::-1]
        lowering = Lowering(self._placement, StagePrices.of(layouts.model, layouts.job, layouts.hwdb))
        step_s, pipeline = refined(layouts, layouts.job, lowering, seats, microbatch)
        if pipeline is None:  # a law of degrees that the prices do not know
            return step_s, None
        plan = Plan(layouts.model, layouts.cluster, layouts.job, (pipeline,))
        launched = not plan_objections(self.framework, plan, with_model=layouts.with_model)
        return step_s, plan if launched else None


def _likeliest(alike: Sequence[_GroupLayout]) -> list[_GroupLayout]:
    """Of layouts of equal width and recomputation: the fastest, and the fastest with far less memory."""
    first = max(alike, key=lambda group_layout: group_layout.rate)
    state = first.sums[4, -1]  # bytes of the whole model on a rank of one stage
    lean = [group_layout for group_layout in alike if group_layout.sums[4, -1] < _LEAN * state]
    return [first, max(lean, key=lambda group_layout: group_layout.rate)] if lean else [first]


def refined(
    layouts: LaunchLayouts,
    job: Job,
    lowering: Lowering,
    seats: tuple[StageAssignment, ...],
    microbatch: int,
    deadline: Deadline | None = None,
) -> tuple[float, Pipeline | None]:
    """(seconds of the step, the pipeline) after moving atoms between stages while that shortens the step.

    (inf, None) if the stages do not fit or cannot be priced.
    """
    evaluator = PlanEvaluator(layouts.model, layouts.cluster, job, lowering, Counts(), deadline)
    try:
        moved = evaluator.refine(seats, microbatch, layouts.budget.rounds)
        if evaluator.shared(moved, microbatch) > (1.0 + _ALONE) * evaluator.step_s(moved, microbatch):
            moved = min((moved, seats), key=lambda some: evaluator.shared(some, microbatch))
            moved = evaluator.refine(moved, microbatch, layouts.budget.rounds, layouts.budget.ops)
        step_s = evaluator.shared(moved, microbatch)
        return step_s, evaluator.lowered(moved, microbatch)[0] if step_s < inf else None
    except TangramError:
        return inf, None
