"""The Tangram planner: islands, enumeration, pruning, composition, and simulation of the finalists.

Tao et al., "Tangram: Hiding GPU Heterogeneity for Efficient LLM Parallelization", arXiv:2606.16907.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from tangram_sim.clusters import Cluster, Island
from tangram_sim.errors import InfeasibleError
from tangram_sim.findings import Finding
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import (
    Candidate,
    Counts,
    Found,
    NothingBelowError,
    Progress,
    Scored,
    SearchOptions,
)
from tangram_sim.planners.budget import SearchBudget, budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.search_memory import parallelizer_in_use
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.fewer_islands import look_again
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator
from tangram_sim.planners.tangram.composition.ranking import RANKS, rank
from tangram_sim.planners.tangram.composition.search import Search
from tangram_sim.planners.tangram.enumeration.enumerate import Enumeration
from tangram_sim.planners.tangram.enumeration.parallel import Pieces
from tangram_sim.planners.tangram.enumeration.prefetch import PrefetchQueue, Subject
from tangram_sim.planners.tangram.few_apart import gain_apart, looks_apart
from tangram_sim.planners.tangram.findings import (
    KNOWN_IS_BEST,
    LIKELIEST_ISLANDS,
    MICROBATCHES_LEFT_OUT,
    NO_CANDIDATES,
    NOTHING_SEARCHED,
    SIDE_BY_SIDE,
    WINDOW,
)
from tangram_sim.planners.tangram.fleet_budget import FLEETS
from tangram_sim.planners.tangram.fleets.lone_stage import lone_stage
from tangram_sim.planners.tangram.fleets.patterns import FleetProblem, shares
from tangram_sim.planners.tangram.fleets.replication import BESIDE, Replication
from tangram_sim.planners.tangram.fleets.scale import Fleets
from tangram_sim.planners.tangram.infeasible import why_not
from tangram_sim.planners.tangram.spanning.spanning import spanning_over
from tangram_sim.planners.tangram.tied import tied_s
from tangram_sim.planners.tangram.told_apart import in_groups, likeliest, node_units, spans
from tangram_sim.planners.uniform.trivial import PlayLimits, trivial
from tangram_sim.planners.usable import usable_islands
from tangram_sim.sim import contention
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.schedules import puts_off_weights
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import lower_plan

QUICK = "quick"  # effort of glances that take islands whole
UNIFORM_OPS = 300_000  # of uniform layouts that are played beside copies of patterns
_GRACE_S = 0.6  # on the clock for a uniform layout, where a search out of time has no plan at all
_LASTING = 2.0  # times the best step: what a plan that loses less with a node may take
_PASSES = 16  # of a step over islands, for lack of a plan that says how many are usual


@dataclass
class _Task:
    """One planning request: its input, limits and tools, and the findings about it so far."""

    model: Model
    cluster: Cluster
    job: Job
    hwdb: Hwdb
    wishes: SearchOptions
    budget: SearchBudget
    deadline: Deadline
    islands: tuple[Island, ...]
    findings: list[Finding]
    known: Sequence[Plan] = ()
    progress: Progress | None = None
    below_s: float = inf
    halves: bool = False
    counts: Counts = field(default_factory=Counts)
    candidates: list[Candidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bound = WorkBound(self.model, self.job, self.islands, self.hwdb, self.cluster)
        placement = Placement(self.cluster, self.hwdb)
        self.lowering = Lowering(placement, StagePrices.of(self.model, self.job, self.hwdb))
        self.pieces = Pieces(self.wishes.jobs)
        self.standing = [scored for plan in self.known if (scored := self._scored(plan)) is not None]

    def _scored(self, plan: Plan) -> Scored | None:
        """A known plan simulated with shared links; None where it is for another request or does not fit."""
        if (plan.model, plan.cluster, plan.job) != (self.model, self.cluster, self.job):
            return None
        lowered = lower_plan(plan, self.lowering)
        if not lowered.fits():
            return None
        return Scored(plan, lowered.steps[0], contention.play(lowered.graph()).makespan_s)

    def say(self, what: str) -> None:
        """Report that another phase of the search begins, without a known length."""
        if self.progress:
            self.progress(0, 0, what)

    def found(self, ranked: Sequence[Scored]) -> Found:
        """The result with these plans and the known ones, fastest first."""
        stopped = self.deadline.findings() if self.deadline.over() else []
        every = sorted([*ranked, *self.standing], key=lambda scored: scored.step_s)
        if any(every[0] is one for one in self.standing):
            self.findings.append(KNOWN_IS_BEST())
        best = every[: self.wishes.most]
        return Found(best, self.bound.step_s(), self.counts, self.findings, stopped, self.candidates)

    def is_large(self) -> bool:
        """Whether the cluster is planned as copies of patterns."""
        return (
            self.wishes.sub_islands
            and not self.wishes.order
            and "dp" not in dict(self.wishes.constraints.fixed)  # copies side by side multiply it
            and FLEETS[self.budget.effort].is_large([island.nodes for island in self.islands])
        )


def tangram(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    wishes: SearchOptions | None = None,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
    known: Sequence[Plan] = (),
    *,
    below_s: float = inf,
    halves: bool = False,
) -> Found:
    """Plan `model` on `cluster`: the best pipelines found, simulated whole, fastest first.

    The best of the `known` plans for the same request is the first limit of the search, and the result if
    nothing faster is found. A `SearchMemory` in use saves repeated requests to parallelizers. A search ended
    by the deadline (by default `wishes.time_limit_s`) returns the best plan so far; with no time at all, a
    uniform one. With `halves` islands are divided into halves at the finest (on large clusters not at all),
    for a quick estimate. Such a search, or one of whole islands, raises NothingBelowError where it finds no
    plan faster than `below_s` and none is known. Raises InfeasibleError, saying what is missing, when nothing
    fits.
    """
    wishes = wishes or SearchOptions()
    deadline = deadline or Deadline(wishes.time_limit_s)
    islands, findings = usable_islands(cluster, job, hwdb, wishes)
    effort = budget(wishes.effort)
    given = model, cluster, job, hwdb, wishes, effort, deadline, islands, findings, known, progress
    task = _Task(*given, below_s, halves)
    if halves and task.is_large():
        task.wishes, task.halves = replace(wishes, sub_islands=False, effort=QUICK), False
        task.budget = budget(QUICK)
    if deadline.asked_s <= 0:
        return _unsearched(task)
    found = _copies_of_patterns(task) if task.is_large() else None
    return found or _node_by_node(task)


def _on_the_likeliest(task: _Task, kept: Sequence[int]) -> Found:
    """Result for the islands numbered `kept`, where all islands are too many to compose."""
    some = tuple(task.islands[kind] for kind in kept)
    names = [island.name for island in some]
    order = tuple(name for name in task.wishes.order if name in names)
    fewer = replace(task, islands=some, wishes=replace(task.wishes, order=order))
    fewer.findings.append(LIKELIEST_ISLANDS(islands=len(task.islands), searched=len(some)))
    found = _node_by_node(fewer)
    found.lower_bound_step_s, found.pipeline_bound_s = task.bound.step_s(), 0.0
    return found


def _unsearched(task: _Task) -> Found:
    """Result of a search without time: the fastest uniform layout or known plan. Raises InfeasibleError."""
    simple = sorted([*_simple(task), *task.standing], key=lambda scored: scored.step_s)
    if not simple:
        raise InfeasibleError(
            f"no uniform layout of {task.model.name} was found to fit {task.cluster.name} in "
            f"{_GRACE_S:g} s; search for others with a longer `time_limit_s=`"
        )
    stopped = [NOTHING_SEARCHED()]
    return Found(simple, task.bound.step_s(), task.counts, task.findings, stopped, task.candidates)


def _simple(task: _Task, beside: Scored | None = None) -> list[Scored]:
    """The fastest uniform layout found within a short grace period after the deadline; empty where none fits.

    If a plan is known (`beside`), only layouts that may be faster are simulated, up to a fixed number of ops,
    so that every machine finds the same; likewise where no clock counts (`NoSearch`).
    """
    grace = task.deadline.grace(_GRACE_S)
    most = UNIFORM_OPS if grace.limit_s == inf else inf
    order = task.wishes.order
    seated = sorted(task.islands, key=lambda one: order.index(one.name) if order else 0)
    some = bool(order or task.findings)  # not all of the cluster, or not in file order
    found = trivial(
        task.model,
        task.cluster,
        task.job,
        islands=seated,
        lowering=task.lowering,
        constraints=task.wishes.constraints,
        counts=task.counts,
        some=some,
        limits=PlayLimits(task.deadline, UNIFORM_OPS, beside.step_s) if beside else PlayLimits(grace, most),
    )
    return [found] if found else []


def _ground(task: _Task) -> FleetProblem:
    """The request as a `FleetProblem`, for patterns and single-stage plans."""
    question = task.model, task.cluster, task.job, task.hwdb, task.islands
    return FleetProblem(*question, task.wishes.constraints, task.wishes.parallelizer, task.budget)


def _copies_of_patterns(task: _Task) -> Found | None:
    """Result for a large cluster: many copies of pipelines on few nodes. None where no pattern fits."""
    wishes = task.wishes
    ground = _ground(task)
    tools = task.counts, task.pieces, task.deadline, task.progress
    fleets = Fleets(ground, task.bound, task.lowering, *tools)
    fleet = fleets.best()
    task.findings += fleets.findings()
    if wishes.every_candidate:
        task.findings.append(NO_CANDIDATES())
    ready = [fleet] if fleet else _simple(task) if task.deadline.over() else []
    if fleet:  # copies of patterns use every kind, uniform layouts may leave one idle
        ready += _simple(task, fleet)
    lone, gain = lone_stage(ground, task.bound, task.lowering, task.counts, task.deadline, ready)
    ready, task.findings = [*ready, *lone], [*task.findings, *gain]
    plan = min(ready, key=lambda one: one.step_s).plan if ready else None
    last: list[Finding] = []
    for islands in looks_apart(task.islands, shares(task.bound), plan, FLEETS[task.budget.effort]):
        best_s, faster = min(one.step_s for one in ready), _node_by_node_below(task, islands, ready)
        if faster:
            last = [gain_apart(islands, FLEETS[task.budget.effort], faster[0].step_s, best_s)]
        ready += faster
    task.findings += last
    if not (ready or task.standing):
        if task.deadline.over():
            raise InfeasibleError(_out_of_time(task))
        return None
    return task.found(ready)


def _node_by_node_below(task: _Task, islands: tuple[Island, ...], known: Sequence[Scored]) -> list[Scored]:
    """Plans faster than all known ones, from searching some islands by node or by groups of nodes."""
    best, limits = min(known, key=lambda one: one.step_s), FLEETS[task.budget.effort]
    if task.deadline.over():
        return []
    wishes = replace(task.wishes, every_candidate=False, fleet_bound=False, spanning=False)
    few = replace(task, islands=islands, wishes=wishes, budget=task.budget.apart, known=())
    few.standing, few.findings = [best], []
    whole = puts_off_weights(task.job.schedule)  # no law of pipelines holds
    least_s = few.bound.step_s() if whole else few.bound.pipelines_s()
    if least_s * (1 + limits.apart_worth) >= best.step_s:
        return []
    task.say("some islands node by node")
    return [one for one in _node_by_node(few).ranked if one.step_s < best.step_s]


def _node_by_node(task: _Task) -> Found:
    """Single pipelines composed of single nodes, pipelines side by side, and stages on several islands."""
    wishes, findings = task.wishes, task.findings
    kept = likeliest(shares(task.bound), FLEETS[task.budget.effort].most_told_apart)
    if len(kept) < len(task.islands):
        return _on_the_likeliest(task, kept)
    units = tuple(one.nodes for one in task.islands)
    if wishes.sub_islands:
        units = node_units(task.islands, FLEETS[task.budget.effort].states)
    if wishes.sub_islands and max(units) > 1:
        findings.append(in_groups(task.islands, units))
    islands = task.islands
    enumeration = _enumeration(task, islands)
    referee = PlanEvaluator(task.model, task.cluster, task.job, task.lowering, task.counts, task.deadline)
    work = np.concatenate([[0.0], np.cumsum(task.bound.seconds.min(axis=0))])
    bound_s, budget, deadline = task.bound.step_s(), task.budget, task.deadline
    search = Search(
        enumeration, referee, bound_s, units, work, wishes.order, budget=budget, deadline=deadline
    )
    if task.standing:
        search.begin_at(min(task.standing, key=lambda scored: scored.step_s))
    limited = task.below_s < inf and (task.halves or not wishes.sub_islands)
    if limited:
        search.begin_below(task.below_s)
    played = search.run(task.progress, halves=task.halves)
    if not (task.halves or limited) and wishes.sub_islands:
        look_again(search, task.islands, task.progress)
        played = search.finalists()
    enumeration.count_pruned()
    if search.left_out:
        left = sorted(set(search.left_out))
        findings.append(MICROBATCHES_LEFT_OUT(effort=wishes.effort, microbatches=left))
    ranked = rank(played, referee, wishes.most, RANKS[task.budget.effort]) if played else []
    lone: list[Scored] = []
    apart = wishes.replicate and wishes.sub_islands and not (wishes.order or task.halves)
    if apart and not task.deadline.over():
        several = _several(task, enumeration, referee, ranked, max(units) == 1)
        ranked = [*several, *ranked]
        tools = task.bound, task.lowering, task.counts, task.deadline
        lone, gain = lone_stage(_ground(task), *tools, ranked, shares_only=True)
        ranked, findings[len(findings) :] = [*lone, *ranked], gain
    if limited and not (ranked or task.standing):
        raise NothingBelowError(task.below_s, task.counts)
    if not (ranked or task.standing) and task.deadline.over():
        ranked = _simple(task)
        if not ranked:
            raise InfeasibleError(_out_of_time(task))
    if not (ranked or task.standing):
        if task.counts.windowed:
            raise InfeasibleError(
                f"no plan inside `window={wishes.window:g}`: {task.counts.windowed} pairs of a slice and a "
                "part of an island lie outside; widen it, or leave it to the planner with `window=auto`"
            )
        raise InfeasibleError(
            why_not(task.model, task.cluster, task.job, islands, task.hwdb, wishes.constraints)
        )
    found = task.found(ranked)
    step_s = found.ranked[0].step_s
    found.gained = max(search.halves_s / step_s, 1.0)
    found.lost = enumeration.lost(step_s)
    if wishes.window:
        findings.append(WINDOW(window=wishes.window, pairs=task.counts.windowed, lost=found.lost))
    found.loads = (min(enumeration.loads, default=0.0), max(enumeration.loads, default=0.0))
    least_s = search.least_s()
    # It bounds stages on whole nodes of one island each, of the islands of the search.
    beyond = spans(found.ranked[0], islands) or found.ranked[0] in lone
    found.pipeline_bound_s = 0.0 if beyond and step_s < least_s else least_s
    return found


def _enumeration(task: _Task, islands: tuple[Island, ...]) -> Enumeration:
    """The enumeration that requests partial plans of slices on parts of these islands."""
    wishes = task.wishes
    subject = Subject(task.model, task.job, task.hwdb, wishes.constraints)
    ahead = PrefetchQueue(task.pieces, wishes.parallelizer, subject, task.deadline)
    return Enumeration(
        task.model,
        task.job,
        islands,
        parallelizer=parallelizer_in_use(wishes.parallelizer),
        constraints=wishes.constraints,
        hwdb=task.hwdb,
        bound=task.bound,
        counts=task.counts,
        record=task.candidates if wishes.every_candidate else None,
        tied_s=tied_s(task.model, task.job, islands),
        policies=wishes.policies,
        window=wishes.window,
        deadline=task.deadline,
        asking=None if task.pieces.jobs == 1 else ahead,
    )


def _several(
    task: _Task, enumeration: Enumeration, referee: PlanEvaluator, ranked: Sequence[Scored], by_node: bool
) -> list[Scored]:
    """Plans faster than the best of `ranked`: pipelines side by side, or with stages on several islands."""
    found: list[Scored] = []
    wishes, findings = task.wishes, task.findings
    best_s = ranked[0].step_s if ranked else float("inf")
    if ranked and not task.deadline.over():
        task.say("pipelines side by side")
        beside = Replication(enumeration, referee, BESIDE[task.budget.effort]).improve(ranked[0])
        if beside is not None:
            gain, count = 1 - beside.step_s / best_s, len(beside.plan.pipelines)
            findings.append(SIDE_BY_SIDE(pipelines=count, gain=gain))
            found, best_s = [beside], beside.step_s
    # Degrees that are fixed are those of a stage: parts side by side would multiply dp.
    if wishes.spanning and by_node and "dp" not in dict(wishes.constraints.fixed):
        task.say("stages on several islands")
        spanning = spanning_over(enumeration, referee, wishes.tolerances is None, task.budget)
        batch = task.job.global_batch
        usual = ranked[0].plan.pipelines[0].microbatch if ranked else max(batch // _PASSES, 1)
        wider = spanning.improve(usual, best_s)
        if spanning.nearest or spanning.finer:
            findings.append(spanning.finding(best_s))
        found = [wider, *found] if wider else found
        if wishes.lasting and best_s < inf:
            found += spanning.lasting(_LASTING * best_s)
    return found


def _out_of_time(task: _Task) -> str:
    limit_s = task.deadline.asked_s
    return f"no plan was found within {limit_s:g} s and no uniform layout fits; raise `time_limit_s=`"
