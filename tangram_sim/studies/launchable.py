"""Plans that training frameworks can launch: one layout in every stage, more layers where GPUs are faster.

Uniform layouts over groups of the cluster, as the rules of a framework allow them, are estimated together in
the order of a bound on their steps; the best are refined layer by layer and played with shared links.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, takewhile
from math import inf

from tangram_sim.clusters import Cluster
from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import Counts, Found, Progress, Scored, SearchOptions
from tangram_sim.planners.budget import LaunchBudget, budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator, StageAssignment
from tangram_sim.planners.uniform.framework_models import model_objections
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, Framework, launching
from tangram_sim.planners.uniform.layouts import uniform_plan
from tangram_sim.planners.usable import usable_islands
from tangram_sim.studies.batch_estimates import Estimator
from tangram_sim.studies.forecast import Forecast, forecast
from tangram_sim.studies.launchable_chains import Chains
from tangram_sim.studies.launchable_layouts import LaunchBatch, LaunchCandidate, LaunchLayouts
from tangram_sim.studies.mesh_chains import MeshChains
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.lowered import Lowering

_ROUNDING = 1e-4  # of the step: plans nearer to each other are as fast


@dataclass(frozen=True)
class Launchable:
    """A plan that frameworks can be told as it is, played; and which."""

    forecast: Forecast
    frameworks: tuple[str, ...]


@dataclass
class _Look:
    """Launchable layouts that have been estimated, and which of the others are worth it."""

    layouts: LaunchLayouts
    estimator: Estimator
    spend: LaunchBudget
    deadline: Deadline
    found: list[tuple[float, LaunchCandidate]] = field(default_factory=list)  # those that fit, their steps
    tried: set[LaunchCandidate] = field(default_factory=set)
    best_s: float = inf
    _over_of: dict[object, float] = field(default_factory=dict)  # by kind of batch

    def over_bounds(
        self,
        batches: Iterable[LaunchBatch],
        able_of: Callable[[LaunchBatch], list[LaunchCandidate]],
        most: int,
    ) -> dict[LaunchBatch, float]:
        """Estimate what is worth it of batches; by what factor each exceeds its bounds, at least.

        `able_of` says which layouts, at most `most` in all: of one batch first, whose best step says which of
        the next two, and so on. It ends where many in a row are no better.
        """
        over: dict[LaunchBatch, float] = {}
        waiting, together, left, vain = iter(batches), 1, most, 0
        patience = most // self.spend.vain
        while left > 0 and vain <= patience and not (self.tried and self.deadline.over()):
            wave: dict[LaunchBatch, list[LaunchCandidate]] = {}
            for batch in islice(waiting, together):
                wave[batch] = able_of(batch)[:left]
                left -= len(wave[batch])
                if left <= 0:
                    break
            if not wave:
                break
            before_s = self.best_s
            factors = self._estimate(list(wave.values()))
            better = self.best_s < before_s or before_s == inf
            vain = 0 if better else vain + sum(map(len, wave.values()))
            for batch, factor in zip(wave, factors, strict=True):
                over[batch] = factor
                self._over_of[batch.kind] = min(self._over_of.get(batch.kind, inf), factor)
            together = min(2 * together, self.spend.together)
        return over

    def _estimate(self, wave: Sequence[Sequence[LaunchCandidate]]) -> list[float]:
        """Estimate layouts of several batches; by what factor steps are longer than bounds, at least."""
        every = [one for some in wave for one in some]
        steps = self.estimator.steps([one.job for one in every], [one.layout for one in every])
        pairs = list(zip(steps, every, strict=True))
        self.tried.update(every)
        self.found += [(step_s, one) for step_s, one in pairs if step_s < inf]
        self.best_s = min((step_s for step_s, _ in self.found), default=inf)
        ends = accumulate(len(some) for some in wave)
        return [
            min((step_s / one.least_s for step_s, one in pairs[end - len(some) : end]), default=inf)
            for some, end in zip(wave, ends, strict=True)
        ]

    def over_chains(self, chains: Chains) -> None:
        """Estimate chains, the least steps first, as far as these leave hope; then others like the best."""
        left = self.spend.chains
        for waiting in chains.waves(lambda: self.best_s):
            left -= self._in_order(waiting, left)
            if left <= 0 or self.deadline.over():
                break
        best = _finalists([pair for pair in self.found if pair[1] in chains], self.spend)
        self._in_order([one for one in chains.variants(best) if one not in self.tried], left)

    def _in_order(self, waiting: Sequence[LaunchCandidate], most: int) -> int:
        """Estimate candidates of the least steps, while these are below the best one; how many were."""
        place = 0
        while place < min(len(waiting), most) and waiting[place].least_s < self.best_s:
            self._estimate([waiting[place : place + self.spend.wave]])
            place += self.spend.wave
            if self.deadline.over():
                break
        return place

    def hopeful_s(self, over: float) -> float:
        """The bound below which a layout is the fastest if it exceeds that half as much as its like did."""
        return self.best_s / (1.0 + (min(over, self.spend.unfit) - 1.0) / 2)

    def below(self, batch: LaunchBatch, least_s: float) -> list[LaunchCandidate]:
        """Layouts of a batch with lesser bounds than this that have not been estimated."""
        some = [saved for one in batch.below(least_s) for saved in self.layouts.savers(one)]
        return [one for one in some if one not in self.tried]

    def few_of(self, batch: LaunchBatch) -> list[LaunchCandidate]:
        """The first and the middle of a batch, least and most sharded."""
        some = [list(self.layouts.savers(one)) for one in (batch[0], batch[len(batch) // 2])]
        return list(dict.fromkeys(saved for few in some for saved in (few[:1] + few[-1:])))

    def not_worse(self, batches: Iterable[LaunchBatch]) -> Iterator[LaunchBatch]:
        """Batches, the least bounds first, as far as these do not speak against them."""
        return takewhile(lambda batch: batch.least_s[0] < self.best_s, batches)

    def hopeful(self, batches: Iterable[LaunchBatch]) -> Iterator[LaunchBatch]:
        """Of these the ones whose like leave hope."""
        for batch in self.not_worse(batches):
            if batch.least_s[0] < self.hopeful_s(self._over_of.get(batch.kind, 1.0)):
                yield batch


def launchable_plans(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    wishes: SearchOptions,
    *,
    progress: Progress | None,
    deadline: Deadline,
    known: Sequence[Plan],
) -> Found:
    """Plan as `tangram` does, for the frameworks that `wishes` name: one of them launches each plan found.

    Raises InfeasibleError where no framework has the model, or none of its plans fits.
    """
    titles = " or ".join(FRAMEWORKS[name].title for name in wishes.frameworks)
    objections = {name: model_objections(name, FRAMEWORKS[name].version, model) for name in wishes.frameworks}
    able = [name for name, reasons in objections.items() if not reasons]
    if not able:
        reasons = dict.fromkeys(reason for some in objections.values() for reason in some)
        raise InfeasibleError(
            f"{titles} cannot train {model.name}: {'; '.join(reasons)}; plan without `frameworks=`"
        )
    if progress:
        progress(0, 0, f"plans that {titles} can launch")
    most = budget(wishes.effort).launchable.asked
    found = _found(model, cluster, job, hwdb, wishes, able, most, deadline, with_model=True)
    forecasts = [one.forecast for one in found]
    forecasts += [forecast(plan, hwdb) for plan in known if plan.job == job and _names(plan, able)]
    played = [
        Scored(one.plan, one.lowered.steps[0], one.step_s)
        for one in (forecasts if not known else sorted(forecasts, key=lambda one: one.step_s))
        if one.lowered.fits()
    ]
    if not played:
        raise InfeasibleError(
            f"no plan that {titles} can launch fits; without `frameworks=` there may be one, which "
            "`to=rankmap` exports"
        )
    islands, _ = usable_islands(cluster, job, hwdb, wishes)
    bound_s = WorkBound(model, job, islands, hwdb, cluster).step_s()
    return Found(played[: wishes.most], bound_s, Counts(played=len(played)))


def nearest(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    options: SearchOptions,
    frameworks: Sequence[str] = tuple(FRAMEWORKS),
    most: int | None = None,
    deadline: Deadline | None = None,
    *,
    with_model: bool = True,
) -> Launchable | None:
    """The fastest plan found that one of some frameworks can launch; None where none fits.

    `hwdb` says how far memory may be filled. `most` layouts are estimated (None: what the effort allows), or
    what the `deadline` leaves time for; `with_model` False: whatever models the frameworks have. What the
    options fix, order and exclude holds; pieces of a node group have no name in a framework and are left out.
    Among plans as fast to rounding the one on fewer kinds of GPU, then on fewer GPUs.
    """
    most = budget(options.effort).launchable.estimated if most is None else most
    asked = model, cluster, job, hwdb, options, frameworks, most, deadline or Deadline()
    return next(iter(_found(*asked, with_model=with_model)), None)


def _found(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    options: SearchOptions,
    frameworks: Sequence[str],
    most: int,
    deadline: Deadline,
    *,
    with_model: bool,
) -> list[Launchable]:
    """Plans that one of some frameworks can launch, the best first; see `nearest`."""
    known, spend = [FRAMEWORKS[name] for name in frameworks], budget(options.effort).launchable
    layouts = LaunchLayouts(model, cluster, job, hwdb, options, known, with_model)
    look = _Look(layouts, Estimator(model, cluster, hwdb), spend, deadline)
    # Bounds know no network between replicas and stages. So a few layouts of a batch say first by how much
    # those like them exceed their bounds; layouts of one batch stay in the order of their bounds.
    batches = layouts.batches()
    look.over_chains(Chains(layouts))
    ahead = look.over_bounds(look.hopeful(batches), look.few_of, most)
    look.over_bounds(
        sorted(ahead, key=lambda batch: ahead[batch] * batch.least_s[0]),
        lambda batch: look.below(batch, look.hopeful_s(ahead[batch])),
        most - len(look.tried),
    )
    # What hope passed over, by bounds that promise nothing: all of it on small clusters.
    look.over_bounds(
        look.not_worse(batches), lambda batch: look.below(batch, look.best_s), most // spend.passed_over
    )
    best = _finalists(look.found, spend)
    plans = [_refined(model, cluster, one, hwdb, known, spend.rounds, deadline) for one in best]
    told = [(plan, names) for plan in plans if (names := _names(plan, frameworks)) or not with_model]
    told += _of_meshes(layouts, look.best_s, frameworks)
    whole = hwdb.filled_to(1.0)
    played = [Launchable(forecast(plan, whole), names) for plan, names in dict(told).items()]
    best_s = min((one.forecast.step_s for one in played), default=inf)
    tied = [one for one in played if one.forecast.step_s <= best_s * (1.0 + _ROUNDING)]
    first = sorted(tied, key=lambda one: _taken(one.forecast.plan))[:1]
    return first + sorted((one for one in played if one not in first), key=lambda one: one.forecast.step_s)


def _of_meshes(
    layouts: LaunchLayouts, best_s: float, frameworks: Collection[str]
) -> list[tuple[Plan, tuple[str, ...]]]:
    """A faster plan whose node groups differ in their degrees, with the frameworks that launch it."""
    able = [one for one in layouts.frameworks if one.unequal_stages]
    if not able or layouts.options.order or layouts.job.schedule not in able[0].schedules:
        return []
    plan = MeshChains(layouts, able[0]).fastest(best_s)
    names = _names(plan, frameworks) if plan else ()
    return [(plan, names)] if plan and names else []


def _taken(plan: Plan) -> tuple[int, int]:
    """(kinds of GPU, GPUs) that a plan uses."""
    kinds = [
        group.node.gpu.name for group in plan.cluster.groups for _ in range(group.count * group.node.gpus)
    ]
    return len({kinds[rank] for rank in plan.ranks}), plan.gpus_used


def _finalists(found: Iterable[tuple[float, LaunchCandidate]], spend: LaunchBudget) -> list[LaunchCandidate]:
    """Of candidates with their steps the fastest that differ on every set of node groups.

    Others of a batch with the same degrees would refine to its best; of the same degrees on the same groups
    there are a few only.
    """
    ordered = sorted(found, key=lambda pair: pair[0])
    seen, alike, of_groups = set[object](), Counter[object](), Counter[object]()
    best: list[LaunchCandidate] = []
    for step_s, one in ordered:
        if step_s > spend.near * ordered[0][0]:
            break
        layout = one.layout
        degrees, groups = (layout.tp, layout.cp, layout.dp, layout.ep), frozenset(layout.stage_groups)
        wanted = of_groups[groups] < spend.refined
        if wanted and (one.batch, degrees) not in seen and alike[degrees, groups] < spend.alike:
            seen.add((one.batch, degrees))
            alike[degrees, groups] += 1
            of_groups[groups] += 1
            best.append(one)
    return best


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
        start = 0 if stage.embedding else (stage.chunks[0][0] if stage.chunks else model.layers) + 1
        stop = model.layers + 2 if stage.head else (stage.chunks[-1][1] if stage.chunks else 0) + 1
        seats.append(StageAssignment(part.island, part.ranks, part.layouts[0].layout, start, stop))
    try:
        moved = evaluator.refine(tuple(seats), pipeline.microbatch, rounds)
        step_s, refined, _ = evaluator.play(moved, pipeline.microbatch)
    except TangramError:  # a layout that the evaluator cannot lower stays as it was estimated
        return made
    return replace(made, pipelines=(refined,)) if step_s < float("inf") else made
