"""The plan that needs no search: one uniform Megatron layout over all GPUs, the best of a few dozen."""

import time
from collections.abc import Iterator

from tangram_sim.clusters import Cluster, Island
from tangram_sim.errors import TangramError
from tangram_sim.jobs import Job
from tangram_sim.lowering.step import Lowering
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.api import Counts, Scored
from tangram_sim.planners.uniform import Uniform, uniform_plan
from tangram_sim.plans import Plan
from tangram_sim.sim.fast import play_steps

MOST_PLAYED = 60
MOST_SECONDS = 5.0  # after which the best so far is taken, if there is one


def uniform_layouts(model: Model, job: Job, islands: tuple[Island, ...]) -> Iterator[Uniform]:
    """Tensor parallel inside a node, powers of two of stages, data parallel over the rest."""
    gpus = sum(island.gpus for island in islands)
    order = tuple(dict.fromkeys(name for island in islands for name in island.name.split("+")))
    if any("." in name for name in order):  # pieces of one group cannot be ordered
        order = ()
    per_node = min(island.gpus_per_node for island in islands)
    pipelines = [1 << power for power in range(10) if 1 << power <= min(gpus, model.layers)]
    for recompute, zero_stage in (("selective", 1), ("none", 1), ("full", 1), ("full", 3)):
        for pp in pipelines:
            for tp in reversed(divisors(per_node)):
                most = max(1, gpus // (tp * pp))
                dp = max((one for one in divisors(job.global_batch) if one <= most), default=1)
                yield Uniform(tp, pp, dp, zero_stage=zero_stage, recompute=recompute, order=order)


def trivial(
    model: Model,
    cluster: Cluster,
    job: Job,
    islands: tuple[Island, ...],
    lowering: Lowering,
    constraints: Constraints,
    counts: Counts,
) -> Scored | None:
    """The fastest of the uniform layouts that fit and respect what is fixed; None where none does."""
    best: Scored | None = None
    begin, tried = time.perf_counter(), 0
    for wanted in uniform_layouts(model, job, islands):
        if best and (tried >= MOST_PLAYED or time.perf_counter() - begin > MOST_SECONDS):
            break
        try:
            plan = uniform_plan(model, cluster, job, wanted)
        except TangramError:  # degrees that this model or batch does not divide
            continue
        if not _allowed(plan, constraints):
            continue
        step = lowering.lower(plan.pipelines[0])
        counts.played += 1
        tried += 1
        if step.fits():
            seconds = float(play_steps(step.template, step.template.durations(step.times)[None, :])[0])
            if best is None or seconds < best.step_s:
                best = Scored(plan, step, seconds)
    return best


def _allowed(plan: Plan, constraints: Constraints) -> bool:
    pipeline = plan.pipelines[0]
    return all(constraints.allows(stage.layout, pipeline.microbatch) for stage in pipeline.stages)
