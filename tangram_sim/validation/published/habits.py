"""What a training framework does differently from the step template: DeepSpeed's pipeline engine.

Sources: microsoft/DeepSpeed v0.3 deepspeed/runtime/pipe/engine.py and p2p.py (instructions run one after the
other; gradients are reduced by `ReduceGrads` behind the last backward, tied ones in the type of activations;
a send is a broadcast in a group of two on the compute stream), DachengLi1/AMP examples/ds_config.json
("fp32_allreduce": true). Sailor's fork is of the same line.

Which algorithm NCCL takes: NVIDIA/nccl 01afd20 (2020) src/graph/tuning.cc. Where one Ethernet port bounds
both, it counts n/(2(n-1)) of the port's rate for a ring and 0.45 for a tree: large reductions go round a ring
over two nodes as well, where a tree would be faster.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.cost.collectives import all_reduce_s
from tangram_sim.training.schedules import StageTimes
from tangram_sim.training.stage.runs import LayerRun
from tangram_sim.training.stage.sharing import holders_by_atom
from tangram_sim.training.stage.state import parameters_per_rank
from tangram_sim.training.step.boundary import boundary_s, flows, tied_copies, tied_exchange_s
from tangram_sim.training.step.lowered import LoweredStep, Lowering
from tangram_sim.training.step.side_by_side import LoweredPlan
from tangram_sim.validation.published.defaults import Software
from tangram_sim.validation.published.stacks import stack_of

BUCKET = 5e8  # elements that `buffered_allreduce_fallback` (deepspeed/runtime/engine.py) reduces at once


@dataclass(frozen=True, slots=True)
class FrameworkTraits:
    """How a framework departs from overlapping everything it can."""

    reduces_last: bool = False  # gradients after the last backward, none beside it
    lockstep: bool = False  # neighbours meet between passes (`lockstep.py`)
    tied_as_computed: bool = False  # the tied matrix is exchanged in the width of activations
    rings_only: bool = False  # NCCL's tuner takes no trees between nodes of one Ethernet port
    sends_masks: bool = False  # the mask goes forward too, and whole gradients back from every tensor rank
    updates: float = 1.0  # an optimizer step over reading and writing every state once


PIPELINE_ENGINE = FrameworkTraits(True, True, True, True, True)
MASK_BYTES = 2.0  # of an element of the attention mask, which NCCL carries as fp16


# An optimizer of many small kernels (unscaling, norms, moments, casts): a layer's update in the profiles of
# eth-easl/sailor cf2c8e3 over one pass through memory, 10.0 to 14.6 on six GPU kinds (traces/sailor).
UPDATES = {"sailor": 11.7}


def habits_of(software: Software) -> FrameworkTraits:
    """Departures from the step template by framework name: Megatron-DeepSpeed runs on DeepSpeed's engine."""
    engine = PIPELINE_ENGINE if "deepspeed" in software.name.lower() else FrameworkTraits()
    return replace(engine, updates=UPDATES.get(stack_of(software), 1.0))


def habits_on_one_kind(software: Software, pp: int) -> FrameworkTraits:
    """The same for runs on equal GPUs, which need no lockstep: there it takes as long as 1F1B.

    DeepSpeed without a pipeline reduces gradients beside the backward pass; Megatron-DeepSpeed's models are
    pipelines of one stage. Only the examples of 2020, which AMP's fork is of, send the mask.
    """
    if not software.fork and software.family == "deepspeed" and pp == 1:
        return FrameworkTraits()
    found = habits_of(software)
    return found if software.fork == "amp" else replace(found, sends_masks=False)


WITH_CONSTANTS = ("amp",)  # stacks with rows fitted in lockstep


def stack_under(habits: FrameworkTraits, stack: str) -> str:
    """The stack whose efficiency rows apply: constants fitted with these habits hold only with them."""
    return f"{stack}-pipe" if habits.lockstep and stack in WITH_CONSTANTS else stack


def with_habits(lowered: LoweredPlan, lowering: Lowering, habits: FrameworkTraits) -> LoweredPlan:
    """The plan with gradients and tied matrices synchronised as the framework does it."""
    return LoweredPlan(
        tuple(step_with_habits(step, lowering, habits) for step in lowered.steps), lowered.layers
    )


def step_with_habits(step: LoweredStep, lowering: Lowering, habits: FrameworkTraits) -> LoweredStep:
    """The same of one pipeline."""
    times = step.times
    if habits.reduces_last:
        sync = np.array([_reduction_s(step, stage, lowering) for stage in range(len(step.prices))])
        if any(_zero_stages(step)):  # updated weights are gathered behind
            sync = np.maximum(times.sync_s, sync)
        times = replace(times, sync_s=sync)
    if habits.tied_as_computed and times.tied_s:
        times = replace(times, tied_s=_tied_s(step, lowering))
    if habits.updates != 1.0:
        times = replace(times, optimizer_s=times.optimizer_s * habits.updates)
    if habits.sends_masks:
        times = _whole_sends(step, times, lowering)
    return step if times is step.times else replace(step, times=times)


def _reduction_s(step: LoweredStep, stage: int, lowering: Lowering) -> float:
    """Seconds of all gradient reductions of a stage one after the other, on its slowest part."""
    noun, layers = step.pipeline.stages[stage], lowering.prices.model.layers
    holders = step.holders or holders_by_atom((step.pipeline,), layers)
    slowest = 0.0
    for part in noun.parts:
        chunks = lowering.parts.runs(noun, part, holders)
        slowest = max(slowest, sum(_run_reduction_s(run) for runs in chunks for run in runs))
    return slowest


def _zero_stages(step: LoweredStep) -> set[int]:
    """ZeRO stages of all layouts of a pipeline."""
    parts = (part for stage in step.pipeline.stages for part in stage.parts)
    return {one.layout.zero_stage for part in parts for one in part.layouts}


def _run_reduction_s(run: LayerRun) -> float:
    """Seconds to reduce the gradients of a run of atoms; those all-reduced are flattened into buckets."""
    setting, atoms = run.pricer.setting, run.atoms
    if setting.zero[0] or any(parameters_per_rank(setting, atom)[1].any() for atom in atoms):
        return sum(float(run.pricer.program(atom, "last").gradients[0]) for atom in atoms)
    count = sum(float(parameters_per_rank(setting, atom)[0][0]) for atom in atoms)
    buckets = max(1, math.ceil(count / BUCKET))
    size = count / buckets * setting.job.recipe.gradient_bytes * setting.job.trainable
    return setting.rates.data_exposed * buckets * float(all_reduce_s(size, setting.dp_group)[0])


def _whole_sends(step: LoweredStep, times: StageTimes, lowering: Lowering) -> StageTimes:
    """Times of sends of the engine, from every tensor-parallel rank to its counterpart in the next stage.

    Forward, hidden states are partitioned over the ranks, and each also sends the causal mask of one sequence
    (GPT2ModelPipe passes both on); backward every rank sends the whole gradient (is_pipe_partitioned,
    is_grad_partitioned).
    """
    job, stages = lowering.prices.job, step.pipeline.stages
    forward, backward = times.send_forward_s.copy(), times.send_backward_s.copy()
    for boundary in range(len(stages) - 1):
        before, after = stages[boundary], stages[boundary + 1]
        moving = flows(before, after)
        width = max(part.layouts[-1].layout.tp for part in before.parts)
        replicas = sum(part.layouts[-1].layout.dp for part in before.parts)
        size = width * step.boundary_bytes
        mask = width * replicas * job.seq * job.seq * MASK_BYTES
        forward[boundary] = boundary_s(moving, step.placement, step.boundary_bytes + mask)
        backward[boundary] = boundary_s(moving, step.placement, size)
    return replace(times, send_forward_s=forward, send_backward_s=backward)


def _tied_s(step: LoweredStep, lowering: Lowering) -> float:
    """The exchange in the width of the activations: fp32_allreduce concerns the one over replicas only."""
    model, job, stages = lowering.prices.model, lowering.prices.job, step.pipeline.stages
    size = tied_copies(stages[0], stages[-1]) * model.vocabulary_parameters * job.precision.activation_bytes
    return tied_exchange_s(lowering.placement, stages[0].ranks, stages[-1].ranks, size)
