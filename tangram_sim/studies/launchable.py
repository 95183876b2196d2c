"""Plans that training frameworks can launch: one layout in every stage, more layers where GPUs are faster.

Chains over groups of the cluster that a framework's rules allow are estimated in the order of the steps that
the exact program gives; the best are refined layer by layer and simulated with shared links.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from tangram_sim.clusters import Cluster
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import Counts, Found, Progress, Scored, SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.finalists import StageAssignment
from tangram_sim.planners.uniform.framework_models import model_objections
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, launching
from tangram_sim.planners.uniform.layouts import uniform_plan
from tangram_sim.planners.usable import usable_islands
from tangram_sim.sim import contention
from tangram_sim.studies.batch_estimates import Estimator
from tangram_sim.studies.forecast import Forecast, forecast
from tangram_sim.studies.launchable_chains import Chains
from tangram_sim.studies.launchable_layouts import LAUNCHES, LaunchBudget, LaunchCandidate, LaunchLayouts
from tangram_sim.studies.mesh_chains import MeshChains, refined
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import LoweredPlan, lower_plan

_ROUNDING = 1e-4  # of the step: plans nearer to each other are as fast


@dataclass(frozen=True)
class Launchable:
    """A simulated plan, and the frameworks that can launch it unchanged."""

    forecast: Forecast
    frameworks: tuple[str, ...]


class _Played(NamedTuple):
    """A plan, lowered; seconds of its step with shared links; frameworks that launch it."""

    plan: Plan
    lowered: LoweredPlan
    step_s: float
    names: tuple[str, ...]


def _played(plan: Plan, names: tuple[str, ...], hwdb: Hwdb) -> _Played:
    lowered = lower_plan(plan, Lowering.of(plan, hwdb))
    return _Played(plan, lowered, contention.play(lowered.graph()).makespan_s, names)


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
    """Plan as `tangram` does, for the frameworks in `wishes`: each plan found can be launched by one of them.

    Raises InfeasibleError where no framework supports the model, or no launchable plan fits.
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
    found = _found(model, cluster, job, hwdb, wishes, able, deadline=deadline, with_model=True)
    found += [_played(plan, (), hwdb) for plan in known if plan.job == job and _names(plan, able)]
    played = [
        Scored(item.plan, item.lowered.steps[0], item.step_s)
        for item in (found if not known else sorted(found, key=lambda item: item.step_s))
        if item.lowered.fits()
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
    deadline: Deadline | None = None,
    *,
    with_model: bool = True,
    below_s: float = inf,
) -> Launchable | None:
    """The fastest plan found that one of `frameworks` can launch; None if none is below `below_s`.

    `hwdb` limits how far memory is filled; `with_model` False: ignore whether the frameworks support the
    model. Fixed, ordered and excluded options hold; pieces of a node group have no name in a framework and
    are left out. Of plans equally fast to rounding, the one on fewer GPU kinds, then on fewer GPUs, is taken.
    """
    asked = model, cluster, job, hwdb, options, frameworks
    found = _found(*asked, deadline=deadline or Deadline(), with_model=with_model, below_s=below_s)
    return Launchable(forecast(found[0].plan, hwdb.filled_to(1.0)), found[0].names) if found else None


def _found(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    options: SearchOptions,
    frameworks: Sequence[str],
    *,
    deadline: Deadline,
    with_model: bool,
    below_s: float = inf,
) -> list[_Played]:
    """Plans that one of some frameworks can launch, the best first; see `nearest`."""
    known, spend = [FRAMEWORKS[name] for name in frameworks], LAUNCHES[options.effort]
    layouts = LaunchLayouts(model, cluster, job, hwdb, options, known, with_model=with_model)
    steps = _estimated(layouts, spend, deadline, below_s)
    told: dict[Plan, tuple[str, ...]] = {}
    for finalist in _finalists(steps, spend):
        moved = _refined(layouts, finalist, deadline)
        # Layers that were moved may be what a framework of stages alike does not take.
        for plan in (moved, uniform_plan(model, cluster, finalist.job, finalist.layout)):
            if (names := _names(plan, frameworks)) or not with_model:
                told[plan] = names
                break
    whole = hwdb.filled_to(1.0)
    played = [_played(plan, names, whole) for plan, names in told.items()]
    best_s = min((item.step_s for item in played), default=below_s)
    for framework in known:  # degrees that differ from node group to node group
        unequal = MeshChains(layouts, framework).fastest(best_s) if framework.unequal_stages else None
        if unequal and (names := _names(unequal, frameworks)):
            played.append(_played(unequal, names, whole))
    best_s = min((item.step_s for item in played), default=inf)

    def rank(item: _Played) -> tuple[bool, int, int, float]:
        later = item.step_s > best_s * (1.0 + _ROUNDING)
        kinds = len({gpu.name for gpu in item.plan.gpu_kinds})
        return later, *((0, 0) if later else (kinds, item.plan.gpus_used)), item.step_s

    return sorted(played, key=rank)


def _estimated(
    layouts: LaunchLayouts, spend: LaunchBudget, deadline: Deadline, below_s: float
) -> list[tuple[float, LaunchCandidate]]:
    """(seconds of the step, chain) of chains that fit, in waves of rising predicted steps until no further
    chain can beat the best; then other orders and cuts of the best."""
    estimator, chains = Estimator(layouts.model, layouts.cluster, layouts.hwdb), Chains(layouts)
    found: list[tuple[float, LaunchCandidate]] = []
    left, best_s = spend.chains, below_s

    def estimate(waiting: Sequence[LaunchCandidate]) -> None:
        nonlocal left, best_s
        for first in range(0, len(waiting), spend.wave):
            some = [
                candidate for candidate in waiting[first : first + spend.wave] if candidate.least_s < best_s
            ]
            if not some or left <= 0 or (found and deadline.over()):
                return
            left -= len(some)
            steps = estimator.steps(
                [candidate.job for candidate in some],
                [candidate.layout for candidate in some],
            )
            for step_s, candidate in zip(steps, some, strict=True):
                if step_s < inf:
                    found.append((step_s * candidate.sharing, candidate))
                    best_s = min(best_s, found[-1][0])

    for waiting in chains.waves(lambda: best_s):
        estimate(waiting)
        if left <= 0 or deadline.over():
            break
    estimate(chains.variants(_finalists(found, spend), best_s))
    return found


def _finalists(found: Iterable[tuple[float, LaunchCandidate]], spend: LaunchBudget) -> list[LaunchCandidate]:
    """The fastest distinct candidates on every set of node groups.

    One of a batch with the same degrees is kept, since refining would end at the same plan; and few of the
    same degrees on the same groups.
    """
    ordered = sorted(found, key=lambda pair: pair[0])
    best_s: dict[str, float] = {}
    for step_s, candidate in ordered:
        best_s.setdefault(candidate.job.schedule, step_s)
    seen, alike, of_groups = set[object](), Counter[object](), Counter[object]()
    best: list[LaunchCandidate] = []
    for step_s, candidate in ordered:
        if step_s > spend.near * best_s[candidate.job.schedule]:
            continue
        layout = candidate.layout
        degrees = layout.tp, layout.cp, layout.dp, layout.ep
        groups = candidate.job.schedule, frozenset(layout.stage_groups)
        wanted = of_groups[groups] < spend.refined
        if wanted and (candidate.batch, degrees) not in seen and alike[degrees, groups] < spend.alike:
            seen.add((candidate.batch, degrees))
            alike[degrees, groups] += 1
            of_groups[groups] += 1
            best.append(candidate)
    return best


def _names(plan: Plan, frameworks: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in launching(plan) if name in frameworks)


def _refined(layouts: LaunchLayouts, candidate: LaunchCandidate, deadline: Deadline) -> Plan:
    """The plan of a candidate after moving single layers between stages where that shortens the step."""
    model = layouts.model
    made = uniform_plan(model, layouts.cluster, candidate.job, candidate.layout)
    even = not any(framework.uneven_stages for framework in layouts.frameworks)
    if candidate.layout.vpp > 1 or candidate.layout.pp == 1 or even or deadline.over():
        return made
    pipeline = made.pipelines[0]
    seats = []
    for stage in pipeline.stages:
        part = stage.parts[0]
        start = 0 if stage.embedding else (stage.chunks[0][0] if stage.chunks else model.layers) + 1
        stop = model.layers + 2 if stage.head else (stage.chunks[-1][1] if stage.chunks else 0) + 1
        seats.append(StageAssignment(part.island, part.ranks, part.layouts[0].layout, start, stop))
    _, moved = refined(
        layouts, candidate.job, Lowering.of(made, layouts.hwdb), tuple(seats), pipeline.microbatch, deadline
    )
    return replace(made, pipelines=(moved,)) if moved else made
