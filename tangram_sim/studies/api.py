"""The Python form of the commands: plan, estimate, simulate."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_sim.jobs import OPTIMIZER_STATE_BYTES, RECIPES, SCHEDULES, Job
from tangram_sim.lowering.step import LoweredStep
from tangram_sim.models import Model
from tangram_sim.planners.api import Candidate, Scored, Wishes
from tangram_sim.planners.bound import WorkBound
from tangram_sim.planners.tangram import Progress, tangram, usable_islands
from tangram_sim.planners.uniform import Uniform, uniform_plan
from tangram_sim.plans import Plan
from tangram_sim.studies.documents import Alternative, PartialPlanCounts, PlanDocument
from tangram_sim.studies.forecast import Forecast, document, forecast
from tangram_sim.studies.planfile import plan_from_document, read_plan
from tangram_sim.units import show_seconds


@dataclass(frozen=True)
class Result:
    """A document, and the played plan behind it."""

    document: PlanDocument
    forecast: Forecast
    candidates: tuple[Candidate, ...] = ()


def resolve(job: Job, cluster: Cluster, exclude: tuple[str, ...] = ()) -> Job:
    """Check a job and settle `--dtype auto`: bf16 if every island that could be used has bf16 units, else fp16.

    Raises BadInputError or UnknownNameError for impossible or unknown values.
    """
    if job.global_batch < 1 or job.seq < 1:
        raise BadInputError(f"--global-batch {job.global_batch} and --seq {job.seq} must be 1 or more")
    if job.optimizer not in OPTIMIZER_STATE_BYTES:
        raise unknown_name("optimizer", job.optimizer, OPTIMIZER_STATE_BYTES)
    if job.schedule not in SCHEDULES:
        raise unknown_name("schedule", job.schedule, SCHEDULES)
    if job.dtype == "auto":
        usable = [group.node.gpu for group in cluster.groups if group.name not in exclude]
        every = all(gpu.peak_flop_per_s("bf16") for gpu in usable)
        return replace(job, dtype="bf16" if every else "fp16")
    if job.dtype not in RECIPES:
        raise unknown_name("dtype", job.dtype, ["auto", *RECIPES])
    return job


def plan(
    model: Model,
    cluster: Cluster,
    job: Job | None = None,
    *,
    wishes: Wishes | None = None,
    hwdb: Hwdb | None = None,
    progress: Progress | None = None,
) -> Result:
    """The best plan found for `model` on `cluster`.

    Raises InfeasibleError when nothing fits, with what is needed and what there is.
    """
    hwdb, wishes = hwdb or Hwdb.load(), wishes or Wishes()
    job = resolve(job or Job(), cluster, wishes.exclude)
    if job.schedule == "interleaved":
        raise BadInputError(
            "plan composes 1f1b, gpipe and zb-h1 pipelines; interleaved ones can be priced with "
            "`tangram estimate --schedule interleaved --vpp N`"
        )
    wall, cpu = time.perf_counter(), time.process_time()
    found = tangram(model, cluster, job, hwdb, wishes, progress)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    best = forecast(found.ranked[0].plan, hwdb)
    written = document(best, hwdb, found.lower_bound_step_s, found.notes)
    counts = found.counts
    written.partial_plans = PartialPlanCounts(
        asked=counts.asked,
        redundant=counts.redundant,
        imbalanced=counts.imbalanced,
        infeasible=counts.infeasible,
        dominated=counts.dominated,
        composed=counts.composed,
        played=counts.played,
    )
    written.planning_s, written.planning_cpu_s = wall, cpu
    written.alternatives = [_alternative(scored, found.ranked[0]) for scored in found.ranked[1:]]
    return Result(written, best, tuple(found.candidates))


def _alternative(scored: Scored, best: Scored) -> Alternative:
    pipeline = scored.plan.pipelines[0]
    words = [
        f"{stage.parts[0].island}:{len(stage.ranks)}x[{stage.layout}]" for stage in pipeline.stages
    ]
    trade = f"{(scored.step_s / best.step_s - 1) * 100:+.1f} % step"
    fewer = best.plan.gpus_used - scored.plan.gpus_used
    if fewer:
        trade += f", {abs(fewer)} {'fewer' if fewer > 0 else 'more'} GPUs"
    freed = _fullness(best.step) - _fullness(scored.step)
    if abs(freed) > 0.005:
        trade += f", {abs(freed) * 100:.0f} % {'less' if freed > 0 else 'more'} of the fullest memory"
    return Alternative(
        step_s=scored.step_s,
        gpus_used=scored.plan.gpus_used,
        microbatch=pipeline.microbatch,
        peak_memory_fraction=_fullness(scored.step),
        summary=f"{trade}: {' | '.join(words)}",
    )


def _fullness(step: LoweredStep) -> float:
    return max(step.peak_bytes(stage) / step.capacity_bytes(stage) for stage in range(len(step.prices)))


def estimate(
    model: Model, cluster: Cluster, job: Job | None = None, layout: Uniform | None = None, *, hwdb: Hwdb | None = None
) -> Result:
    """What one explicit uniform layout achieves. It is played even where memory does not suffice.

    Raises BadInputError or InfeasibleError for degrees that contradict each other or the cluster.
    """
    hwdb, layout = hwdb or Hwdb.load(), layout or Uniform()
    job = resolve(job or Job(), cluster)
    if layout.vpp > 1 and job.schedule == "1f1b":
        job = replace(job, schedule="interleaved")
    made = uniform_plan(model, cluster, job, layout)
    _require_units(made)
    played = forecast(made, hwdb)
    notes = [] if played.step.fits() else ["does not fit: see the stages whose peak exceeds their capacity"]
    return Result(document(played, hwdb, lower_bound(made, hwdb), notes), played)


def _require_units(made: Plan) -> None:
    kinds = {group.name: group.node.gpu for group in made.cluster.groups}
    used = {name for stage in made.pipelines[0].stages for name in stage.parts[0].island.split("+")}
    lacking = sorted({kinds[name].name for name in used if not kinds[name].peak_flop_per_s(made.job.recipe.gemm_dtype)})
    if lacking:
        raise InfeasibleError(f"{', '.join(lacking)}: no {made.job.dtype} units; choose another --dtype or fewer GPUs")


def lower_bound(made: Plan, hwdb: Hwdb) -> float:
    """The bound on the step of any plan for the same model, cluster and job."""
    islands, _ = usable_islands(made.cluster, made.job, hwdb, Wishes())
    return WorkBound(made.model, made.job, islands, hwdb).step_s()


def simulate(source: PlanDocument | Path, *, engine: str = "fast", hwdb: Hwdb | None = None) -> Result:
    """Replay a plan: another hardware database re-prices the same decisions.

    Raises BadInputError for files of another schema or decisions that contradict themselves.
    """
    if engine not in ("fast", "reference"):
        raise unknown_name("engine", engine, ("fast", "reference"))
    hwdb = hwdb or Hwdb.load()
    where = "plan" if isinstance(source, PlanDocument) else str(source)
    read = source if isinstance(source, PlanDocument) else read_plan(source)
    made = plan_from_document(read, hwdb, where)
    if len(made.pipelines) != 1:
        raise BadInputError(f"{where}: {len(made.pipelines)} pipelines; one can be simulated today")
    played = forecast(made, hwdb, engine)
    written = document(played, hwdb, lower_bound(made, hwdb))
    if written.hwdb_hash != read.hwdb_hash:
        written.notes.append(
            f"priced with another hardware database: {show_seconds(read.step_s)} then (hwdb {read.hwdb_hash}), "
            f"{show_seconds(written.step_s)} now (hwdb {written.hwdb_hash})"
        )
    return Result(written, played)
