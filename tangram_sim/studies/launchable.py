"""Plans that training frameworks can launch: one layout in every stage, more layers where GPUs are faster.

Uniform layouts over groups of the cluster, as the rules of a framework allow them, are estimated together in
the order of a bound on their steps; the best are refined layer by layer and played with shared links.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tangram_sim.clusters import Cluster
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import Counts, SearchOptions
from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator, StageAssignment
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, Framework, launching
from tangram_sim.planners.uniform.layouts import uniform_plan
from tangram_sim.studies.batch_estimates import Estimator
from tangram_sim.studies.forecast import Forecast, forecast
from tangram_sim.studies.launchable_layouts import LaunchCandidate, LaunchLayouts
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.lowered import Lowering


@dataclass(frozen=True)
class Launchable:
    """A plan that frameworks can be told as it is, played; and which."""

    forecast: Forecast
    frameworks: tuple[str, ...]


def nearest(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    options: SearchOptions,
    frameworks: Sequence[str] = tuple(FRAMEWORKS),
    most: int | None = None,
    deadline: Deadline | None = None,
) -> Launchable | None:
    """The fastest plan found that one of some frameworks can launch; None where none fits.

    `hwdb` says how far memory may be filled. `most` layouts are estimated (None: what the effort allows), or
    what the `deadline` leaves time for. What the options fix, order and exclude holds; pieces of a node group
    have no name in a framework and are left out.
    """
    known, deadline = [FRAMEWORKS[name] for name in frameworks], deadline or Deadline()
    spend = budget(options.effort).launchable
    most = spend.estimated if most is None else most
    layouts = LaunchLayouts(model, cluster, job, hwdb, options, known)
    found: list[tuple[float, LaunchCandidate]] = []
    estimator, tried = Estimator(model, cluster, hwdb), set[LaunchCandidate]()

    def over_bounds(able: list[LaunchCandidate]) -> float:
        """Estimate layouts; by what factor a step is longer than its bound, at least."""
        if not able:
            return float("inf")
        steps = estimator.steps([one.job for one in able], [one.layout for one in able])
        fit = [(step_s, one) for one, step_s in zip(able, steps, strict=True) if step_s < float("inf")]
        found.extend(fit)
        tried.update(able)
        return min((step_s / one.least_s for step_s, one in fit), default=float("inf"))

    def hopeful_s(over: float) -> float:
        """The bound below which a layout is the fastest if it exceeds that half as much as its like did."""
        return best_s / (1.0 + (min(over, spend.unfit) - 1.0) / 2)

    # Bounds know no network between replicas and stages. So a few layouts of a batch say first by how much
    # those like them exceed their bounds; layouts of one batch stay in the order of their bounds.
    batches, ahead = layouts.batches(), dict[int, float]()
    over_of: dict[object, float] = {}
    best_s, asked, left = float("inf"), 0, most // spend.passed_over
    for number, batch in enumerate(batches):
        least_s = batch.least_s[0]
        if asked >= most or least_s >= best_s or (asked and deadline.over()):
            break
        if least_s >= hopeful_s(over_of.get(batch.kind, 1.0)):
            continue
        some = [list(layouts.savers(one)) for one in (batch[0], batch[len(batch) // 2])]
        able = list(dict.fromkeys(saved for few in some for saved in (few[:1] + few[-1:])))
        ahead[number] = over_bounds(able)
        over_of[batch.kind] = min(over_of.get(batch.kind, float("inf")), ahead[number])
        asked, best_s = asked + len(able), min((step_s for step_s, _ in found), default=best_s)
    for number in sorted(ahead, key=lambda number: ahead[number] * batches[number].least_s[0]):
        if asked >= most or deadline.over():
            break
        likely = batches[number].below(hopeful_s(ahead[number]))
        able = [saved for one in likely for saved in layouts.savers(one)]
        over_bounds(able)
        asked, best_s = asked + len(able), min((step_s for step_s, _ in found), default=best_s)
    # What hope passed over, by bounds that promise nothing: all of it on small clusters.
    for batch in batches:
        if left <= 0 or batch.least_s[0] >= best_s or deadline.over():
            break
        likely = [saved for one in batch.below(best_s) for saved in layouts.savers(one)]
        able = [one for one in likely if one not in tried][:left]
        over_bounds(able)
        left -= len(able)
        best_s = min((step_s for step_s, _ in found), default=best_s)
    found.sort(key=lambda pair: pair[0])
    different: dict[object, LaunchCandidate] = {}  # others of a batch would refine to its best
    for _, one in found:
        different.setdefault(one.batch, one)
    best = list(different.values())[: spend.refined]
    plans = [_refined(model, cluster, one, hwdb, known, spend.rounds, deadline) for one in best]
    told = [(plan, names) for plan in plans if (names := _names(plan, frameworks))]
    whole = hwdb.filled_to(1.0)
    played = [Launchable(forecast(plan, whole), names) for plan, names in dict(told).items()]
    return min(played, key=lambda one: one.forecast.step_s, default=None)


def _names(plan: Plan, frameworks: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in launching(plan) if name in frameworks)


def _refined(
    model: Model,
    cluster: Cluster,
    one: LaunchCandidate,
    hwdb: Hwdb,
    frameworks: Sequence[Framework],
    rounds: int,
    deadline: Deadline,
) -> Plan:
    """The plan of a candidate, single layers moved over its boundaries where that shortens the step."""
    made = uniform_plan(model, cluster, one.job, one.layout)
    even = not any(framework.uneven_stages for framework in frameworks)
    if one.layout.vpp > 1 or one.layout.pp == 1 or even or deadline.over():
        return made
    lowering = Lowering.of(made, hwdb)
    evaluator = PlanEvaluator(model, cluster, one.job, lowering, Counts())
    pipeline = made.pipelines[0]
    seats = []
    for stage in pipeline.stages:
        part = stage.parts[0]
        start = 0 if stage.embedding else stage.chunks[0][0] + 1
        stop = model.layers + 2 if stage.head else stage.chunks[-1][1] + 1
        seats.append(StageAssignment(part.island, part.ranks, part.layouts[0].layout, start, stop))
    try:
        moved = evaluator.refine(tuple(seats), pipeline.microbatch, rounds)
        step_s, refined, _ = evaluator.play(moved, pipeline.microbatch)
    except TangramError:  # a layout that the evaluator cannot lower stays as it was estimated
        return made
    return replace(made, pipelines=(refined,)) if step_s < float("inf") else made
