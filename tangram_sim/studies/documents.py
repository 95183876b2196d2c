"""The one JSON vocabulary of all commands: pydantic models, from which `docs/schema/` is generated.

Keys are added, never renamed. Seconds, bytes, and rates are SI; counts are integers.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field

from tangram_sim.fields import described
from tangram_sim.file_parts import FilePart, Text
from tangram_sim.findings import Finding
from tangram_sim.hwdb.file_kinds import PLAN_SCHEMA
from tangram_sim.studies.power_documents import PowerDocument
from tangram_sim.studies.slow_documents import SlowDocument
from tangram_sim.training.job import MOST_SEQUENCES, MOST_TOKENS

SCHEMA_VERSION = PLAN_SCHEMA

# Which plans a lower bound covers.
EVERY_PLAN = "every plan on the cluster"
_REPLICAS = "replicas of 1, 2, 4, 8 or 16 sequences in one node, or of 1 on up to 32 alike"
FLEETS = f"fleets of 1F1B or GPipe pipelines without ZeRO 2 and 3, {_REPLICAS}"
SHARDED_FLEETS = f"fleets of 1F1B or GPipe pipelines, {_REPLICAS}"
SINGLE_PIPELINES = (
    "single pipelines of stages on one island each, of the islands and layouts that were searched"
)


class Document(FilePart):
    """Base of everything written or read: unknown keys are errors."""


class AnswerDocument(Document):
    """Base of the documents that commands return."""

    question: dict[str, Any] | None = Field(
        None,
        description="what was asked: `verb`, and fields not at their defaults; `tangram run` asks again",
    )


class VersionedAnswer(AnswerDocument):
    """Base of answers that say which version of the schema they are of."""

    schema_version: str = Field(SCHEMA_VERSION, description="version of this format")


class JobDocument(Document):
    """The training job of one step."""

    global_batch: int = Field(ge=1, le=MOST_SEQUENCES, description="sequences per optimizer step")
    seq: int = Field(ge=1, le=MOST_TOKENS, description="tokens per sequence")
    dtype: str = Field(description="precision recipe")
    optimizer: str
    schedule: str
    trainable: float = Field(1.0, ge=0, le=1, description="share of the parameters that is trained")
    flash_attention: bool = Field(True, description="whether the software has a fused attention kernel")
    dropout: bool = Field(True, description="whether blocks of GPT's and BERT's kind train with dropout")
    stack: str = Field("generic", description="software stack whose efficiency rows apply")
    frozen: Literal["", "nf4"] = Field("", description="format of weights not trained; empty: dtype's")
    packed: float = Field(0.0, ge=0, description="mean tokens of documents packed into a sequence; 0: one")
    gradient_bytes: float = Field(0.0, ge=0, le=8, description="width of a gradient; 0: the recipe's")


class DegreesDocument(Document):
    """How a layer is spread over ranks."""

    tp: int = Field(ge=1)
    cp: int = Field(ge=1)
    ep: int = Field(ge=1)
    dp: int = Field(ge=1)
    zero_stage: int = Field(ge=0, le=3)
    recompute: str


class LayersDocument(DegreesDocument):
    """How a run of transformer blocks is spread over ranks."""

    layers: tuple[int, int] = Field(description="transformer blocks [start, stop)")
    sequence_parallel: bool


class LayoutDocument(LayersDocument):
    """A layout of a run of transformer blocks."""

    fsep: bool = Field(False, description="experts are cut over all replicas and gathered for each use")
    slices: int = Field(1, ge=1, description="pieces in which ZeRO-3 gathers the weights of a layer")


class PartDocument(Document):
    """The ranks of one GPU kind in a stage."""

    island: Text
    ranks: list[int] = Field(min_length=1, description="global ranks, numbered node by node in file order")
    sequences_per_microbatch: int = Field(ge=1)
    layouts: list[LayoutDocument] = Field(min_length=1)


class StageDocument(Document):
    """One pipeline stage: decisions only, no predictions."""

    chunks: list[tuple[int, int]] = Field(description="runs of transformer blocks [start, stop)")
    embedding: bool
    head: bool
    parts: list[PartDocument] = Field(min_length=1)


class PipelineDocument(Document):
    """Stages in forward order, and the pipeline's share of the global batch."""

    microbatches: int = Field(ge=1)
    microbatch: int = Field(ge=1, description="sequences per pipeline pass, whole stage")
    stages: list[StageDocument] = Field(min_length=1)


class StageForecast(LayersDocument):
    """Flat view of one stage: its decisions, simplified where it has one part, and its predictions."""

    embedding: bool
    head: bool
    island: str
    gpu: str
    gpus: int
    nodes: int = Field(description="nodes that hold its GPUs, whole or in part")
    microbatch_per_rank: int
    forward_s: float = Field(description="seconds per microbatch")
    backward_s: float
    gradient_sync_s: float = Field(description="per step, not hidden by the backward pass")
    tied_embeddings_s: float = Field(
        0.0,
        ge=0,
        description="per step, after that: gradients of a tied matrix, between first and last stage",
    )
    optimizer_s: float
    send_s: float = Field(description="seconds to hand one microbatch to the next stage")
    idle_fraction: float = Field(description="share of the step its compute stream waits")
    in_flight: int = Field(description="microbatches whose activations are held at peak")
    peak_memory_bytes: float = Field(description="as the driver shows it: what must fit")
    peak_memory_reserved_bytes: float = Field(0.0, ge=0, description="of it, held by the allocator")
    peak_memory_allocated_bytes: float = Field(0.0, ge=0, description="of that, in tensors")
    memory_capacity_bytes: float = Field(description="of the GPU, for all that runs on it")
    measured: bool = Field(description="times rest on measurements of this GPU kind, not on its family")
    limited_by: str = Field("", description="kernel class with the largest share of its critical path")
    limited_by_share: float = Field(0.0, description="that share, of one microbatch forward and backward")
    pipeline: int = Field(0, description="its pipeline")
    stage: int = Field(0, description="its place in the pipeline")
    part: int = Field(0, description="which part of the stage the row is of: one per GPU kind")
    runs: int = Field(1, description="runs of layers with a layout of their own; the longest one is shown")
    chunks: list[tuple[int, int]] = Field(
        [],
        description="of an interleaved stage: runs of blocks [start, stop), others hold those between",
    )


class PartialPlanCounts(Document):
    """Counts of partial plans in the search."""

    asked: int
    redundant: int
    imbalanced: int
    infeasible: int
    dominated: int
    composed: int = 0
    played: int = 0


class GpuKind(Document):
    """What the predicted times of one GPU kind are based on."""

    gpu: str
    measured: bool = Field(description="kernels were measured on this kind of GPU")
    rests_on: str = Field(description="the same in words: kernel tables, a sibling's, an assumption")


class OtherPlan(Document):
    """A plan beside the best one."""

    step_s: float
    gpus_used: int
    summary: str


class Alternative(OtherPlan):
    """Another good plan, and how it compares with the best one."""

    ratio_low: float = Field(1.0, description="90 % interval of its step over the best plan's")
    ratio_high: float = Field(1.0, description="errors that both plans share cancel in it")
    told_apart: bool = Field(True, description="false: the interval does not say which of the two is faster")
    microbatch: int
    peak_memory_fraction: float = Field(description="fullest stage: peak over capacity")
    launchable_with: list[str] = Field([], description="frameworks that can be told this plan as it is")


class LaunchableDocument(OtherPlan):
    """A plan that frameworks can launch, shown beside the best plan, which they cannot."""

    ratio: float = Field(description="its step over the plan's")
    told_apart: bool = Field(description="false: the interval does not say which of the two is faster")
    frameworks: list[str] = Field(description="names that `plan --for` and `export --to` take")
    schedule: str
    lacking: list[str] = Field(
        default=[], description="what the first of the frameworks lacks for the plan beside it"
    )


class LiveputDocument(Document):
    """`plan --losses`: speed expected after an hour of node losses without replacement."""

    losses_per_hour: float = Field(ge=0, description="nodes of the cluster that go, in the mean")
    liveput_tokens_per_s: float = Field(ge=0, description="tokens/s of the replicas that are left, expected")
    share_left: float = Field(ge=0, le=1 + 1e-9, description="of tokens_per_s")
    fastest_step_s: float = Field(gt=0, description="step of the plan made for speed alone")
    fastest_liveput_tokens_per_s: float = Field(ge=0, description="and its liveput")
    compared: int = Field(ge=1, description="plans compared")


class RunDocument(Document):
    """Time, cost and energy of training on a number of tokens with a plan."""

    tokens: float
    goodput: float = Field(description="share of the time that is useful under failures")
    days: float
    days_low: float = Field(description="90 % interval")
    days_high: float
    finish_within_days: float | None = None
    in_time: bool | None = Field(None, description="whether it is done within the days asked for")
    usd: float | None = Field(
        None, description="rent of all nodes of the cluster; null: a price is not known"
    )
    usd_low: float | None = None
    usd_high: float | None = None
    usd_per_hour: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_million_tokens_low: float | None = None
    usd_per_million_tokens_high: float | None = None
    mwh: float | None = Field(None, description="of GPUs and hosts, with PUE; null: power not known")
    mwh_low: float | None = None
    mwh_high: float | None = None
    kw: float | None = Field(None, description="mean draw of the cluster, without PUE")
    co2_t: float | None = Field(None, description="tonnes of CO2 equivalent; null: no intensity is given")
    basis: list[str] = Field(description="prices, failures and power that were taken, with their sources")


class PlanAnswer(VersionedAnswer):
    """Base of answers that are plans: they say what made them."""

    package_version: str = Field(description="version of tangram-sim that wrote it")


@described
class PlanDocument(PlanAnswer):
    """What `plan --json`, `estimate --json` and plan files hold."""

    digest: str = Field("", description="of all other keys but planning times, as written; may be missing")
    hwdb_hash: str = Field(description="digest of the database rows read")
    hwdb_rows: list[str] = Field([], description="rows of GPUs and links it rests on, like `gpus/T4`")
    model: dict[str, Any] = Field(description="the model's sizes, as a model file has them")
    cluster: dict[str, Any] = Field(description="the cluster, as a cluster file has it")
    job: JobDocument = Field(description="what one step trains")
    slow: SlowDocument | None = Field(None, description="what ran slow when it was played; null: nothing")
    liveput: LiveputDocument | None = Field(None, description="of `plan --losses`, by which it was chosen")
    feasible: bool = Field(description="whether every stage fits its GPUs")
    step_s: float = Field(gt=0, description="one optimizer step")
    step_s_low: float = Field(0.0, ge=0, description="90 % interval of step_s; 0 in files without one")
    step_s_high: float = Field(0.0, ge=0, description="the other end of that interval")
    tokens_per_s: float = Field(description="tokens trained, all GPUs together")
    tokens_per_s_per_gpu: float = Field(description="the same for each GPU used")
    mfu: float = Field(description="model FLOPs over the dense peak of the GPUs used")
    mfu_cluster: float = Field(description="the same over all GPUs, the idle ones at a peak that they have")
    schedule: str = Field(description="order of microbatches in the pipeline, like 1f1b")
    microbatch: int = Field(description="sequences of one pipeline pass, whole stage")
    microbatch_per_rank: int = Field(description="largest share of any stage")
    microbatches: int = Field(description="pipeline passes of a step")
    gpus_used: int = Field(description="GPUs that compute")
    gpus_total: int = Field(description="GPUs of the cluster")
    bubble_fraction: float = Field(description="idle share of the GPUs used")
    peak_memory_bytes: float = Field(
        description="of the fullest GPU, relative to its capacity, as the driver shows it: what must fit"
    )
    peak_memory_reserved_bytes: float = Field(0.0, ge=0, description="of it, held by the allocator")
    peak_memory_allocated_bytes: float = Field(0.0, ge=0, description="of that, in tensors")
    peak_memory_bytes_high: float = Field(
        0.0, ge=0, description="exceeded in one case of twenty; 0 in files without an interval"
    )
    memory_margin: float = Field(
        0.0, ge=0, le=1, description="share of every GPU's memory that the search left free"
    )
    lower_bound_step_s: float = Field(
        description="nearest bound known under the same cost model; `lower_bound_covers` says on which plans"
    )
    lower_bound_covers: str = Field(EVERY_PLAN, description="which plans cannot beat `lower_bound_step_s`")
    work_bound_step_s: float = Field(
        0.0, ge=0, description="no plan on this cluster can beat this; 0 in files without it"
    )
    pipeline_bound_step_s: float = Field(
        0.0, ge=0, description=f"{SINGLE_PIPELINES} cannot beat this; 0: not known"
    )
    planning_s: float | None = Field(None, description="that the search took")
    planning_cpu_s: float | None = Field(None, description="of all processes of the search")
    partial_plans: PartialPlanCounts | None = Field(None, description="what the search looked at")
    pipelines: list[PipelineDocument] = Field(description="the decisions: pipelines side by side")
    stages: list[StageForecast] = Field(description="the predictions: a row a part of a stage")
    gpu_kinds: list[GpuKind] = Field([], description="of the GPUs used, what their times rest on")
    alternatives: list[Alternative] = Field([], description="other good plans, and what they trade")
    launchable_with: list[str] = Field([], description="frameworks that can be told this plan as it is")
    nearest_launchable: LaunchableDocument | None = Field(
        None, description="the fastest plan found that a framework can launch, where this one is not"
    )
    power: PowerDocument | None = Field(None, description="of questions about power; null: none was asked")
    run: RunDocument | None = Field(
        None, description="of `--tokens`: what training so many takes; not in plans made without"
    )
    findings: list[Finding] = Field([], description="what was found out beside the plan, with codes")
    notes: list[str] = Field([], description="the findings in words")

    def busy_of_ranks(self) -> dict[int, float]:
        """Share of the step in which each rank of the plan computes, by rank."""
        return {
            rank: 1.0 - stage.idle_fraction
            for stage in self.stages
            for rank in self.pipelines[stage.pipeline].stages[stage.stage].parts[stage.part].ranks
        }

    def with_findings(self, findings: Sequence[Finding]) -> Self:
        """The document with these findings in place of its own."""
        return self.with_fields(findings=[*findings], notes=[each.text for each in findings])


class IslandDocument(Document):
    """One island of `islands --json`."""

    name: str
    gpu: str
    nodes: int
    gpus: int
    reason: str
    compute_flop_per_s: float
    memory_bytes: float = Field(description="as sold")
    usable_memory_bytes: float = Field(
        description="what the driver hands out: memory_capacity_bytes of plans"
    )
    planned_memory_bytes: float = Field(description="what of it a plan may fill")
    memory_bytes_per_s: float
    intra_link: str
    intra_bytes_per_s: float
    nic_bytes_per_s: float


class IslandsDocument(AnswerDocument):
    """`islands --json`."""

    cluster: str
    dtype: str
    islands: list[IslandDocument]
    assumed: list[str] = Field([], description="what is assumed of nodes, by group")


class ModelDocument(Document):
    """`models show --json`."""

    name: str
    family: str
    parameters: int
    active_parameters: int
    layers: int
    hidden: int
    vocab: int
    tied: bool
    max_seq: int
    blocks: list[dict[str, Any]]
    source: str
