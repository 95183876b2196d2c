"""Pipelines whose runs of stages differ in degrees: the process meshes of FlagScale's heterogeneous mode.

Rules of `flagscale/train/hetero/parallel_context.py` and `flagscale/train/arguments.py` of FlagScale 0.8.0:
one pipeline, cp 1, one chunk per stage, meshes that tile the ranks in order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from tangram_sim.layouts import Layout
from tangram_sim.planners.uniform.shape import Shape, UniformPlan, unlike_within
from tangram_sim.training.plan import Plan, Stage


@dataclass(frozen=True, slots=True)
class Mesh:
    """A run of pipeline stages with the same degrees. `ranks` are GPUs of the cluster, stage by stage."""

    layout: Layout
    layers: tuple[int, ...]  # blocks of each of its stages
    ranks: tuple[int, ...]

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """(tp, cp, ep, dp, pp), in the order of `hetero_process_meshes`."""
        layout = self.layout
        return layout.tp, layout.cp, layout.ep, layout.dp, len(self.layers)


def meshes_of(plan: Plan) -> tuple[Mesh, ...]:
    """The meshes of a plan that has no `mesh_objections`."""

    def degrees(stage: Stage) -> tuple[int, int, int]:
        return stage.layout.tp, stage.layout.ep, stage.layout.dp

    runs = [list(same) for _, same in groupby(plan.pipelines[0].stages, key=degrees)]
    return tuple(
        Mesh(
            run[0].layout,
            tuple(sum(stop - start for start, stop in stage.chunks) for stage in run),
            tuple(rank for stage in run for rank in stage.ranks),
        )
        for run in runs
    )


def mesh_objections(plan: Plan, rules: Callable[[UniformPlan], list[str]]) -> list[str]:
    """Reasons why a plan cannot be expressed as meshes; `rules` gives those of each stage by itself."""
    reasons = unlike_within(plan)
    if reasons:
        return reasons
    pipeline = plan.pipelines[0]
    stages = pipeline.stages
    for number, stage in enumerate(stages):
        broken = rules(_as_uniform(plan, stage, pipeline.microbatches, pipeline.microbatch, len(stages)))
        reasons += [f"stage {number}: {reason}" for reason in broken]
    levels = {stage.layout.zero_stage for stage in stages if stage.layout.dp > 1}
    if len(levels) > 1:
        reasons.append(f"the ZeRO stage differs between stages: {', '.join(map(str, sorted(levels)))}")
    if any(stage.layout.sequence_parallel != (stage.layout.tp > 1) for stage in stages):
        reasons.append("sequence parallelism on some stages with tensor parallelism and not on others")
    first, last = stages[0].layout, stages[-1].layout
    if plan.model.tied and first.tp != last.tp:
        reasons.append(f"one matrix for embedding and head, at tp {first.tp} and tp {last.tp}")
    if plan.model.tied and max(first.dp, last.dp) % min(first.dp, last.dp):
        reasons.append(f"one matrix for embedding and head, at dp {first.dp} and dp {last.dp}")
    return list(dict.fromkeys(reasons))


def _as_uniform(plan: Plan, stage: Stage, microbatches: int, microbatch: int, depth: int) -> UniformPlan:
    """A uniform plan with this stage's layout everywhere, to check it against rules of uniform plans."""
    layout = stage.layout
    shape = Shape(layout.tp, layout.cp, layout.dp, layout.ep, (stage.chunks,) * depth, stage.ranks)
    return UniformPlan(
        shape,
        layout,
        plan.model,
        plan.job,
        microbatch_per_rank=microbatch // layout.dp,
        microbatches=microbatches,
    )
