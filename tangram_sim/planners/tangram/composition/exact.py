"""Search for pipelines below a limit on the played step, and the lower bound it proves for all others."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tangram_sim.models import Model
from tangram_sim.planners.budget import CompositionBudget, SearchBudget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.composed import Composed
from tangram_sim.planners.tangram.composition.labels import Labels, LinkBounds, Look, PipelineTable
from tangram_sim.planners.tangram.enumeration.table import PartialPlanTable
from tangram_sim.planners.tangram.fleet_budget import FleetBudget
from tangram_sim.training.job import Job

_FAR = 2.0  # limits over the bound, from which on a beam is tried half way (on a logarithmic scale) first
# A second look plays suffixes. After a first one with few labels it drops none and so proves the best
# pipeline; after one with more than some it is left out, since it would take too long.
_FEW_LABELS, _SOME_LABELS = 1 << 10, 1 << 14
_PROVEN = 1e-3  # a gap that is not worth a second look


@dataclass(frozen=True, slots=True)
class Proof:
    """Pipelines to simulate, best first, and a lower bound that holds for all pipelines of the table."""

    pipelines: list[Composed]
    bound_s: float  # at most the limit; 0 where there was no time for one
    exact: bool = True  # objectives are played steps, links not shared; else estimates


@dataclass(frozen=True, slots=True)
class _Beam:
    """Result of a beam search; `whole`: no label was dropped, so wider beams find the same."""

    proof: Proof
    whole: bool


@dataclass(slots=True)
class _Known:
    """Pipelines and the lower bound found so far for one table."""

    pipelines: dict[object, Composed] = field(default_factory=dict)  # by their places
    bound_s: float = 0.0

    def add(self, proof: Proof) -> None:
        for pipeline in proof.pipelines:
            self.pipelines.setdefault(pipeline.places, pipeline)
        self.bound_s = max(self.bound_s, proof.bound_s)

    def best_s(self) -> float:
        return min((pipeline.objective_s for pipeline in self.pipelines.values()), default=float("inf"))

    def proof(self, exact: bool) -> Proof:
        ordered = sorted(self.pipelines.values(), key=lambda pipeline: pipeline.objective_s)
        return Proof(ordered, self.bound_s, exact)


class Composition:
    """The runs of label-setting on one table of partial plans, in the order of increasing work.

    First a complete run (`begin`). Where that exceeds its budget, beam searches look for good pipelines,
    narrow beams first; a beam that is wide or takes much work can wait until other tables have lowered the
    limit (`go_on`). Then the complete run is repeated below the best step known, plus `slack` (`end`); where
    that is still too much work, labels that differ by a small tolerance are merged. If a gap to the best step
    remains, one more run closes it: with few labels it drops none and plays all pipelines, which proves the
    optimum; else it drops labels that are dominated as played, which finds better pipelines and proves
    nothing. Without `proving` the beams' pipelines are the answer, and there is no bound. For schedules that
    delay weight gradients the recursion is an estimate and proves nothing: the bound is one that holds for
    any order of passes.
    """

    def __init__(
        self, problem: PipelineTable, slack: float, budget: SearchBudget, deadline: Deadline, *, proving: bool
    ) -> None:
        self.problem, self.slack, self.budget, self.deadline = problem, slack, budget, deadline
        self.proving = proving
        self.exact = problem.lost > 0 and not problem.ways.rough
        self.known = _Known()
        self.look = Look(0.0, budget.first_work, budget.labels)
        self.widths = list(budget.widths)  # of beams, still to come
        self.late = False  # a beam was too much work
        self.done = False

    def proof(self) -> Proof:
        """Pipelines and bound found so far."""
        return self.known.proof(self.exact)

    def begin(self, limit_s: float, best_s: float) -> None:
        """Try a complete run with little work; `best_s` is the best step known."""
        problem = self.problem
        self.look = replace(self.look, limit_s=limit_s)
        if not len(problem.table.floats):
            self.known.bound_s, self.done = limit_s, True
            return
        if self.proving and not problem.lost:
            self.known.bound_s = problem.any_order_s(limit_s, self.deadline)
        found = problem.below(self.look, self.deadline)
        if found is not None:
            self._close(found, best_s)

    def go_on(
        self, limit_s: float, best_s: float, widest: int, *, work: int = 1 << 60, wide_work: int | None = None
    ) -> None:
        """Run the beams up to width `widest`, until one of them needs too much work.

        The limit is `work`; beams beyond the first two are also skipped if, judged by the previous beam, they
        would take more than `wide_work` (by default the budget's `beam_work`).
        """
        problem, budget = self.problem, self.budget
        most = budget.beam_work if wide_work is None else wide_work
        self._lower(limit_s, best_s)
        while self.widths and self.widths[0] <= widest and not self.done:
            width = self.widths[0]
            # A beam takes as much more as it is wider; the second less, below what the first one found.
            ratio = width / self.look.width if width not in budget.widths[:2] else 0.0
            if problem.spent_labels * ratio > budget.labels or problem.spent * ratio > most:
                return
            look = replace(self.look, width=width, work=work)
            beam = self._nearer(look) or _beam(problem, look, budget, self.deadline)
            if beam is None:
                self.late = True
                return
            self.look = replace(self.look, width=width)
            del self.widths[0]
            self.known.add(beam.proof)
            self._lower(limit_s, best_s)
            if beam.whole or (self.late and not beam.proof.pipelines):
                self.widths = []

    def _nearer(self, look: Look) -> _Beam | None:
        """After a beam that took too much work: a beam below a lower limit; None where that finds nothing.
        The limit is the geometric mean of the lower bound and the run's limit; the work is half or less."""
        near_s = (self.problem.least_s * look.limit_s) ** 0.5
        if not self.late or self.known.pipelines or near_s > look.limit_s / _FAR**0.5:
            return None
        beam = _beam(self.problem, replace(look, limit_s=near_s), self.budget, self.deadline)
        return beam if beam is not None and beam.proof.pipelines else None

    def _lower(self, limit_s: float, best_s: float) -> None:
        limit_s = min(self.look.limit_s, limit_s, min(best_s, self.known.best_s()) * (1 + self.slack))
        self.look = replace(self.look, limit_s=limit_s)

    def end(self, limit_s: float, best_s: float) -> None:
        """Prove as good a lower bound as the budget allows, below the best step known."""
        if self.done:
            return
        self._lower(limit_s, best_s)
        problem, found = self.problem, None
        # A look at everything does what a beam did, and more; for what it proves.
        if self.proving and problem.lost:
            look = replace(self.look, width=0)
            found = _within(problem, look, problem.spent, self.budget, self.deadline)
        if found is not None:
            self._close(found, best_s)
            return
        self.done = True
        least_s = problem.least_s if problem.lost and self.proving else 0.0
        self.known.bound_s = max(self.known.bound_s, least_s)

    def _close(self, found: Labels, best_s: float) -> None:
        """Play the pipelines of a complete run; run again where a gap to the best step remains."""
        problem, budget, deadline = self.problem, self.budget, self.deadline
        look, known, self.done = self.look, self.known, True
        known.add(_judged(problem, found, look.limit_s, budget, deadline))
        best_s = min(look.limit_s, best_s, known.best_s())
        labels = len(found.facts)
        proven = known.bound_s >= best_s * (1 - _PROVEN)
        if not problem.lost or not self.proving or proven or labels > _SOME_LABELS:
            return
        look = replace(look, limit_s=best_s, passes=budget.played_passes, tolerance_s=0.0, width=0)
        closing = None
        if labels <= _FEW_LABELS:
            closing = problem.below(replace(look, dropping=False, labels=_SOME_LABELS), deadline)
        if closing is not None:
            known.add(_judged(problem, closing, best_s, budget, deadline))
        elif (better := problem.below(replace(look, proving=False), deadline)) is not None:
            known.add(replace(_judged(problem, better, best_s, budget, deadline), bound_s=0.0))


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
    """Pipelines that may take less than `limit_s`, and a lower bound on all pipelines of the table.

    Runs all steps of `Composition` at once; `best_s` is the best step known.
    """
    problem = PipelineTable(table, counts, ways, model, job)
    looks = Composition(problem, slack, budget or SearchBudget(), deadline or Deadline(), proving=proving)
    looks.begin(limit_s, best_s)
    looks.go_on(limit_s, best_s, 1 << 60)
    looks.end(limit_s, best_s)
    return looks.proof()


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
    """The fastest pipelines below a limit that runs with tolerances find, best first by played step.

    For patterns, hundreds of tables are composed: labels that differ by a small tolerance are merged, and the
    result of a coarse run limits a finer one. Where the first complete run takes too much work, beams look
    for good pipelines, and the run is repeated below the best of them; where that is still too much, the
    beams' pipelines are the answer. `one_by_one`: kinds of nodes are used up one after another.
    """
    problem = PipelineTable(table, counts, ways, model, job, one_by_one)
    known = _Known()
    if not len(table.floats):
        return []
    beams, composition = list(budget.beams), budget.composition
    for tolerance in budget.tolerances:
        look = Look(limit_s, composition.first_work, composition.labels, proving=False)
        labels = problem.below(replace(look, tolerance_s=tolerance * limit_s), deadline)
        if labels is None:
            for width in beams:
                wide = replace(look, limit_s=limit_s, width=width, work=1 << 60)
                beam = _beam(problem, wide, composition, deadline)
                if beam is not None:
                    known.add(beam.proof)
                limit_s = min(limit_s, known.best_s() * (1 + budget.slack))
            beams = []
            look = replace(look, limit_s=limit_s, tolerance_s=tolerance * limit_s, work=budget.work)
            labels = problem.below(look, deadline)
        if labels is None:
            break
        better = _judged(problem, labels, limit_s, composition, deadline)
        if all(pipeline.objective_s >= limit_s for pipeline in better.pipelines):
            break
        known.add(better)
        limit_s = min(limit_s, known.best_s() * (1 + budget.slack))
    return [pipeline for pipeline in known.proof(False).pipelines if pipeline.objective_s < limit_s]


def _beam(problem: PipelineTable, look: Look, budget: CompositionBudget, deadline: Deadline) -> _Beam | None:
    """Good pipelines from a beam search, without a bound; None where work or time does not suffice. Suffixes
    are simulated, and few are kept for each state."""
    wide = replace(look, labels=1 << 60, proving=False, passes=budget.played_passes)
    found = problem.below(wide, deadline)
    if found is None:
        return None
    judged = _judged(problem, found, look.limit_s, budget, deadline)
    return _Beam(replace(judged, bound_s=0.0), whole=found.dropped_s == float("inf"))


def _within(
    problem: PipelineTable, look: Look, least_work: int, budget: SearchBudget, deadline: Deadline
) -> Labels | None:
    """A complete run with the smallest tolerance for which work and labels suffice; None where none does.

    Work budgets below `least_work` are skipped as too small.
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
    budget: CompositionBudget,
    deadline: Deadline,
) -> Proof:
    """Play the complete pipelines with the smallest bounds, and compute the bound that this proves."""
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
            problem.composed(float(values[item]), found.facts, int(complete[item]))
            for item in best.tolist()
            if values[item] < np.inf
        ],
        least_s if problem.lost else 0.0,
    )
