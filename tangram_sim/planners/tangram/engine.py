"""The Tangram planner: islands, enumeration, pruning, composition, and finalists played whole.

Tao et al., "Tangram: Hiding GPU Heterogeneity for Efficient LLM Parallelization", arXiv:2606.16907.
"""

from collections.abc import Sequence

import numpy as np

from tangram_sim.clusters import Cluster, Island
from tangram_sim.cost.collectives import transfer_s
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Parallelizer
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import Candidate, Counts, Found, Scored, SearchOptions
from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator
from tangram_sim.planners.tangram.composition.search import Progress, Search, rank
from tangram_sim.planners.tangram.enumeration.enumerate import Enumeration
from tangram_sim.planners.tangram.enumeration.parallel import Pieces
from tangram_sim.planners.tangram.enumeration.prefetch import PrefetchQueue, Subject
from tangram_sim.planners.tangram.fleets.fleet_bound import covers, fleet_bound_s, unbounded
from tangram_sim.planners.tangram.fleets.patterns import FleetProblem
from tangram_sim.planners.tangram.fleets.replication import Replication
from tangram_sim.planners.tangram.fleets.scale import MOST_STATES, Fleets, is_large
from tangram_sim.planners.tangram.infeasible import why_not
from tangram_sim.planners.tangram.spanning.spanning import spanning_over
from tangram_sim.planners.uniform.trivial import trivial
from tangram_sim.planners.usable import usable_islands
from tangram_sim.registry import parallelizer as parallelizer_named
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import holds_whole_depth
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.lowered import Lowering

FEW_PASSES = 16  # per step, for lack of a plan that says how many are usual
MAX_STATES = MOST_STATES  # node-count combinations the composition keeps apart


def node_units(islands: Sequence[Island]) -> tuple[int, ...]:
    """Nodes taken at a time from each island so that the composition's count states stay below MAX_STATES."""
    units = [1] * len(islands)
    while (
        np.prod([island.nodes // unit + 1 for island, unit in zip(islands, units, strict=True)]) > MAX_STATES
    ):
        widest = max(range(len(islands)), key=lambda kind: islands[kind].nodes // units[kind])
        units[widest] *= 2
    return tuple(units)


def tangram(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    wishes: SearchOptions | None = None,
    progress: Progress | None = None,
    parallelizer: Parallelizer | None = None,
    deadline: Deadline | None = None,
) -> Found:
    """Plan `model` on `cluster`: the best pipelines found, played whole, best first.

    `parallelizer` is an instance of `wishes.parallelizer` that other searches have asked, or will: what it
    has priced it knows. A search that `wishes.time_limit_s` ends returns the best plan it has; with a limit
    of zero that is a uniform one. Raises InfeasibleError with what is missing when nothing fits.
    """
    wishes = wishes or SearchOptions()
    deadline = deadline or Deadline(wishes.time_limit_s)
    islands, notes = usable_islands(cluster, job, hwdb, wishes)
    counts = Counts()
    every: list[Candidate] = []
    bound = WorkBound(model, job, islands, hwdb, cluster)
    lowering = Lowering(Placement(cluster, hwdb), StagePrices(model, job, hwdb))
    pieces = Pieces(wishes.jobs)
    ready: list[Scored] = []  # plans that are not the composition's
    if wishes.time_limit_s < float("inf"):
        seated = sorted(islands, key=lambda one: wishes.order.index(one.name) if wishes.order else 0)
        some = bool(wishes.order or notes)  # not all of the cluster, or not in file order
        simple = trivial(model, cluster, job, seated, lowering, wishes.constraints, counts, some)
        ready += [simple] if simple else []
        if wishes.time_limit_s <= 0:
            if not ready:
                raise InfeasibleError(
                    f"no uniform layout of {model.name} fits {cluster.name}; "
                    "search for others with a longer --time-limit"
                )
            notes.append("time limit 0: the best uniform layout, nothing was searched")
            return Found(ready, bound.step_s(), counts, notes, every)
    large = (
        wishes.sub_islands
        and not wishes.order
        and not holds_whole_depth(job.schedule)
        and "dp" not in dict(wishes.constraints.fixed)  # copies side by side multiply it
        and is_large([island.nodes for island in islands])
    )
    if large:
        ground = FleetProblem(model, cluster, job, islands, hwdb, wishes.constraints, wishes.parallelizer)
        fleets = Fleets(ground, bound, lowering, counts, pieces, deadline)
        fleet = fleets.best()
        notes += fleets.notes()
        if wishes.every_candidate:
            notes.append("--candidates: partial plans of patterns are not recorded; the file is empty")
        ready += [fleet] if fleet else []
        if fleet or deadline.over():
            if not ready:
                raise InfeasibleError(_out_of_time(wishes))
            if deadline.over():
                notes.append(_stopped(wishes))
            ready.sort(key=lambda scored: scored.step_s)
            found = Found(ready[: max(wishes.top, 1)], bound.step_s(), counts, notes, every)
            if wishes.fleet_bound:
                why = unbounded(ground) or (wishes.exclude and "it covers all islands: exclude none") or ""
                best = found.ranked[0]
                if not why:
                    found.fleet_bound_s = fleet_bound_s(ground, bound, best.step_s, counts, deadline)
                    found.covered = covers(best.plan, islands)
                if not found.fleet_bound_s:
                    notes.append(f"--bound: none was found, {why or 'for the time limit'}")
            return found
    if wishes.fleet_bound:
        notes.append("--bound: none was looked for; it covers large clusters, planned as copies of patterns")
    units = node_units(islands) if wishes.sub_islands else tuple(island.nodes for island in islands)
    if wishes.sub_islands and max(units) > 1:
        taken = ", ".join(
            f"{island.name} by {unit}" + (f", {island.nodes % unit} left over" if island.nodes % unit else "")
            for island, unit in zip(islands, units, strict=True)
            if unit > 1
        )
        notes.append(f"nodes are taken in groups ({taken}): stages that split a group were not searched")
    islands = tuple(
        island.part(island.nodes - island.nodes % unit) for island, unit in zip(islands, units, strict=True)
    )
    subject = Subject(model, job, hwdb, wishes.constraints)
    enumeration = Enumeration(
        model,
        job,
        islands,
        parallelizer or parallelizer_named(wishes.parallelizer)(),
        wishes.constraints,
        hwdb,
        bound,
        counts,
        every if wishes.every_candidate else None,
        _tied_s(model, job, islands),
        wishes.policies,
        wishes.window,
        deadline=deadline,
        asking=None if pieces.jobs == 1 else PrefetchQueue(pieces, wishes.parallelizer, subject, deadline),
    )
    referee = PlanEvaluator(model, cluster, job, lowering, counts)
    work = np.concatenate([[0.0], np.cumsum(bound.seconds.min(axis=0))])
    search = Search(
        enumeration, referee, bound.step_s(), units, work, wishes.order, budget(wishes.effort), deadline
    )
    played = search.run(progress)
    enumeration.count_pruned()
    ranked = rank(played, referee, max(wishes.top, 1)) if played else []
    if wishes.replicate and wishes.sub_islands and not wishes.order:
        several = _several(enumeration, referee, ranked, wishes, max(units) == 1, notes)
        ranked = [*several, *ranked]
    if deadline.over():
        notes.append(_stopped(wishes))
        if not ranked and not ready:
            raise InfeasibleError(_out_of_time(wishes))
    if not ranked and not ready:
        if counts.windowed:
            raise InfeasibleError(
                f"no plan inside --window {wishes.window:g}: {counts.windowed} pairs of a slice and a part "
                "of an island lie outside; widen it, or leave it to the planner with --window auto"
            )
        raise InfeasibleError(why_not(model, cluster, job, islands, hwdb, wishes.constraints))
    ranked = sorted([*ranked, *ready], key=lambda scored: scored.step_s)[: max(wishes.top, 1)]
    lost = enumeration.lost(ranked[0].step_s)
    if wishes.window:
        notes.append(
            f"imbalance window {wishes.window:g} as asked: {counts.windowed} pairs left out, at most "
            f"{lost:.1%} of the step lost to it"
        )
    loads = (min(enumeration.loads, default=0.0), max(enumeration.loads, default=0.0))
    least_s = search.least_s()
    first = ranked[0].plan.pipelines[0]
    known = {island.name for island in islands}
    spans = any(len(stage.parts) > 1 or stage.parts[0].island not in known for stage in first.stages)
    if len(ranked[0].plan.pipelines) == 1 and spans and ranked[0].step_s < least_s:
        least_s = 0.0  # it bounds stages on one island each, of the islands of the search
    return Found(ranked, bound.step_s(), counts, notes, every, loads, lost, least_s)


def _several(
    enumeration: Enumeration,
    referee: PlanEvaluator,
    ranked: Sequence[Scored],
    wishes: SearchOptions,
    by_node: bool,
    notes: list[str],
) -> list[Scored]:
    """Faster plans than the best of `ranked`: pipelines side by side, stages on several islands."""
    found: list[Scored] = []
    best_s = ranked[0].step_s if ranked else float("inf")
    if ranked and not enumeration.deadline.over():
        beside = Replication(enumeration, referee).improve(ranked[0])
        if beside is not None:
            gain, count = 1 - beside.step_s / best_s, len(beside.plan.pipelines)
            notes.append(
                f"{count} pipelines side by side are {gain:.1%} faster than the best single one found"
            )
            found, best_s = [beside], beside.step_s
    # Degrees that are fixed are those of a stage: parts side by side would multiply dp.
    if wishes.spanning and by_node and "dp" not in dict(wishes.constraints.fixed):
        spanning = spanning_over(enumeration, referee, wishes.tolerances is None, budget(wishes.effort))
        batch = enumeration.job.global_batch
        usual = ranked[0].plan.pipelines[0].microbatch if ranked else max(batch // FEW_PASSES, 1)
        wider = spanning.improve(usual, best_s)
        if spanning.nearest or spanning.finer:
            notes.append(spanning.note(best_s))
        found = [wider, *found] if wider else found
    return found


def _stopped(wishes: SearchOptions) -> str:
    return f"stopped by the time limit of {wishes.time_limit_s:g} s: the best plan so far"


def _out_of_time(wishes: SearchOptions) -> str:
    return (
        f"no plan was found within {wishes.time_limit_s:g} s and no uniform layout fits; raise --time-limit"
    )


def _tied_s(model: Model, job: Job, islands: Sequence[Island]) -> float:
    """Least time of the all-reduce of a tied matrix between different stages."""
    if not model.tied or any(island.paths is not None for island in islands):
        return 0.0  # a stated graph may hold more than the rows of its nodes
    size = model.vocabulary_parameters * job.recipe.gradient_bytes
    rates = [
        max(island.nic_bytes_per_s * island.nodes, island.intra.bytes_per_s * island.gpus)
        for island in islands
    ]
    return transfer_s(size, max(rates), 0.0)
