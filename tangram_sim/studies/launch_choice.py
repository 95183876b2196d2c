"""Which plan is shown: the fastest found, or one that a framework can launch and that is as good."""

from dataclasses import dataclass
from functools import partial
from math import inf

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.uniform.framework_models import model_objections
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, launching, plan_objections
from tangram_sim.planners.uniform.shape import uniform_view, unlike
from tangram_sim.studies.documents import LaunchableDocument
from tangram_sim.studies.forecast import Forecast
from tangram_sim.studies.launchable import Launchable, nearest
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.intervals import compare

LAUNCHABLE_IS_FASTER = declare(
    "launchable-is-faster",
    Severity.NOTE,
    "a layout that frameworks launch is {gain:percent1} faster than what the search composed",
)
LAUNCHABLE_IS_TIED = declare(
    "launchable-is-tied",
    Severity.NOTE,
    "the fastest plan found takes {free_step_s:seconds}, {gain:percent1} less; no framework launches it, and "
    "the interval does not tell the two apart: `simple_within=0`",
)
UNIFORM_IS_FASTER = declare(
    "uniform-is-faster",
    Severity.NOTE,
    "equal degrees in every stage are {gain:percent1} faster than what the search composed; no framework has "
    "the model",
)
UNIFORM = "megatron"  # whose rules on layouts are the widest for stages alike
ANY = "any"  # of the frameworks
SIMPLE_WITHIN = 0.002  # of the step: more would let narrower questions have better answers
# Equal nodes give no reason for unequal stages: what these gain is mostly what single predictions are off by.
SIMPLE_WITHIN_ALIKE = 0.03
_NEAR = 1.15  # times the fastest step: launchable plans are looked for up to there first
_WORTH = 1.02  # times the slowest step that would be shown: estimates are off by less


@dataclass(frozen=True)
class LaunchChoice:
    """The plan to show, findings on the choice, and a launchable plan to show beside one that is not."""

    plan: Plan
    findings: tuple[Finding, ...] = ()
    beside: LaunchableDocument | None = None


def frameworks_named(name: str | None) -> tuple[str, ...]:
    """Frameworks that `name` (the value of `--for`) stands for; () for None. Raises UnknownNameError."""
    if name is None:
        return ()
    if name not in (ANY, *FRAMEWORKS):
        raise unknown_name("framework", name, [*FRAMEWORKS, ANY])
    return tuple(FRAMEWORKS) if name == ANY else (name,)


def require_simple_within(share: float | None) -> None:
    """Raise BadInputError unless `share` is None or a finite share of the step, zero or more."""
    if share is not None and not 0.0 <= share < float("inf"):
        raise BadInputError(f"`simple_within={share:g}`: give a share of the step, zero or more, e.g. 0.01")


def choose(
    free: Forecast,
    model: Model,
    cluster: Cluster,
    job: Job,
    within: Hwdb,
    options: SearchOptions,
    deadline: Deadline,
) -> LaunchChoice:
    """Choose between the search's fastest plan, `free`, uniform layouts and plans that frameworks can launch.

    `within` limits how far memory is filled. The fastest is shown; a launchable plan of the same schedule (on
    equal nodes also an interleaved one) replaces one that is not launchable, if the two are statistically
    tied and its step is at most `options.simple_within` longer; default SIMPLE_WITHIN, SIMPLE_WITHIN_ALIKE
    where all nodes are alike. With `options.frameworks` the search already found launchable plans.
    """
    if options.frameworks or not options.beside:
        return LaunchChoice(free.plan)
    knowing = [
        name for name, framework in FRAMEWORKS.items() if not model_objections(name, framework.version, model)
    ]
    look = partial(nearest, model, cluster, job, within, options, deadline=deadline)
    near, able = None, launching(free.plan)
    if knowing:
        # What would be shown in its place.
        shown_s = _WORTH * free.step_s * (1.0 if able else 1.0 + may_be_slower_by(cluster, options))
        near = look(knowing, below_s=shown_s if able or options.only_shown else _NEAR * free.step_s)
        if near is None and not (able or options.only_shown):
            near = look(knowing)  # far behind the fastest plan
    # What another parallelizer proposes, or a search that was told to look at less, is shown as it is.
    told_less = not (options.sub_islands and options.spanning and options.replicate) or options.tolerances
    if told_less or options.parallelizer != "grid":
        return LaunchChoice(free.plan, (), None if able or near is None else described(near, free))
    plain = None if UNIFORM in knowing else look([UNIFORM], with_model=False)
    if plain and plain.forecast.step_s < min(free.step_s, near.forecast.step_s if near else inf):
        gain = 1.0 - plain.forecast.step_s / free.step_s
        beside = described(near, plain.forecast) if near else None
        return LaunchChoice(plain.forecast.plan, (UNIFORM_IS_FASTER(gain=gain),), beside)
    if near is None:
        return LaunchChoice(free.plan)
    longer = near.forecast.step_s / free.step_s - 1.0
    if longer < 0:
        return LaunchChoice(near.forecast.plan, (LAUNCHABLE_IS_FASTER(gain=-longer),))
    # On equal nodes also where chunks differ: they are what equal stages are interleaved by.
    same = near.forecast.plan.job == free.plan.job or _alike(cluster)
    apart = compare(near.forecast.uncertainty, free.uncertainty).told_apart
    if not able and same and longer <= may_be_slower_by(cluster, options) and not apart:
        tied = LAUNCHABLE_IS_TIED(free_step_s=free.step_s, gain=longer / (1 + longer))
        return LaunchChoice(near.forecast.plan, (tied,))
    return LaunchChoice(free.plan, (), None if able else described(near, free))


def may_be_slower_by(cluster: Cluster, options: SearchOptions) -> float:
    """Largest share of the step by which a launchable plan may be slower and still be shown."""
    usual = SIMPLE_WITHIN_ALIKE if _alike(cluster) else SIMPLE_WITHIN
    return usual if options.simple_within is None else options.simple_within


def _alike(cluster: Cluster) -> bool:
    """Whether all nodes of a cluster are the same, and in the same health."""
    return len({group.node for group in cluster.groups}) == 1 and cluster.health.is_full


def described(near: Launchable, best: Forecast) -> LaunchableDocument:
    """Document of the nearest launchable plan, compared with the best one."""
    played = near.forecast
    against = compare(played.uncertainty, best.uncertainty)
    view = uniform_view(played.plan)
    shape = view.shape
    degrees = " ".join(
        f"{name}{value}"
        for name, value in (("tp", shape.tp), ("dp", shape.dp), ("cp", shape.cp), ("ep", shape.ep))
        if value > 1
    )
    different = bool(unlike(played.plan))  # FlagScale's stages: every group has a layout of its own
    if different:
        stages = [(stage.parts[0].island, str(stage.layout)) for stage in played.plan.pipelines[0].stages]
        degrees = " and ".join(f"{layout} on {island}" for island, layout in dict.fromkeys(stages))
    blocks = ",".join(str(sum(stop - start for start, stop in chunks)) for chunks in shape.layers)
    words = [f"{shape.pp} stages of {degrees or 'one GPU'}" if shape.pp > 1 else degrees or "one GPU"]
    if shape.pp > 1:
        words.append(f"layers {blocks}")
    if shape.vpp > 1:
        words.append(f"{shape.vpp} chunks each")
    if view.layout.zero_stage and not different:
        words.append(f"zero {view.layout.zero_stage}")
    if view.layout.recompute != "none" and not different:
        words.append(f"recompute {view.layout.recompute}")
    words.append(f"{view.microbatch_per_rank} per rank")
    return LaunchableDocument(
        step_s=played.step_s,
        ratio=played.step_s / best.step_s,
        told_apart=against.told_apart,
        frameworks=list(near.frameworks),
        schedule=played.plan.job.schedule,
        gpus_used=played.plan.gpus_used,
        summary=", ".join(words),
        lacking=plan_objections(FRAMEWORKS[near.frameworks[0]], best.plan),
    )
