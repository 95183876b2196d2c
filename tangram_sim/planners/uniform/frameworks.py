"""What training frameworks can express, as data: the rules that a uniform plan must keep to be launched.

Read from their argument parsers and engines: Megatron-LM `megatron/training/arguments.py` and megatron-core
0.16, TorchTitan 0.2 and 0.3 `torchtitan.config` and `torchtitan.distributed.parallel_dims`, DeepSpeed 0.19
`PipelineModule` and `PipelineEngine`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tangram_sim.planners.uniform.shape import UniformPlan, uniform_view, unlike
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan


@dataclass(frozen=True)
class Framework:
    """One framework's rules. `words` says, by rule, what it has instead of what a plan asks for."""

    name: str
    title: str
    schedules: tuple[str, ...]  # of pipelines of two stages and more
    dtypes: tuple[str, ...]
    optimizers: tuple[str, ...]
    zero: tuple[int, ...]  # ZeRO stages
    zero_with_stages: tuple[int, ...]  # of them, those that go with pipeline stages
    zero_with_context: tuple[int, ...]  # and with context parallelism; () where there is none
    recompute: tuple[str, ...]
    context: bool  # ring or all-gather context parallelism
    experts: bool  # expert parallelism by configuration
    experts_over_tp: bool  # its expert-parallel ranks may also be tensor-parallel ones
    uneven_stages: bool  # stages of unequal depth
    words: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def chunks(self) -> bool:
        """Whether a stage may hold several chunks."""
        return "interleaved" in self.schedules


MEGATRON = Framework(
    name="megatron",
    title="Megatron-LM",
    schedules=("1f1b", "interleaved"),
    dtypes=("bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"),
    optimizers=("adamw", "adam", "sgd", "momentum"),
    zero=(0, 1, 2, 3),
    zero_with_stages=(0, 1, 2, 3),
    zero_with_context=(0, 1, 2, 3),
    recompute=("none", "selective", "full"),
    context=True,
    experts=True,
    experts_over_tp=False,
    uneven_stages=True,
    words={
        "schedules": "1f1b and interleaved are what it has",
        "optimizers": "adam (adamw) and sgd are what it has",
    },
)
TORCHTITAN = Framework(
    name="torchtitan",
    title="TorchTitan",
    schedules=("1f1b", "gpipe", "interleaved"),
    dtypes=("bf16", "fp32"),
    optimizers=("adamw", "adam"),
    zero=(0, 2, 3),
    zero_with_stages=(0, 2, 3),
    # `ParallelDims.fsdp_enabled`: it shards over dp_shard x cp wherever one of them is above 1.
    zero_with_context=(2, 3),
    recompute=("none", "selective", "full"),
    context=True,
    experts=True,
    experts_over_tp=True,
    uneven_stages=True,
    words={
        "schedules": "1f1b, gpipe, interleaved are what it has; `to=torch-pipeline-csv` writes the order "
        "of passes for PyTorch's own runtime",
        "dtypes": "bf16 and fp32 are what its configuration has",
        "optimizers": "its recipes take AdamW",
        "zero": "it shards as FSDP does (stage 2 or 3) or replicates",
        "zero_with_context": "it shards over cp ranks, too (stage 2 or 3)",
    },
)
DEEPSPEED = Framework(
    name="deepspeed",
    title="DeepSpeed",
    schedules=("1f1b",),
    dtypes=("bf16", "fp16", "fp32"),
    optimizers=("adamw", "adam", "lamb", "sgd", "lion"),
    zero=(0, 1, 2, 3),
    zero_with_stages=(0, 1),
    zero_with_context=(),
    recompute=("none", "full"),
    context=False,
    experts=False,
    experts_over_tp=False,
    uneven_stages=False,
    words={
        "schedules": "1f1b is the one it has",
        "context": "it has another kind (Ulysses)",
        "experts": "an argument of its MoE layer, not configuration",
        "recompute": "whole layers are what it checkpoints",
    },
)
FRAMEWORKS = {one.name: one for one in (MEGATRON, TORCHTITAN, DEEPSPEED)}


def objections(framework: Framework, plan: UniformPlan) -> list[str]:
    """Every rule of a framework that a uniform plan breaks, in words."""
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
    if plan.zero_stage not in framework.zero:
        found.append(f"ZeRO stage {plan.zero_stage}: {has('zero', framework.zero)}")
    elif staged and plan.zero_stage not in framework.zero_with_stages:
        found.append(f"ZeRO {plan.zero_stage} together with pipeline stages")
    elif shape.cp > 1 and framework.context and plan.zero_stage not in framework.zero_with_context:
        how = has("zero_with_context", framework.zero_with_context)
        found.append(f"ZeRO {plan.zero_stage} together with context parallelism: {how}")
    if shape.cp > 1 and not framework.context:
        found.append(f"context parallelism (cp {shape.cp}): {words.get('context', 'it has none')}")
    if shape.ep > 1 and not framework.experts:
        found.append(f"expert parallelism (ep {shape.ep}): {words.get('experts', 'it has none')}")
    elif shape.ep > 1:
        ranks = shape.dp * shape.cp * (shape.tp if framework.experts_over_tp else 1)
        if ranks % shape.ep:
            over = "dp x cp x tp" if framework.experts_over_tp else f"dp {shape.dp} x cp {shape.cp}"
            found.append(f"ep {shape.ep} does not divide {over}")
    if plan.recompute not in framework.recompute:
        found.append(f"{plan.recompute} recomputation: {has('recompute', framework.recompute)}")
    if job.dtype not in framework.dtypes:
        found.append(f"precision {job.dtype}: {has('dtypes', framework.dtypes)}")
    if job.optimizer not in framework.optimizers:
        found.append(f"optimizer {job.optimizer}: {has('optimizers', framework.optimizers)}")
    if shape.tp == 1 and plan.sequence_parallel:
        found.append("sequence parallelism with tp 1")
    return found


def takes(framework: Framework, job: Job, *, staged: bool = False) -> bool:
    """Whether a framework has what a job asks for whatever the layout; `staged`: and its schedule."""
    known = job.dtype in framework.dtypes and job.optimizer in framework.optimizers
    return known and job.trainable == 1.0 and (not staged or job.schedule in framework.schedules)


def launching(plan: Plan) -> tuple[str, ...]:
    """Names of the frameworks that can be told a plan as it is."""
    if unlike(plan) or plan.job.trainable < 1.0:
        return ()
    view = uniform_view(plan)
    return tuple(name for name, framework in FRAMEWORKS.items() if not objections(framework, view))
