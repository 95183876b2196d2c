"""What DeepSpeed's pipeline engine does to single runs beyond the code of its stack (`training/stacks.py`).

Sources: microsoft/DeepSpeed v0.3 deepspeed/runtime/pipe/engine.py and p2p.py (instructions run one after the
other; a send is a broadcast in a group of two on the compute stream). Sailor's fork is of the same line.

Which algorithm NCCL takes: NVIDIA/nccl 01afd20 (2020) src/graph/tuning.cc. Where one Ethernet port bounds
both, it counts n/(2(n-1)) of the port's rate for a ring and 0.45 for a tree: large reductions go round a ring
over two nodes as well, where a tree would be faster.
"""

from dataclasses import replace

from tangram_sim.training.step.boundary import boundary_s, flows
from tangram_sim.training.step.lowered import LoweredStep, Lowering
from tangram_validate.published.defaults import Software

MASK_BYTES = 2.0  # of an element of the attention mask, which NCCL carries as fp16
WITH_CONSTANTS = ("amp",)  # stacks with rows fitted in lockstep


def on_pipeline_engine(software: Software) -> bool:
    """Whether neighbours meet between passes (`mixed_runs/lockstep.py`): all that names DeepSpeed.

    On equal GPUs that takes as long as 1F1B.
    """
    return "deepspeed" in software.name.lower()


def stack_under(software: Software, stack: str) -> str:
    """The stack whose rows apply in lockstep: constants fitted with these meetings hold only with them."""
    return f"{stack}-pipe" if on_pipeline_engine(software) and stack in WITH_CONSTANTS else stack


def masks_sent(software: Software) -> bool:
    """Whether the mask goes forward too, and whole gradients back from every tensor rank.

    The examples of 2020 do so, which AMP's fork is of.
    """
    return software.fork == "amp"


def with_masks(step: LoweredStep, lowering: Lowering) -> LoweredStep:
    """The step with sends from every tensor-parallel rank to its counterpart in the next stage.

    Forward, hidden states are partitioned over the ranks, and each also sends the causal mask of one sequence
    (GPT2ModelPipe passes both on); backward every rank sends the whole gradient (is_pipe_partitioned,
    is_grad_partitioned). Where stages block on sends, passes take what that is longer.
    """
    job, stages, times = lowering.prices.job, step.pipeline.stages, step.times
    sends = times.send_forward_s.copy(), times.send_backward_s.copy()
    passes = times.forward_s.copy(), times.backward_input_s.copy()
    for boundary in range(len(stages) - 1):
        before, after = stages[boundary], stages[boundary + 1]
        moving = flows(before, after)
        width = max(part.layouts[-1].layout.tp for part in before.parts)
        replicas = sum(part.layouts[-1].layout.dp for part in before.parts)
        mask = width * replicas * job.seq * job.seq * MASK_BYTES
        plain = boundary_s(moving, step.placement, step.boundary_bytes)
        for way, size in enumerate((step.boundary_bytes + mask, width * step.boundary_bytes)):
            seconds = boundary_s(moving, step.placement, size)
            if job.code.blocks_on_sends:
                passes[way][boundary + way] += seconds - plain
            else:
                sends[way][boundary] = seconds
    return replace(
        step,
        times=replace(
            times,
            forward_s=passes[0],
            backward_input_s=passes[1],
            send_forward_s=sends[0],
            send_backward_s=sends[1],
        ),
    )
