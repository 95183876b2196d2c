"""Uniform plans, with equal degrees in every stage as frameworks need them, or reasons against it."""

from dataclasses import dataclass

from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline, Plan

Chunks = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """Degrees, blocks of every stage, and the GPU of each rank, as an exported file must reproduce them.

    `layers` has the chunks of each stage in forward order; `ranks[r]` is the cluster's GPU (numbered node by
    node in file order) that runs the framework's rank r. Ranks count tp fastest, then cp, dp, stages.
    """

    tp: int
    cp: int
    dp: int
    ep: int
    layers: tuple[Chunks, ...]
    ranks: tuple[int, ...]

    @property
    def pp(self) -> int:
        """Number of pipeline stages."""
        return len(self.layers)

    @property
    def vpp(self) -> int:
        """Chunks per stage: above 1 when interleaved."""
        return max((len(chunks) for chunks in self.layers), default=1) or 1

    @property
    def blocks(self) -> int:
        """Number of transformer blocks in all stages."""
        return sum(stop - start for chunks in self.layers for start, stop in chunks)


@dataclass(frozen=True, slots=True)
class UniformPlan:
    """A plan with the same degrees everywhere. `microbatches` are those of one data-parallel rank."""

    shape: Shape
    layout: Layout  # of every stage
    model: Model
    job: Job
    microbatch_per_rank: int
    microbatches: int


def unlike(plan: Plan) -> list[str]:
    """Reasons why a plan is not uniform; empty for a uniform plan.

    Equal pipelines side by side count as data parallelism.
    """
    return [
        *_of_vendors(plan),
        *_of_pipelines(plan),
        *(
            reason
            for pipeline in plan.pipelines[:1]
            for reason in (*_within_stages(pipeline), *_between_stages(pipeline))
        ),
    ]


def unlike_within(plan: Plan) -> list[str]:
    """Reasons why a plan is not a single pipeline with one layout per stage; degrees may differ."""
    several = [f"{len(plan.pipelines)} pipelines"] if len(plan.pipelines) > 1 else []
    return [
        *_of_vendors(plan),
        *several,
        *(within_stage for first in plan.pipelines[:1] for within_stage in _within_stages(first)),
    ]


def uniform_view(plan: Plan) -> UniformPlan:
    """The uniform form of a plan that has no reasons against it (`unlike`)."""
    first = plan.pipelines[0]
    layout, copies = first.stages[0].layout, len(plan.pipelines)
    ranks = tuple(
        rank
        for place in range(len(first.stages))
        for pipeline in plan.pipelines
        for rank in pipeline.stages[place].ranks
    )
    layers = tuple(stage.chunks for stage in first.stages)
    return UniformPlan(
        Shape(layout.tp, layout.cp, layout.dp * copies, layout.ep, layers, ranks),
        layout,
        plan.model,
        plan.job,
        microbatch_per_rank=first.microbatch // layout.dp,
        microbatches=first.microbatches,
    )


def _of_vendors(plan: Plan) -> list[str]:
    if len(plan.vendors) < 2:
        return []
    return [f"GPUs of {' and '.join(sorted(plan.vendors))}: it needs one collective library, none spans them"]


def _of_pipelines(plan: Plan) -> list[str]:
    kinds = {_without_ranks(pipeline) for pipeline in plan.pipelines}
    if len(kinds) < 2:
        return []
    return [f"{len(plan.pipelines)} pipelines that differ in cuts, layouts or microbatches"]


def _without_ranks(pipeline: Pipeline) -> object:
    """Key of a pipeline without its ranks, to compare pipelines."""
    stages = tuple(
        (
            stage.chunks,
            stage.embedding,
            stage.head,
            tuple((part.sequences_per_microbatch, part.layouts) for part in stage.parts),
        )
        for stage in pipeline.stages
    )
    return pipeline.microbatches, pipeline.microbatch, stages


_ALIKE = (
    ("tp", "tensor-parallel degree"),
    ("cp", "context-parallel degree"),
    ("dp", "data-parallel degree"),
    ("ep", "expert-parallel degree"),
    ("zero_stage", "ZeRO stage"),
    ("recompute", "recomputation"),
    ("sequence_parallel", "sequence parallelism"),
)


def _within_stages(pipeline: Pipeline) -> list[str]:
    """Reasons why stages of a pipeline do not have one layout each."""
    reasons = []
    for number, stage in enumerate(pipeline.stages):
        if len(stage.parts) > 1:
            shares = " and ".join(
                f"{len(part.ranks)} GPUs with {part.sequences_per_microbatch}" for part in stage.parts
            )
            reasons.append(f"stage {number} is mixed: {shares} sequences of each microbatch")
        for part in stage.parts:
            if len({run.layout for run in part.layouts}) > 1:
                reasons.append(f"stage {number} has {len(part.layouts)} runs of layers, each with its layout")
            degree = part.layouts[0].layout.dp
            if part.sequences_per_microbatch % degree:
                share = part.sequences_per_microbatch
                reasons.append(f"stage {number}: dp {degree} ranks share {share} sequences unevenly")
            if any(run.layout.fsep for run in part.layouts):
                reasons.append(f"stage {number}: fully sharded experts (fsep)")
            if any(run.layout.slices > 1 for run in part.layouts):
                reasons.append(f"stage {number}: ZeRO-3 weights gathered in slices")
    return reasons


def _between_stages(pipeline: Pipeline) -> list[str]:
    """Reasons why the stages of a pipeline do not have the same layout: what differs, with its values."""
    reasons = []
    layouts = [run.layout for stage in pipeline.stages for part in stage.parts for run in part.layouts]
    for name, words in _ALIKE:
        values = list(dict.fromkeys(getattr(layout, name) for layout in layouts))
        if len(values) > 1:
            reasons.append(f"the {words} differs between stages: {', '.join(map(str, values))}")
    return reasons
