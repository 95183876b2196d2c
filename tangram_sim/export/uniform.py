"""The one shape that frameworks know, equal degrees in every stage: whether a plan has it, or why not."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tangram_sim.errors import TangramError
from tangram_sim.models import Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Part, Pipeline, Plan

Chunks = tuple[tuple[int, int], ...]


class CannotExportError(TangramError):
    """A plan says something that a framework has no words for; the message lists all of it."""


def refuse(framework: str, reasons: Sequence[str]) -> None:
    """Raise CannotExportError if there is any reason."""
    if reasons:
        listed = "".join(f"\n  - {reason}" for reason in dict.fromkeys(reasons))
        raise CannotExportError(
            f"{framework} cannot express this plan:{listed}\n"
            "`--to rankmap` writes every decision down; `tangram plan --fix tp=N,dp=N,cp=1,zero=1` looks for "
            "a plan with equal degrees"
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """What a file must give back: degrees, the blocks of every stage, and which GPU each rank is.

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
        """Pipeline stages."""
        return len(self.layers)

    @property
    def vpp(self) -> int:
        """Chunks per stage: above 1 when interleaved."""
        return max((len(chunks) for chunks in self.layers), default=1) or 1

    @property
    def blocks(self) -> int:
        """Transformer blocks of all stages."""
        return sum(stop - start for chunks in self.layers for start, stop in chunks)


@dataclass(frozen=True, slots=True)
class Uniform:
    """A plan with the same degrees everywhere. `microbatches` are those of one data-parallel rank."""

    shape: Shape
    model: Model
    job: Job
    microbatch_per_rank: int
    microbatches: int
    zero_stage: int
    recompute: str
    sequence_parallel: bool


def uniform_of(plan: Plan, framework: str) -> Uniform:
    """The uniform view of a plan; equal pipelines side by side count as data parallelism.

    Raises CannotExportError with every reason why `framework`, which knows no other shape, cannot run it.
    """
    reasons = [*_of_pipelines(plan), *(reason for one in plan.pipelines[:1] for reason in _of_stages(one))]
    if plan.job.trainable < 1.0:
        reasons.append(
            f"adapters ({100 * plan.job.trainable:.2g} % of the weights trained): a plan does not say on "
            "which matrices they sit; write the same layout without --lora-rank or --trainable "
            f"(`tangram estimate ... -o full.json`), export that, and switch adapters on in {framework}"
        )
    refuse(framework, reasons)
    first = plan.pipelines[0]
    layout, copies = first.stages[0].layout, len(plan.pipelines)
    ranks = tuple(
        rank
        for place in range(len(first.stages))
        for pipeline in plan.pipelines
        for rank in pipeline.stages[place].ranks
    )
    layers = tuple(stage.chunks for stage in first.stages)
    return Uniform(
        Shape(layout.tp, layout.cp, layout.dp * copies, layout.ep, layers, ranks),
        plan.model,
        plan.job,
        first.microbatch // layout.dp,
        first.microbatches,
        layout.zero_stage,
        layout.recompute,
        layout.sequence_parallel,
    )


def _of_pipelines(plan: Plan) -> list[str]:
    kinds = {_without_ranks(pipeline) for pipeline in plan.pipelines}
    if len(kinds) < 2:
        return []
    return [f"{len(plan.pipelines)} pipelines that differ in cuts, layouts or microbatches"]


def _without_ranks(pipeline: Pipeline) -> object:
    """Everything of a pipeline but where it stands."""
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


def _of_stages(pipeline: Pipeline) -> list[str]:
    """Why the stages of a pipeline are not all alike, in words."""
    reasons = []
    parts: list[Part] = []
    for number, stage in enumerate(pipeline.stages):
        parts += stage.parts
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
    layouts = [run.layout for part in parts for run in part.layouts]
    for name, words in _ALIKE:
        values = list(dict.fromkeys(getattr(layout, name) for layout in layouts))
        if len(values) > 1:
            reasons.append(f"the {words} differs between stages: {', '.join(map(str, values))}")
    return reasons


def check_ranks(shape: Shape) -> None:
    """Raise CannotExportError unless the ranks are as many as the degrees say."""
    degrees = (shape.tp, shape.cp, shape.dp, shape.pp)
    if prod(degrees) != len(shape.ranks) or len(set(shape.ranks)) != len(shape.ranks):
        raise CannotExportError(
            f"tp {shape.tp} x cp {shape.cp} x dp {shape.dp} x pp {shape.pp} is not {len(shape.ranks)} ranks"
        )
