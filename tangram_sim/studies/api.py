"""The Python form of the commands: plan, estimate, simulate.

Models and clusters may be given by name, or as the path of a file.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tangram_sim.clusters import Cluster
from tangram_sim.digests import is_changed
from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.hwdb import Hwdb, ReadSet, load_cluster, load_model
from tangram_sim.models import Model
from tangram_sim.placement.domains import idle_in_domains, idle_in_groups
from tangram_sim.planners.api import Progress, SearchOptions
from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.kinds import bound_by_kinds
from tangram_sim.planners.tangram.passage import passage_s
from tangram_sim.planners.uniform.frameworks import launching
from tangram_sim.planners.uniform.layouts import Uniform, settle_chunks, uniform_plan
from tangram_sim.planners.usable import usable_islands
from tangram_sim.studies.batch_estimates import Estimate, Estimator, Refusal
from tangram_sim.studies.cautions import cautions
from tangram_sim.studies.collecting import collecting_rarely
from tangram_sim.studies.documents import EVERY_PLAN, Alternative, PartialPlanCounts, PlanDocument
from tangram_sim.studies.forecast import Forecast, document, forecast
from tangram_sim.studies.format_choice import search_formats
from tangram_sim.studies.launch_choice import choose, require_simple_within
from tangram_sim.studies.margin import require_margin
from tangram_sim.studies.nearer_bound import Bounds, tightened
from tangram_sim.studies.number_formats import resolve
from tangram_sim.studies.planfile import plan_from_document, read_plan_keys
from tangram_sim.studies.results import Result
from tangram_sim.studies.search_options import left_out
from tangram_sim.studies.training_run import wanted_run, with_run
from tangram_sim.training.job import RECIPES, Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.stacks import STACKS
from tangram_sim.training.stage.prices import prices_kept
from tangram_sim.training.step.intervals import compare

REPRICED = declare(
    "repriced",
    Severity.NOTE,
    "re-priced with another hardware database: {file_step_s:seconds} per step in the file (hwdb "
    "{file_hwdb}), {step_s:seconds} now (hwdb {hwdb}), {change_percent:+.2f} %",
)
OF_SLOW_CLUSTER = declare(
    "file-is-of-slow-cluster",
    Severity.NOTE,
    "the file's {file_step_s:seconds} per step are of a cluster parts of which ran slow; these are of the "
    "healthy one",
)
DOES_NOT_REPLAY = declare(
    "does-not-replay",
    Severity.WRONG,
    "the file says {file_step_s:seconds} per step, its decisions take {step_s:seconds}: it was edited, or "
    "written by another version ({version})",
)
CHANGED = declare(
    "file-was-changed",
    Severity.WRONG,
    "{path} was changed since it was written: its decisions are used as they stand, and what its search "
    "proved is left out",
)
OTHER_FIGURES = declare(
    "figures-do-not-replay",
    Severity.WRONG,
    "the file's {names:listed} are not those of its decisions: it was edited, or written by another version "
    "({version})",
)
_REPLAYED = (  # what follows from a plan's decisions alone; `step_s` is compared before
    *("step_s_low", "step_s_high", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "mfu_cluster", "feasible"),
    *("schedule", "microbatch", "microbatch_per_rank", "microbatches", "gpus_used", "gpus_total"),
    *("bubble_fraction", "peak_memory_bytes", "peak_memory_reserved_bytes", "peak_memory_allocated_bytes"),
    *("peak_memory_bytes_high", "work_bound_step_s", "stages", "gpu_kinds"),
)
SAME = 1e-9  # relative; the engines agree to this


def require_stack(job: Job, hwdb: Hwdb) -> None:
    """Raise UnknownNameError for a software stack that neither the database nor STACKS has."""
    known = dict.fromkeys((*STACKS, *hwdb.stack_names()))
    if job.stack not in known:
        raise unknown_name("stack", job.stack, known, "`generic` stands for software that is not listed.")


def _named(model: Model | str | Path, cluster: Cluster | str | Path, hwdb: Hwdb) -> tuple[Model, Cluster]:
    """The model and the cluster, loaded where a name or a file is given. Raises UnknownNameError."""
    for given, kind, what in ((model, Model, "model"), (cluster, Cluster, "cluster")):
        if not isinstance(given, kind | str | Path):
            raise BadInputError(
                f"{what}: {type(given).__name__} cannot be read; give a name, a file or a ts.{kind.__name__}"
            )
    return (
        model if isinstance(model, Model) else load_model(str(model)),
        cluster if isinstance(cluster, Cluster) else load_cluster(str(cluster), hwdb),
    )


@collecting_rarely()
@prices_kept()
def plan(
    model: Model | str | Path,
    cluster: Cluster | str | Path,
    job: Job | None = None,
    *,
    wishes: SearchOptions | None = None,
    hwdb: Hwdb | None = None,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
    known: Sequence[Plan] = (),
    tokens: float | str | None = None,
    finish_within: float | str | None = None,
) -> Result:
    """The best plan found for `model` on `cluster`; `deadline` and `known` as in `tangram`.

    With `tokens` (`300B`) the document's `run` gives the days, dollars and megawatt hours to train on them.

    Raises InfeasibleError when nothing fits, with the memory needed and available; BadInputError or
    UnknownNameError for contradictory options, the model or the cluster.
    """
    wanted = wanted_run(tokens, finish_within)
    rows = hwdb = hwdb or Hwdb.load()
    job, wishes = job or Job(), wishes or SearchOptions()
    model, cluster = _named(model, cluster, hwdb)
    budget(wishes.effort)
    require_stack(job, hwdb)
    require_margin(wishes.memory_margin)
    require_simple_within(wishes.simple_within)
    wall, cpu = time.perf_counter(), time.process_time()
    timed = deadline or Deadline(wishes.time_limit_s)
    searched = search_formats(model, cluster, job, hwdb, wishes, progress, deadline=timed, known=known)
    job, wishes, islands = searched.job, searched.wishes, searched.islands
    found, margin = searched.found, searched.margin
    # The file names the rows that its own plan rests on, not those of all that were tried.
    reads = ReadSet()
    own = hwdb.read_into(reads)
    free = forecast(found.ranked[0].plan, own)
    others = [forecast(scored.plan, hwdb) for scored in found.ranked[1 : max(wishes.top, 1)]]
    asked = replace(wishes, beside=wishes.beside and not timed.over())
    if progress and not wishes.frameworks:
        progress(0, 0, "plans that a framework can launch")
    choice = choose(
        free, model, cluster, job, within=hwdb.filled_to(1.0 - margin), options=asked, deadline=timed
    )
    # Told first: the search was cut short, or what it was to be held against was not looked at.
    stopped = found.stopped or (timed.findings() if timed.asked_s > 0 else [])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if choice.plan is free.plan:
        best, ranked, hwdb = free, [free, *others], own
    else:
        reads = ReadSet()
        hwdb = hwdb.read_into(reads)
        best = forecast(choice.plan, hwdb)
        ranked = [best, free, *others]
    # The bound of the file is the whole cluster's, also where wishes leave islands out: a replay agrees.
    # Once time is over the bound that is worked out at once has to do.
    bound = quick_bound(best.plan, hwdb) if timed.over() else lower_bound(best.plan, hwdb)
    idle = left_out(wishes.constraints, islands, _islands_used(best.plan))
    idle = idle or idle_in_domains(cluster, best.plan.ranks)
    if not (idle or wishes.order or wishes.exclude):
        why, dtype = "no faster plan found uses them", best.plan.job.precision.compute
        if wishes.frameworks:
            why = f"no faster plan found that {' or '.join(wishes.frameworks)} can launch uses them"
        idle = idle_in_groups(cluster, best.plan.ranks, dtype, why)
    warned = cautions(best, searched.compared, idle)
    composed = best.plan.job == job  # interleaved plans are not what the bounds on pipelines speak of
    bounds = Bounds(bound, found.pipeline_bound_s, bound, EVERY_PLAN)
    more: list[Finding] = []
    if composed:
        bounds = bounds.of_pipelines(best.step_s, alone=_one_simple_pipeline(best.plan))
        spent = time.perf_counter(), time.process_time()
        bounds, more = tightened(bounds, best, rows, wishes, timed)
        wall, cpu = wall + time.perf_counter() - spent[0], cpu + time.process_time() - spent[1]
    else:
        bounds = replace(bounds, pipeline_s=0.0)
    written = document(
        best, hwdb, reads, bound, [*stopped, *warned, *choice.findings, *found.findings, *more]
    )
    written = written.with_fields(
        memory_margin=margin,
        nearest_launchable=choice.beside,
        partial_plans=PartialPlanCounts.from_objects(found.counts),
        pipeline_bound_step_s=bounds.pipeline_s,
        lower_bound_step_s=bounds.nearest_s,
        lower_bound_covers=bounds.covers,
        planning_s=wall,
        planning_cpu_s=cpu,
        alternatives=[_alternative(item, best) for item in ranked[1 : max(wishes.top, 1)]],
    )
    plans = tuple(scored.plan for scored in found.ranked)
    result = Result(written, best, tuple(found.candidates), plans, tuple(others))
    return with_run(result, rows, wanted)


def _one_simple_pipeline(made: Plan) -> bool:
    """Whether `made` is one pipeline whose stages have one part each, as the pipeline bound assumes."""
    return len(made.pipelines) == 1 and all(len(stage.parts) == 1 for stage in made.pipelines[0].stages)


def _islands_used(made: Plan) -> set[str]:
    """Names of islands that hold a stage, alone or joined with others."""
    return {name for part in made.parts for name in (part.island, *part.island.split("+"))}


def _alternative(scored: Forecast, best: Forecast) -> Alternative:
    pipeline = scored.plan.pipelines[0]
    words = [f"{stage.parts[0].island}:{len(stage.ranks)}x[{stage.layout}]" for stage in pipeline.stages]
    trade = f"{(scored.step_s / best.step_s - 1) * 100:+.1f} % step"
    fewer = best.plan.gpus_used - scored.plan.gpus_used
    if fewer:
        trade += f", {abs(fewer)} {'fewer' if fewer > 0 else 'more'} GPUs"
    against = compare(scored.uncertainty, best.uncertainty)
    if not against.told_apart:
        trade += " (statistically tied with the best)"
    freed = best.lowered.fullness() - scored.lowered.fullness()
    if abs(freed) > 0.005:
        trade += f", {abs(freed) * 100:.0f} % {'less' if freed > 0 else 'more'} of the fullest memory"
    able = launching(scored.plan)
    lost = [name for name in launching(best.plan) if name not in able]
    if lost:
        trade += f", not launched by {', '.join(lost)}" if able else ", no framework launches it"
    return Alternative(
        step_s=scored.step_s,
        ratio_low=against.ratio_low,
        ratio_high=against.ratio_high,
        told_apart=against.told_apart,
        gpus_used=scored.plan.gpus_used,
        microbatch=pipeline.microbatch,
        peak_memory_fraction=scored.lowered.fullness(),
        launchable_with=list(able),
        summary=f"{trade}: {' | '.join(words)}",
    )


def estimate(
    model: Model | str | Path,
    cluster: Cluster | str | Path,
    job: Job | None = None,
    layout: Uniform | None = None,
    *,
    hwdb: Hwdb | None = None,
    tokens: float | str | None = None,
    finish_within: float | str | None = None,
) -> Result:
    """Predict one explicit uniform layout; it is simulated even where memory does not suffice.

    `tokens` and `finish_within` as in `plan`. Raises BadInputError or InfeasibleError for degrees that
    contradict each other or the cluster.
    """
    wanted, reads = wanted_run(tokens, finish_within), ReadSet()
    hwdb, layout = (hwdb or Hwdb.load()).read_into(reads), layout or Uniform()
    model, cluster = _named(model, cluster, hwdb)
    job = resolve(job or Job(), cluster, SearchOptions(order=layout.order))
    require_stack(job, hwdb)
    job, layout = settle_chunks(job, layout)
    made = uniform_plan(model, cluster, job, layout)
    _require_units(made)
    played = forecast(made, hwdb)
    result = Result(document(played, hwdb, reads, lower_bound(made, hwdb), cautions(played)), played)
    return with_run(result, hwdb, wanted)


def estimate_many(
    model: Model | str | Path,
    cluster: Cluster | str | Path,
    job: Job | None = None,
    layouts: Sequence[Uniform] = (),
    *,
    hwdb: Hwdb | None = None,
) -> list[Estimate | Refusal]:
    """Predictions for many explicit uniform layouts, or why one cannot be priced; in the order of `layouts`.

    Steps, memory and intervals are those of `estimate`, but transfers do not contend for links.
    """
    database, given = hwdb or Hwdb.load(), job or Job()
    model, cluster = _named(model, cluster, database)
    require_stack(given, database)
    resolved: dict[tuple[str, ...], Job] = {}
    for layout in layouts:
        if layout.order not in resolved:
            resolved[layout.order] = resolve(given, cluster, SearchOptions(order=layout.order))
    settled = [settle_chunks(resolved[layout.order], layout) for layout in layouts]
    jobs = {job: job for job, _ in settled}  # one object each: layouts are batched by job
    return Estimator(model, cluster, database).estimate(
        [jobs[job] for job, _ in settled], [layout for _, layout in settled]
    )


def _require_units(made: Plan) -> None:
    """Raise InfeasibleError when a GPU that the plan uses has no units for the job's dtype."""
    dtype = made.job.precision.compute
    lacking = sorted({gpu.name for gpu in made.gpu_kinds if not gpu.peak_flop_per_s(dtype)})
    if lacking:
        has = [
            name
            for name, recipe in RECIPES.items()
            if all(gpu.peak_flop_per_s(recipe.precision.compute) for gpu in made.gpu_kinds)
        ]
        raise InfeasibleError(
            f"{', '.join(lacking)}: no {made.job.dtype} units (emulated, slower than fp32: not priced); "
            + (f"give `dtype=` {' or '.join(has)}" if has else "these kinds have no dtype in common")
            + ", or leave them out with `order=`"
        )


def lower_bound(made: Plan, hwdb: Hwdb) -> float:
    """Lower bound, seconds, on the step of any plan for the model, cluster and job of `made`."""
    islands, _ = usable_islands(made.cluster, made.job, hwdb, SearchOptions())
    return max(least_work_s(made, hwdb), passage_s(made.model, made.job, islands, hwdb, made.cluster))


def quick_bound(made: Plan, hwdb: Hwdb) -> float:
    """Lower bound, seconds, from the work alone, as if all GPUs of a kind were one; needs no islands."""
    return bound_by_kinds(made.model, made.job, made.cluster, hwdb).step_s()


def least_work_s(made: Plan, hwdb: Hwdb) -> float:
    """The part of `lower_bound`, seconds, that is proportional to the work of the batch."""
    islands, _ = usable_islands(made.cluster, made.job, hwdb, SearchOptions())
    return WorkBound(made.model, made.job, islands, hwdb, made.cluster).step_s()


def simulate(
    source: Result | PlanDocument | Path | str, *, engine: str = "fast", hwdb: Hwdb | None = None
) -> Result:
    """Simulate a plan again. Figures embedded in its file are replaced by rows of `hwdb`'s overlays.

    Raises BadInputError for files of another schema or decisions that contradict themselves.
    """
    if engine not in ("fast", "reference"):
        raise unknown_name("engine", engine, ("fast", "reference"))
    reads = ReadSet()
    hwdb = (hwdb or Hwdb.load()).read_into(reads)
    given = source.document if isinstance(source, Result) else source
    where = "plan" if isinstance(given, PlanDocument) else str(given)
    read, keys = (given, {}) if isinstance(given, PlanDocument) else read_plan_keys(Path(given))
    made = plan_from_document(read, hwdb, where)
    _require_units(made)
    played = forecast(made, hwdb, engine)
    written = document(played, hwdb, reads, lower_bound(made, hwdb), cautions(played))
    changed = is_changed(keys)
    found: list[Finding] = [CHANGED(path=where)] if changed else []
    both = {"file_step_s": read.step_s, "step_s": written.step_s}
    if written.hwdb_hash != read.hwdb_hash:
        hashes = {"file_hwdb": read.hwdb_hash, "hwdb": written.hwdb_hash}
        found.append(REPRICED(**both, **hashes, change_percent=(written.step_s / read.step_s - 1) * 100))
    elif read.slow is not None:
        found.append(OF_SLOW_CLUSTER(**both))
    elif abs(written.step_s - read.step_s) > SAME * abs(read.step_s):
        found.append(DOES_NOT_REPLAY(**both, version=read.package_version))
    elif names := _differing(read, written):
        found.append(OTHER_FIGURES(names=names, version=read.package_version))
    elif not changed:
        # The same plan priced the same: what the search proved about others still holds.
        written = written.with_fields(
            lower_bound_step_s=min(read.lower_bound_step_s, written.step_s),
            pipeline_bound_step_s=read.pipeline_bound_step_s,
            lower_bound_covers=read.lower_bound_covers,
        )
    return Result(written.with_findings([*found, *written.findings]), played)


def _differing(read: PlanDocument, written: PlanDocument) -> list[str]:
    """Names of the figures in a plan file that differ from those of a replay of its decisions."""
    return [
        name
        for name in _REPLAYED
        if name in read.model_fields_set and not _same(getattr(read, name), getattr(written, name))
    ]


def _same(read: Any, replayed: Any) -> bool:
    """Whether two figures, texts or lists of documents agree to within the engines' tolerance SAME."""
    if isinstance(read, BaseModel):
        return all(_same(getattr(read, name), getattr(replayed, name)) for name in read.model_fields_set)
    if isinstance(read, list):
        return len(read) == len(replayed) and all(map(_same, read, replayed))
    if isinstance(read, float) and isinstance(replayed, int | float):
        return math.isclose(read, replayed, rel_tol=SAME, abs_tol=SAME)
    return bool(read == replayed)
