"""The systems of the figures: what each searches under the paper's restrictions, and on which software."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from benchmarks.tangram_paper.compare import PUBLISHED
from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Experts, Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.coarse.profile import LayerTable, Profile, SimulatedProfile
from tangram_sim.planners.peers.metis import Metis
from tangram_sim.planners.peers.metis_published import DEFECTS, MetisPublished
from tangram_sim.planners.peers.sailor import Sailor
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.usable import usable_islands
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner
from tangram_sim.questions.plan import PRESETS
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Part, Plan, Stage


@dataclass(frozen=True, slots=True)
class Software:
    """What trained: the stack whose efficiency rows apply, its precision, and what it can be told to do."""

    stack: str
    dtype: str = "fp16"
    flash_attention: bool = False
    dropout: bool = True
    recompute: tuple[str, ...] = ("none", "selective", "full")
    sequence_parallel: bool | None = False  # None: free
    fixed: tuple[tuple[str, int], ...] = (("cp", 1), ("zero_stage", 0))


# Alpa: XLA; its benchmark trains `deterministic=True` (alpa-projects/alpa, benchmark_one_case_gpt_bert.py),
# and its rewriting of all-reduces gives sequence parallelism.
ALPA = Software("jax", dropout=False, recompute=("none",), sequence_parallel=None)
# Aceso: a Megatron-LM of 2022, before sequence parallelism.
ACESO = Software("megatron-lm")
# Metis and Sailor: Sailor's Megatron-DeepSpeed. Its launch script for this model on 16 GPUs says `--fp16`,
# no ZeRO, no flash attention, no checkpoints; its OPT block has no dropout (taoyanda/sailor, run_fp16.sh and
# opt_model.py). The rows of stack `sailor` describe that repository's published runs, which are in 32 bits.
DEEPSPEED = Software("megatron-deepspeed", dropout=False, recompute=("none",))
# Galvatron: PyTorch FSDP. Every public launch script of the paper's first author (taoyanda/Galvatron,
# models/moe/scripts) says `--mixed_precision bf16 --use-flash-attn --sequence-parallel --global_checkpoint 1`
# and ZeRO-2 or 3.
GALVATRON = Software(
    "fsdp",
    "bf16",
    flash_attention=True,
    recompute=("full",),
    sequence_parallel=None,
    fixed=(("cp", 1),),
)
# The same with what the paper leaves out, context and sequence parallelism: for our own systems.
OURS = replace(ACESO, sequence_parallel=None, fixed=(("zero_stage", 0),))

Planned = tuple[Plan, int]  # a plan, and how many questions parallelizers were asked for it (0: not counted)


@dataclass(frozen=True, slots=True)
class Question:
    """A model on a cluster under the restrictions of a system."""

    model: Model
    cluster: Cluster
    job: Job
    constraints: Constraints
    hwdb: Hwdb


def question(
    software: Software, model: Model, cluster: Cluster, seq: int, hwdb: Hwdb, batch: int = 128
) -> Question:
    """The restrictions of the paper's presets, and the software's own."""
    gated = any(isinstance(b.feed_forward, Experts) and b.feed_forward.gated for b in model.blocks)
    # Galvatron counts the sequences of a microbatch for the whole stage: 32 chunks of 4 (Mixtral, Qwen3).
    whole = PRESETS["tangram-paper-moe"] if gated else 0
    per_rank = 0 if gated else PRESETS["tangram-paper"]
    allowed = Constraints(
        software.fixed, software.recompute, per_rank, software.sequence_parallel, microbatch=whole
    )
    job = Job(
        batch,
        seq,
        software.dtype,
        stack=software.stack,
        flash_attention=software.flash_attention,
        dropout=software.dropout,
    )
    return Question(model, cluster, job, allowed, hwdb)


def composed(parallelizer: str, order: tuple[str, ...] = ()) -> Callable[[Question], Planned]:
    """Tangram over a parallelizer: one pipeline, as in the paper."""

    def plan(asked: Question) -> Planned:
        wishes = SearchOptions(asked.constraints, order, parallelizer=parallelizer, replicate=False)
        found = tangram(asked.model, asked.cluster, asked.job, asked.hwdb, wishes)
        return found.ranked[0].plan, found.counts.asked

    return plan


def alone(parallelizer: str) -> Callable[[Question], Planned]:
    """A homogeneous parallelizer without Tangram: it plans as if all GPUs were the slowest kind."""

    def plan(asked: Question) -> Planned:
        seen = replace(asked, cluster=as_if_equal(asked.cluster, asked.job.dtype))
        made, questions = composed(parallelizer)(seen)
        return placed(made, asked.cluster), questions

    return plan


def turned_round(parallelizer: str) -> Callable[[Question], Planned]:
    """Tangram's plan with the last stage in front: stages keep their GPUs, layouts and numbers of layers."""

    def plan(asked: Question) -> Planned:
        made, questions = composed(parallelizer)(asked)
        return turned(made), questions

    return plan


def turned(plan: Plan) -> Plan:
    """The stages of a single pipeline back to front; it need not fit memory any more."""
    (pipeline,) = plan.pipelines
    stages, start = list[Stage](), 0
    for place, stage in enumerate(reversed(pipeline.stages)):
        ((first, last),) = stage.chunks
        shift = start - first
        parts = tuple(
            replace(
                part,
                layouts=tuple(
                    replace(run, layers=(run.layers[0] + shift, run.layers[1] + shift))
                    for run in part.layouts
                ),
            )
            for part in stage.parts
        )
        bounds = (start, last + shift)
        stages.append(Stage((bounds,), place == 0, place == len(pipeline.stages) - 1, parts))
        start = bounds[1]
    return replace(plan, pipelines=(replace(pipeline, stages=tuple(stages)),))


def as_if_equal(cluster: Cluster, dtype: str) -> Cluster:
    """The cluster that a homogeneous parallelizer sees: as many GPUs, each like the slowest one.

    Nodes are cut to the size that divides all of them; a node brings its share of the slowest NIC.
    """
    nodes = [group.node for group in cluster.groups]
    slowest = min(nodes, key=lambda node: node.gpu.peak_flop_per_s(dtype))
    gpus = gcd(*(node.gpus for node in nodes))
    seen = replace(
        slowest,
        gpu=replace(slowest.gpu, memory_bytes=min(node.gpu.memory_bytes for node in nodes)),
        gpus=gpus,
        nic_bytes_per_s=min(node.nic_bytes_per_s * gpus / node.gpus for node in nodes),
        bridges=tuple(pair for pair in slowest.bridges if max(pair) < gpus),
    )
    return Cluster(f"{cluster.name}, as if equal", (NodeGroup("g0", cluster.gpus // gpus, seen),))


def placed(plan: Plan, cluster: Cluster) -> Plan:
    """The decisions of a plan on another cluster of as many GPUs, rank for rank."""
    groups = [group.name for group in cluster.groups for _ in range(group.count * group.node.gpus)]

    def named(part: Part) -> Part:
        return replace(part, island="+".join(dict.fromkeys(groups[rank] for rank in part.ranks)))

    pipelines = tuple(
        replace(
            pipeline,
            stages=tuple(replace(stage, parts=tuple(map(named, stage.parts))) for stage in pipeline.stages),
        )
        for pipeline in plan.pipelines
    )
    return replace(plan, cluster=cluster, pipelines=pipelines)


@dataclass
class OneSize(SimulatedProfile):
    """A profile of microbatches of one size per rank: the others were not run."""

    sequences: int = 1

    def layers(self, kind: int, tp: int, sequences: int) -> LayerTable | None:
        """The rows of that size."""
        return super().layers(kind, tp, sequences) if sequences == self.sequences else None


@dataclass(frozen=True)
class RestrictedPrice(Price):
    """What a planner of whole clusters may ask where only microbatches of one size were profiled."""

    sequences: int = 1

    @cached_property
    def profile(self) -> Profile:
        """Layers of that size."""
        islands, _ = usable_islands(self.cluster, self.job, self.hwdb, SearchOptions())
        return OneSize(
            self.model,
            self.cluster,
            self.job,
            self.hwdb,
            islands,
            self.lowering.prices,
            sequences=self.sequences,
        )


def whole(planner: WholeClusterPlanner) -> Callable[[Question], Planned]:
    """A planner of whole clusters that profiled microbatches of the paper's size only."""

    def plan(asked: Question) -> Planned:
        size = asked.constraints.microbatch_per_rank
        price = RestrictedPrice(asked.model, asked.cluster, asked.job, asked.hwdb, sequences=size)
        return planner.plan(asked.model, asked.cluster, asked.job, price), 0

    return plan


@dataclass(frozen=True, slots=True)
class System:
    """One system of the figures."""

    software: Software
    plan: Callable[[Question], Planned]


SYSTEMS = {
    "Metis": System(DEEPSPEED, whole(Metis())),
    PUBLISHED: System(DEEPSPEED, whole(MetisPublished(trusted=True))),
    **{
        f"{PUBLISHED}, {defect} mended": System(DEEPSPEED, whole(MetisPublished(defect, trusted=True)))
        for defect in DEFECTS
    },
    "Sailor": System(DEEPSPEED, whole(Sailor())),
    "Alpa": System(ALPA, alone("alpa")),
    "Aceso": System(ACESO, alone("aceso")),
    "Galvatron-uniform": System(GALVATRON, alone("galvatron-uniform")),
    "Tangram-Alpa": System(ALPA, composed("alpa")),
    "Tangram-Aceso": System(ACESO, composed("aceso")),
    "Tangram": System(GALVATRON, composed("galvatron-uniform")),
    "Tangram, A100s in front": System(GALVATRON, composed("galvatron-uniform", ("g0", "g1"))),
    "Tangram, its plan turned round": System(GALVATRON, turned_round("galvatron-uniform")),
    # Ours: the paper shows none of these.
    "Tangram-grid": System(OURS, composed("grid")),
    "Tangram-galvatron": System(OURS, composed("galvatron")),
}
