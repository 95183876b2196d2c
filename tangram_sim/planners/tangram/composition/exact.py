"""Pipelines whose bound on the played step lies below a limit, and what that proves about all others."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tangram_sim.models import Model
from tangram_sim.planners.budget import FleetBudget, SearchBudget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.composed import Composed
from tangram_sim.planners.tangram.composition.labels import Labels, LinkBounds, Look, PipelineTable
from tangram_sim.planners.tangram.enumeration.table import PartialPlanTable
from tangram_sim.training.job import Job


@dataclass(frozen=True, slots=True)
class Proof:
    """Pipelines worth playing, best first, and the bound that holds for all pipelines of the table."""

    pipelines: list[Composed]
    bound_s: float  # at most the limit; 0 where there was no time for one
    exact: bool = True  # objectives are played steps, links not shared; else estimates


@dataclass(frozen=True, slots=True)
class _Beam:
    """What a beam found; `whole`: no state had more labels than were kept, so wider ones find the same."""

    proof: Proof
    whole: bool


@dataclass(slots=True)
class _Known:
    """What the looks at one table have found so far."""

    pipelines: dict[object, Composed] = field(default_factory=dict)  # by their places
    bound_s: float = 0.0

    def add(self, proof: Proof) -> None:
        for one in proof.pipelines:
            self.pipelines.setdefault(one.places, one)
        self.bound_s = max(self.bound_s, proof.bound_s)

    def best_s(self) -> float:
        return min((one.objective_s for one in self.pipelines.values()), default=float("inf"))

    def proof(self, exact: bool) -> Proof:
        ordered = sorted(self.pipelines.values(), key=lambda one: one.objective_s)
        return Proof(ordered, self.bound_s, exact)


def find(
    table: PartialPlanTable,
    counts: Sequence[int],
    ways: LinkBounds,
    model: Model,
    job: Job,
    limit_s: float,
    best_s: float,
    slack: float = 0.0,
    budget: SearchBudget | None = None,
    deadline: Deadline | None = None,
    *,
    proving: bool = True,
) -> Proof:
    """Pipelines that may be played in less than `limit_s`, and what all of the table take at least.

    A look at everything comes first. Where that is more than its budget, beams look for good pipelines, and
    the look at everything is repeated below the best of them (and `slack` more); where that is still too
    much, labels that differ by little stand for each other. If a gap is left below the best step known
    (`best_s` or a better one found), another look closes it where few labels are left, none dropped and all
    played; else it drops what another beats as played, which finds better pipelines and proves nothing.
    Without `proving` what beams find is enough, and there is no bound. Where the schedule puts weight
    gradients off the recursion is an estimate, which proves nothing either: the bound is one that holds for
    any order of passes.
    """
    problem, budget, deadline = (
        PipelineTable(table, counts, ways, model, job),
        budget or SearchBudget(),
        (deadline or Deadline()),
    )
    exact = problem.lost > 0 and not ways.rough
    if not len(table.floats):
        return Proof([], limit_s, exact)
    known = _Known()
    if proving and not problem.lost:
        known.bound_s = problem.any_order_s(limit_s, deadline)
    look = Look(limit_s, budget.first_work, budget.labels)
    found = problem.below(look, deadline)
    if found is None:
        for number, width in enumerate(budget.widths):
            # A beam takes as much more as it is wider; the second less, below what the first one found.
            ratio = width / look.width if number > 1 else 0.0
            if problem.spent_labels * ratio > budget.labels or problem.spent * ratio > budget.beam_work:
                break
            look = replace(look, width=width)
            beam = _beam(problem, look, budget, deadline)
            known.add(beam.proof)
            limit = min(limit_s, min(best_s, known.best_s()) * (1 + slack))
            look = replace(look, limit_s=limit)
            if beam.whole:
                break
        # A look at everything does what a beam did, and more; for what it proves.
        if proving and problem.lost:
            found = _within(problem, replace(look, width=0), problem.spent, budget, deadline)
    if found is None:
        known.bound_s = max(known.bound_s, problem.least_s if problem.lost and proving else 0.0)
        return known.proof(exact)
    known.add(_judged(problem, found, look.limit_s, budget, deadline))
    best_s = min(look.limit_s, best_s, known.best_s())
    labels, bound_s = len(found.facts), known.bound_s
    if (
        not problem.lost
        or not proving
        or bound_s >= best_s * (1 - budget.proven)
        or labels > budget.some_labels
    ):
        return known.proof(exact)
    look = replace(look, limit_s=best_s, passes=budget.played_passes, tolerance_s=0.0, width=0)
    closing = None
    if labels <= budget.few_labels:
        closing = problem.below(replace(look, dropping=False, labels=budget.some_labels), deadline)
    if closing is not None:
        known.add(_judged(problem, closing, best_s, budget, deadline))
    elif (found := problem.below(replace(look, proving=False), deadline)) is not None:
        known.add(replace(_judged(problem, found, best_s, budget, deadline), bound_s=0.0))
    return known.proof(exact)


def fastest(
    table: PartialPlanTable,
    counts: Sequence[int],
    ways: LinkBounds,
    model: Model,
    job: Job,
    limit_s: float,
    budget: FleetBudget,
    deadline: Deadline,
    *,
    one_by_one: bool,
) -> list[Composed]:
    """The fastest pipelines that coarse looks find below a limit, best first, as played.

    Of patterns hundreds of tables are composed: labels that differ by little stand for each other, and what
    a first look finds limits a finer one. Where the first look at everything is much work, beams look for
    good pipelines before it, and it is repeated below the best of them; where that is still too much, what
    beams found is the answer. `one_by_one`: kinds are used up one after another.
    """
    problem = PipelineTable(table, counts, ways, model, job, one_by_one)
    known = _Known()
    if not len(table.floats):
        return []
    beams: Sequence[int] = budget.beams
    for tolerance in budget.tolerances:
        look = Look(limit_s, budget.first_work, budget.labels, proving=False)
        labels = problem.below(replace(look, tolerance_s=tolerance * limit_s), deadline)
        if labels is None:
            for width in beams:
                beam = _beam(problem, replace(look, limit_s=limit_s, width=width), budget, deadline)
                known.add(beam.proof)
                limit_s = min(limit_s, known.best_s() * (1 + budget.slack))
            beams = ()
            look = replace(look, limit_s=limit_s, tolerance_s=tolerance * limit_s, work=budget.work)
            labels = problem.below(look, deadline)
        if labels is None:
            break
        better = _judged(problem, labels, limit_s, budget, deadline)
        if all(one.objective_s >= limit_s for one in better.pipelines):
            break
        known.add(better)
        limit_s = min(limit_s, known.best_s() * (1 + budget.slack))
    return [one for one in known.proof(False).pipelines if one.objective_s < limit_s]


def _beam(
    problem: PipelineTable, look: Look, budget: SearchBudget | FleetBudget, deadline: Deadline
) -> _Beam:
    """Good pipelines, most of them unproven: suffixes are played, and few kept of each state."""
    wide = replace(look, work=1 << 60, labels=1 << 60, proving=False, passes=budget.played_passes)
    found = problem.below(wide, deadline)
    if found is None:
        return _Beam(Proof([], 0.0), whole=False)
    judged = _judged(problem, found, look.limit_s, budget, deadline)
    return _Beam(replace(judged, bound_s=0.0), whole=found.dropped_s == float("inf"))


def _within(
    problem: PipelineTable, look: Look, least_work: int, budget: SearchBudget, deadline: Deadline
) -> Labels | None:
    """A look at everything, with the least tolerance at which work and labels suffice; None: with none.

    Budgets below the `least_work` do not suffice, and are not tried.
    """
    for tolerance, work in zip(budget.tolerances, budget.proof_work, strict=True):
        if work < least_work:
            continue
        closer = replace(look, tolerance_s=tolerance * look.limit_s, work=work)
        found = problem.below(closer, deadline)
        if found is not None or deadline.over():
            return found
    return None


def _judged(
    problem: PipelineTable,
    found: Labels,
    limit_s: float,
    budget: SearchBudget | FleetBudget,
    deadline: Deadline,
) -> Proof:
    """Play complete pipelines, those with the least bound, and say what that proves."""
    from tangram_sim.planners.tangram.composition import play_kernels

    order = np.argsort(found.bounds, kind="stable")
    depth = int(found.facts[found.complete, play_kernels.DEPTH].max(initial=1))
    most = min(
        budget.composed, max(budget.played_passes // (depth * problem.table.microbatches), budget.kept)
    )
    least_s = min(limit_s, found.dropped_s)
    if len(order) > most:
        least_s = min(least_s, float(found.bounds[order[most]]))
    complete, bounds = found.complete[order[:most]], found.bounds[order[:most]]
    values = bounds
    if problem.lost:
        values = problem.played(found.facts, complete, deadline)
        # Cuts between inner stages may move, and a shadowed label stands for others.
        shadowed, nested = (
            found.facts[complete, column] for column in (play_kernels.SHADOW, play_kernels.NESTED)
        )
        proven = (shadowed == 0) & (nested == 0) & np.isfinite(values)
        bounds = np.where(proven, np.maximum(bounds, values), bounds)
    if problem.lost and problem.ways.rough:
        values = problem.estimated(found.facts, complete, deadline)
    least_s = min(least_s, float(bounds.min(initial=np.inf)))
    best = np.argsort(values, kind="stable")[: budget.kept]
    return Proof(
        [
            problem.composed(float(values[one]), found.facts, int(complete[one]))
            for one in best.tolist()
            if values[one] < np.inf
        ],
        least_s if problem.lost else 0.0,
    )
