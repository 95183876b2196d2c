"""Plans under schedules with several chunks per stage: interleaved 1F1B, and V-shaped chunks.

The search composes pipelines of one chunk per stage. The best are cut into chunks stage by stage, with GPUs
and layouts unchanged, and simulated under the requested schedule. The best of those move layers between
stages while that shortens the step: in a V the first stage holds both ends of the model and needs fewer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tangram_sim.clusters import Cluster
from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.findings import Severity, declare
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import Counts, Found, Progress, Scored, SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.engine import UNIFORM_OPS, tangram
from tangram_sim.planners.uniform.trivial import PlayLimits, trivial
from tangram_sim.planners.usable import usable_islands
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Part, Pipeline, Plan, Share, pipeline_of_shares
from tangram_sim.training.schedules import Schedule, schedule_named
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import price_plan

CUT = 24  # best plans of one chunk that are cut: those behind differ by several per cent
_BALANCED = 3  # of these, whose layers then move between stages
_CHUNKS = 4  # more divide the bubble further by little and send more often

NOTHING_CUT = declare(
    "no-plan-cut-into-chunks",
    Severity.NOTE,
    "{schedule}: no plan of 1f1b could be cut into chunks: the best uniform layout",
)
CUT_INTO_CHUNKS = declare(
    "plans-cut-into-chunks",
    Severity.DETAIL,
    "{schedule}: the {plans} best 1f1b plans were cut into chunks and played",
)


@dataclass(frozen=True, slots=True)
class CannotChunk:
    """Reason why a plan cannot be cut into this many chunks per stage."""

    reason: str


def chunked(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    wishes: SearchOptions | None = None,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
    known: Sequence[Plan] = (),
) -> Found:
    """Plan as `tangram` does, under a schedule with several chunks per stage.

    Plans in `known` for this job (already in chunks) compete with those found. If `known` holds plans of the
    same job under 1f1b, these are cut into chunks instead of searching. Raises InfeasibleError where no known
    plan fits and no candidate can be cut into chunks that fit.
    """
    wishes = wishes or SearchOptions()
    deadline = deadline or Deadline(wishes.time_limit_s)
    schedule = schedule_named(job.schedule)
    plain, own = replace(job, schedule="1f1b"), [plan for plan in known if plan.job == job]
    simple = [plan for plan in known if plan.job == plain][: max(wishes.top, CUT)]
    if simple:
        islands, _ = usable_islands(cluster, job, hwdb, wishes)
        found = Found([], WorkBound(model, job, islands, hwdb, cluster).step_s(), Counts())
    else:
        wide = replace(wishes, top=max(wishes.top, CUT))
        found = tangram(model, cluster, plain, hwdb, wide, progress, deadline=deadline)
        simple = [scored.plan for scored in found.ranked]
    lowering = Lowering.of(replace(simple[0], job=job), hwdb)
    ranked, refused = list[tuple[Scored, Plan, int]](), dict[str, int]()
    for plan in simple:
        if ranked and deadline.over():
            break
        for chunks in range(schedule.chunks[0], min(schedule.chunks[1], _CHUNKS) + 1):
            answer = _played(with_chunks(plan, job, schedule, chunks), hwdb, lowering)
            if isinstance(answer, Scored):
                ranked.append((answer, plan, chunks))
            else:
                refused[answer.reason] = refused.get(answer.reason, 0) + 1
    given = [item for plan in own if isinstance(item := _played(plan, hwdb, lowering), Scored)]
    if not ranked and not given:  # depths that divide the batch were not what is best under 1f1b
        sizes = range(schedule.chunks[0], min(schedule.chunks[1], _CHUNKS) + 1)
        islands, left_out = usable_islands(cluster, job, hwdb, wishes)
        question = model, cluster, job, islands, lowering, wishes.constraints, found.counts
        limits = PlayLimits(deadline, UNIFORM_OPS)
        if even := trivial(*question, bool(wishes.order or left_out), limits, sizes):
            findings = [*found.findings, NOTHING_CUT(schedule=job.schedule)]
            return replace(found, ranked=[even], findings=findings, pipeline_bound_s=0.0)
        why = "; ".join(f"{count} x {reason}" for reason, count in refused.items())
        raise InfeasibleError(
            f"none of the {len(simple)} best plans of {model.name} on {cluster.name} runs under "
            f"{job.schedule}: {why}; 1f1b has plans"
        )
    ranked.sort(key=lambda item: item[0].step_s)
    moved = [_balanced(*item, job, schedule, hwdb, lowering, deadline) for item in ranked[:_BALANCED]]
    plans = sorted(
        [*moved, *(scored_plan for scored_plan, _, _ in ranked[_BALANCED:]), *given],
        key=lambda scored: scored.step_s,
    )
    findings = [*found.findings, CUT_INTO_CHUNKS(schedule=job.schedule, plans=len(simple))]
    shown = plans[: max(wishes.top, 1)]
    return replace(found, ranked=shown, findings=findings, pipeline_bound_s=0.0)


def _balanced(
    scored: Scored,
    simple: Plan,
    chunks: int,
    job: Job,
    schedule: Schedule,
    hwdb: Hwdb,
    lowering: Lowering,
    deadline: Deadline,
) -> Scored:
    """The plan after moving single layers from the slowest stage to others while that shortens the step."""
    if len(simple.pipelines) > 1:
        return scored
    layers = layers_of(simple.pipelines[0])
    best, improved = scored, True
    while improved and not deadline.over():
        improved = False
        busy = [
            sum(stage_price.forward_s + stage_price.backward_s for stage_price in row)
            for row in best.step.prices
        ]
        slowest = busy.index(max(busy))
        others = [stage for stage in range(len(layers)) if stage != slowest]
        for other in sorted(others, key=busy.__getitem__)[:2]:
            tried = list(layers)
            tried[slowest], tried[other] = tried[slowest] - 1, tried[other] + 1
            answer = _played(with_chunks(simple, job, schedule, chunks, tried), hwdb, lowering)
            if isinstance(answer, Scored) and answer.step_s < best.step_s:
                best, layers, improved = answer, tried, True
                break
    return best


def layers_of(pipeline: Pipeline) -> list[int]:
    """Number of transformer blocks in every stage."""
    return [sum(stop - start for start, stop in stage.chunks) for stage in pipeline.stages]


def with_chunks(
    plan: Plan, job: Job, schedule: Schedule, chunks: int, given: Sequence[int] = ()
) -> Plan | CannotChunk:
    """`plan` with every stage cut into `chunks` under `job`'s schedule; `given`: blocks of every stage."""
    pipelines = list[Pipeline]()
    for pipeline in plan.pipelines:
        depth = len(pipeline.stages)
        if depth < 2:
            return CannotChunk("one stage holds the whole model")
        if schedule.whole_rounds and pipeline.microbatches % depth:
            return CannotChunk(f"microbatches are no multiple of the {depth} stages")
        layers = list(given) or layers_of(pipeline)
        if min(layers) < chunks:
            return CannotChunk(f"a stage has fewer layers than {chunks} chunks")
        if any(len(part.layouts) > 1 for stage in pipeline.stages for part in stage.parts):
            return CannotChunk("a stage has several layouts")
        sizes = [0] * (depth * chunks)
        for stage, count in enumerate(layers):
            for chunk in range(chunks):
                sizes[schedule.place(stage, chunk, depth)] = count // chunks + (chunk < count % chunks)
        cuts = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
        shares = [[_share(part) for part in stage.parts] for stage in pipeline.stages]
        pipelines.append(pipeline_of_shares(pipeline.microbatches, cuts, shares, chunks, schedule.place))
    return Plan(plan.model, plan.cluster, job, tuple(pipelines))


def _share(part: Part) -> Share:
    return Share(part.island, part.ranks, part.sequences_per_microbatch, part.layouts[0].layout)


def _played(plan: Plan | CannotChunk, hwdb: Hwdb, lowering: Lowering) -> Scored | CannotChunk:
    """The plan with its simulated step, or the reason why it cannot run."""
    if isinstance(plan, CannotChunk):
        return plan
    try:
        lowered = price_plan(plan, hwdb, lowering)
    except TangramError as error:
        return CannotChunk(str(error))
    if not lowered.fits():
        return CannotChunk("does not fit memory")
    return Scored(plan, lowered.steps[0], lowered.step_s())
