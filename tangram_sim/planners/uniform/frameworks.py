"""Capabilities of training frameworks by version, and the reasons why one cannot run a uniform plan.

Read from their argument parsers and engines: Megatron-LM core_v0.16.1 `megatron/training/arguments.py` and
`megatron/core/transformer/transformer_config.py`, TorchTitan 0.2.2 and 0.3.0 `torchtitan/config` and
`torchtitan/distributed/parallel_dims.py`, DeepSpeed 0.19.8 `PipelineModule`, `PipelineEngine` and AutoEP,
FlagScale 0.8.0 `flagscale/train/hetero/parallel_context.py`. Planning, export and checks read these rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tangram_sim.errors import unknown_name
from tangram_sim.models import Experts, has_experts
from tangram_sim.planners.uniform.framework_models import AUTOEP_PRESETS, attentions, model_objections
from tangram_sim.planners.uniform.meshes import mesh_objections
from tangram_sim.planners.uniform.shape import UniformPlan, uniform_view, unlike
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan


@dataclass(frozen=True)
class Framework:
    """What one version of a framework supports. `words` explains, by rule, what it offers instead."""

    name: str
    title: str
    version: str
    schedules: tuple[str, ...]  # of pipelines of two stages and more
    dtypes: tuple[str, ...]
    optimizers: tuple[str, ...]
    zero: tuple[int, ...]  # ZeRO stages
    zero_with_stages: tuple[int, ...]  # of them, those that go with pipeline stages
    zero_with_context: tuple[int, ...]  # and with context parallelism; () where there is none
    zero_with_tensor: tuple[int, ...]  # and with tensor parallelism; () where stages have none
    recompute: tuple[str, ...]
    context: bool  # ring or all-gather context parallelism
    experts: bool  # expert parallelism by configuration
    experts_shard_states: bool  # its expert-parallel ranks are ranks that also shard states
    experts_with_tensor: bool  # experts split over tensor-parallel ranks within an expert-parallel one
    experts_with_stages: bool  # expert parallelism together with pipeline stages
    uneven_stages: bool  # stages of unequal depth
    unequal_stages: bool  # stages of unequal degrees
    tensor_with_stages: bool  # tensor parallelism together with pipeline stages
    sequence_parallel: tuple[bool, ...]  # with tensor parallelism: always (True,), never (False,), or either
    shared_kv_heads: bool  # fewer key/value heads than tensor-parallel ranks, which then share them
    context_with_sinks: bool  # context parallelism of attention with sinks
    halves_context: bool  # each context-parallel rank takes two pieces of a sequence
    tied_with_stages: bool  # one matrix for embedding and head, on the first and the last stage
    words: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def chunks(self) -> bool:
        """Whether a stage may hold several chunks."""
        return "interleaved" in self.schedules

    @property
    def label(self) -> str:
        """Title and version, as messages show them."""
        return f"{self.title} {self.version}"


MEGATRON = Framework(
    name="megatron",
    title="Megatron-LM",
    version="0.16.1",
    schedules=("1f1b", "interleaved"),
    dtypes=("bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"),
    optimizers=("adamw", "adam", "sgd", "momentum"),
    zero=(0, 1, 2, 3),
    zero_with_stages=(0, 1, 2, 3),
    zero_with_context=(0, 1, 2, 3),
    zero_with_tensor=(0, 1, 2, 3),
    recompute=("none", "selective", "full"),
    context=True,
    experts=True,
    experts_shard_states=False,
    experts_with_tensor=True,
    experts_with_stages=True,
    uneven_stages=True,
    unequal_stages=False,
    tensor_with_stages=True,
    sequence_parallel=(True, False),
    shared_kv_heads=True,
    context_with_sinks=True,
    halves_context=True,
    tied_with_stages=True,
    words=MappingProxyType(
        {
            "schedules": "1f1b and interleaved are what it has",
            "optimizers": "adam (adamw) and sgd are what it has",
        }
    ),
)
_TITAN_WORDS = {
    "schedules": "1f1b, gpipe, interleaved are what it has; `to=torch-pipeline-csv` writes the order "
    "of passes for PyTorch's own runtime",
    "dtypes": "bf16 and fp32 are what its configuration has",
    "optimizers": "its recipes take AdamW",
    "zero": "it shards as FSDP does (stage 2 or 3) or replicates",
    "zero_with_context": "it shards over cp ranks, too (stage 2 or 3)",
}
TORCHTITAN = Framework(
    name="torchtitan",
    title="TorchTitan",
    version="0.3.0",
    schedules=("1f1b", "gpipe", "interleaved"),
    dtypes=("bf16", "fp32"),
    optimizers=("adamw", "adam"),
    zero=(0, 2, 3),
    zero_with_stages=(0, 2, 3),
    # `ParallelDims.fsdp_enabled`: it shards over dp_shard x cp wherever one of them is above 1.
    zero_with_context=(2, 3),
    zero_with_tensor=(0, 2, 3),
    recompute=("none", "selective", "full"),
    context=True,
    experts=True,
    experts_shard_states=True,
    experts_with_tensor=False,  # its expert-parallel ranks are taken from tensor-parallel ones
    experts_with_stages=True,
    uneven_stages=True,
    unequal_stages=False,
    tensor_with_stages=True,
    sequence_parallel=(True, False),
    shared_kv_heads=False,
    context_with_sinks=True,
    halves_context=True,
    tied_with_stages=False,
    words=MappingProxyType(_TITAN_WORDS),
)
# Without FSDP it has plain DDP, which it refuses beside any other degree, and mixed precision of its own.
_TITAN_REPLICAS = "it replicates (stage 0) only without any other degree above 1"
TORCHTITAN_0_2 = replace(
    TORCHTITAN,
    version="0.2.2",
    zero_with_stages=(2, 3),
    zero_with_tensor=(2, 3),
    experts_with_tensor=True,
    context_with_sinks=False,
    sequence_parallel=(True,),
    words=MappingProxyType(
        _TITAN_WORDS | {"zero_with_stages": _TITAN_REPLICAS, "zero_with_tensor": _TITAN_REPLICAS}
    ),
)
DEEPSPEED = Framework(
    name="deepspeed",
    title="DeepSpeed",
    version="0.19.8",
    schedules=("1f1b",),
    dtypes=("bf16", "fp16", "fp32"),
    optimizers=("adamw", "adam", "lamb", "sgd", "lion"),
    zero=(0, 1, 2, 3),
    zero_with_stages=(0, 1),
    zero_with_context=(),
    zero_with_tensor=(0, 1, 2),
    recompute=("none", "full"),
    context=False,
    experts=True,
    experts_shard_states=False,
    experts_with_tensor=False,
    experts_with_stages=False,
    uneven_stages=False,
    unequal_stages=False,
    tensor_with_stages=False,
    sequence_parallel=(False,),
    shared_kv_heads=False,
    context_with_sinks=False,
    halves_context=False,
    tied_with_stages=True,
    words=MappingProxyType(
        {
            "schedules": "1f1b is the one it has",
            "context": "it has another kind (Ulysses)",
            "recompute": "whole layers are what it checkpoints",
        }
    ),
)
FLAGSCALE = replace(
    MEGATRON,
    name="flagscale",
    title="FlagScale",
    version="0.8.0",
    schedules=("1f1b",),
    zero=(0, 1),
    zero_with_stages=(0, 1),
    zero_with_context=(),
    zero_with_tensor=(0, 1),
    recompute=("none", "full"),
    context=False,
    unequal_stages=True,
    words=MappingProxyType(
        {
            "schedules": "its stages of unequal degrees take 1f1b",
            "context": "its stages of unequal degrees take cp 1",
            "recompute": "it recomputes whole layers, stage by stage",
            "optimizers": "adam (adamw) and sgd are what it has",
        }
    ),
)
# Every version that is known, the newest of each framework first.
VERSIONS = (MEGATRON, TORCHTITAN, TORCHTITAN_0_2, DEEPSPEED, FLAGSCALE)
FRAMEWORKS = {item.name: item for item in (MEGATRON, TORCHTITAN, DEEPSPEED, FLAGSCALE)}


def framework_named(name: str, version: str = "") -> Framework:
    """The rules of a framework's version, by default its newest. Raises UnknownNameError."""
    if name not in FRAMEWORKS:
        raise unknown_name("framework", name, FRAMEWORKS)
    known = {framework.version: framework for framework in VERSIONS if framework.name == name}
    if version and version not in known:
        raise unknown_name(f"version of {FRAMEWORKS[name].title}", version, known)
    return known[version] if version else FRAMEWORKS[name]


def objections(framework: Framework, plan: UniformPlan) -> list[str]:
    """Reasons why a framework cannot run a uniform plan or its model; empty where it can."""
    return [
        *model_objections(framework.name, framework.version, plan.model),
        *rule_objections(framework, plan),
    ]


def rule_objections(framework: Framework, plan: UniformPlan) -> list[str]:
    """Reasons why a framework cannot run a uniform plan: degrees, schedule, precision, ZeRO."""
    shape, job, words = plan.shape, plan.job, framework.words
    staged = shape.pp > 1

    def has(rule: str, known: tuple[object, ...]) -> str:
        return words.get(rule, f"{', '.join(map(str, known))} are what it has")

    found = []
    sizes = {sum(stop - start for start, stop in chunks) for chunks in shape.layers}
    if len(sizes) > 1 and not framework.uneven_stages:
        found.append(f"stages of unequal depth ({', '.join(map(str, sorted(sizes)))} blocks)")
    if staged and job.schedule not in framework.schedules:
        found.append(f"schedule {job.schedule}: {has('schedules', framework.schedules)}")
    if framework.unequal_stages and any(len(chunks) != 1 for chunks in shape.layers):
        found.append("a stage of the embedding or the head alone: each of its stages holds layers")
    found += _zero_objections(framework, plan, has)
    if shape.cp > 1 and not framework.context:
        found.append(f"context parallelism (cp {shape.cp}): {words.get('context', 'it has none')}")
    found += _expert_objections(framework, plan)
    found += _tensor_objections(framework, plan)
    if plan.layout.recompute not in framework.recompute:
        found.append(f"{plan.layout.recompute} recomputation: {has('recompute', framework.recompute)}")
    if job.dtype not in framework.dtypes:
        found.append(f"precision {job.dtype}: {has('dtypes', framework.dtypes)}")
    if job.optimizer not in framework.optimizers:
        found.append(f"optimizer {job.optimizer}: {has('optimizers', framework.optimizers)}")
    if staged and plan.model.tied and not framework.tied_with_stages:
        found.append("one matrix for embedding and head on different pipeline stages")
    if shape.cp > 1 and framework.context and plan.model.details.sinks and not framework.context_with_sinks:
        found.append(f"cp {shape.cp} with attention sinks")
    if shape.cp > 1 and framework.context and framework.halves_context and job.seq % (2 * shape.cp):
        found.append(f"cp {shape.cp}: twice that does not divide the sequence of {job.seq} tokens")
    return found


def _zero_objections(
    framework: Framework, plan: UniformPlan, has: Callable[[str, tuple[object, ...]], str]
) -> list[str]:
    shape, zero, found = plan.shape, plan.layout.zero_stage, []
    if zero not in framework.zero:
        return [f"ZeRO stage {zero}: {has('zero', framework.zero)}"]
    for given, rule, known, what in (
        (shape.pp > 1, "zero_with_stages", framework.zero_with_stages, "pipeline stages"),
        (shape.tp > 1, "zero_with_tensor", framework.zero_with_tensor, "tensor parallelism"),
        (
            shape.cp > 1 and framework.context,
            "zero_with_context",
            framework.zero_with_context,
            "context parallelism",
        ),
    ):
        if given and zero not in known:
            found.append(f"ZeRO {zero} together with {what}: {has(rule, known)}")
    if framework.name == "deepspeed" and not zero and plan.job.dtype == "bf16" and shape.dp > 1:
        found.append(
            "ZeRO 0 in bf16: its gradients are bf16 then, those of the plan fp32; ZeRO 1 keeps them fp32"
        )
    return found


def _expert_objections(framework: Framework, plan: UniformPlan) -> list[str]:
    shape, found = plan.shape, []
    if shape.ep > 1:
        if not framework.experts:
            return [f"expert parallelism (ep {shape.ep}): {framework.words.get('experts', 'it has none')}"]
        if shape.tp > 1 and not framework.experts_with_tensor:
            found.append(f"ep {shape.ep} with tp {shape.tp}: it splits no expert over tensor-parallel ranks")
        if shape.pp > 1 and not framework.experts_with_stages:
            found.append(f"ep {shape.ep} together with pipeline stages")
        if framework.name == "deepspeed" and plan.model.family not in AUTOEP_PRESETS:
            found.append(f"ep {shape.ep}: its AutoEP has no preset for {plan.model.family}")
        sharded = shape.dp if plan.layout.zero_stage or not framework.experts_shard_states else 1
        if sharded * shape.cp % shape.ep:
            over = "dp_shard x cp" if framework.experts_shard_states else "dp x cp"
            found.append(f"ep {shape.ep} does not divide {over}, {sharded} x {shape.cp}")
    sparse = [block.feed_forward for block in plan.model.blocks if isinstance(block.feed_forward, Experts)]
    if framework.name in ("megatron", "flagscale") and shape.tp > 1 and any(part.bias for part in sparse):
        found.append(f"tp {shape.tp} with biases in experts: it splits no such expert over ranks")
    return found


def _tensor_objections(framework: Framework, plan: UniformPlan) -> list[str]:
    shape, model, found = plan.shape, plan.model, []
    sequences = plan.layout.sequence_parallel
    if shape.tp == 1:
        return ["sequence parallelism with tp 1"] if sequences else []
    if shape.pp > 1 and not framework.tensor_with_stages:
        found.append(f"tp {shape.tp} together with pipeline stages: no configuration of it has both")
    if sequences not in framework.sequence_parallel:
        found.append(
            "tensor parallelism without sequence parallelism: it always has both"
            if framework.sequence_parallel == (True,)
            else "sequence parallelism: it has none"
        )
    elif not sequences and framework.name in ("megatron", "flagscale") and has_experts(model):
        found.append(f"experts with tp {shape.tp} and no sequence parallelism")
    tokens = shape.tp * (2 * shape.cp if shape.cp > 1 else 1)
    if sequences and plan.job.seq % tokens:
        found.append(f"tp x 2 cp ({tokens}) does not divide the sequence of {plan.job.seq} tokens")
    for heads, kv_heads in sorted({(attention.heads, attention.kv_heads) for attention in attentions(model)}):
        shared = framework.shared_kv_heads and shape.tp % kv_heads == 0
        if heads % shape.tp or (kv_heads % shape.tp and not shared):
            found.append(
                f"tp {shape.tp} with {heads} attention heads and {kv_heads} key/value heads, on stages "
                "of the embedding or the head alone, too"
            )
    return found


def takes(framework: Framework, job: Job, *, staged: bool = False) -> bool:
    """Whether a framework supports a job's dtype, optimizer and training; `staged`: and its schedule."""
    known = job.dtype in framework.dtypes and job.optimizer in framework.optimizers
    return known and job.trainable == 1.0 and (not staged or job.schedule in framework.schedules)


def plan_objections(framework: Framework, plan: Plan, *, with_model: bool = True) -> list[str]:
    """Reasons why a framework cannot run a plan as it is; empty where it can.

    `with_model` False: do not check the model.
    """
    reasons = list(model_objections(framework.name, framework.version, plan.model)) if with_model else []
    if framework.unequal_stages:
        return reasons + mesh_objections(plan, lambda stage: rule_objections(framework, stage))
    different = unlike(plan)
    return reasons + (different or rule_objections(framework, uniform_view(plan)))


def launching(plan: Plan) -> tuple[str, ...]:
    """Names of the frameworks whose newest version can run a plan as it is."""
    if plan.job.trainable < 1.0:
        return ()
    return tuple(name for name, framework in FRAMEWORKS.items() if not plan_objections(framework, plan))
