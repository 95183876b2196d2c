"""Whole passes of one block, timed: what kernel microbenchmarks do not see of eager training on a CPU.

Kernels timed alone leave out the host's part of autograd, views, copies, accumulated gradients, and what
neighbouring kernels do to the caches. Forward and backward of a real block at two sizes give the two numbers
that carry it: a factor on all kernels and seconds per kernel. Nothing is fitted to pipelines or steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tangram_sim.hwdb import Hwdb, cluster_from_dict
from tangram_sim.models import Model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.training.job import Job

SIZES = (1, 4)  # sequences of a pass
WARM, REPEATS = 3, 7  # the first passes meet memory that was never touched
LEAST_SCALE, MOST_SCALE = 0.2, 10.0  # beyond, the two sizes were not measured under the same load


@dataclass(frozen=True, slots=True)
class PassCost:
    """Two numbers that turn kernel times into pass times: a factor, and seconds per kernel launch."""

    time_scale: float
    launch_s: float


def time_block(
    model: Model, seq: int, sequences: int, *, repeats: int = 1, device: str = "cpu", dtype: str = "fp32"
) -> float:
    """Seconds of forward and backward of the model's first block, gradients accumulating.

    The lower quartile: load only adds.
    """
    import torch

    from tangram_validate.testbed.kernels import TORCH_DTYPES, clock, finish
    from tangram_validate.testbed.transformer import build_atom

    now = clock(device)

    block = build_atom(model, 1, 1, repeats).to(device)
    kind = TORCH_DTYPES[dtype]
    given = torch.randn(sequences, seq, model.hidden, device=device, requires_grad=True)
    taken = []
    for number in range(WARM + REPEATS):
        begun = now()
        with torch.autocast(device, kind, enabled=kind is not torch.float32):
            made = block(given)
        made.backward(torch.ones_like(made))
        finish(device)
        if number >= WARM:
            taken.append(now() - begun)
    return sorted(taken)[REPEATS // 4]


def bench_blocks(model: Model, seq: int, repeats: Sequence[int]) -> tuple[float, ...]:
    """On a rank: seconds of a block's passes at every one of SIZES (task for ranks)."""
    import torch.distributed as dist

    found = []
    for size in SIZES:
        dist.barrier()  # all ranks compute at once, as they do in a step
        found.append(time_block(model, seq, size, repeats=repeats[dist.get_rank()]))
    dist.barrier()
    return tuple(found)


def predicted_block_s(model: Model, gpu: str, seq: int, sequences: int, dtype: str, hwdb: Hwdb) -> float:
    """Seconds of the same passes as the cost model has them: two blocks less one."""
    facts = {
        "name": "one",
        "nodes": [{"count": 1, "gpu": gpu, "gpus": 1, "intra_link": "none", "nic_gbps": 1}],
    }
    cluster = cluster_from_dict(facts, hwdb, "one")
    found = []
    for blocks in (1, 2):
        small = replace(model, blocks=(model.blocks[0],) * blocks)
        layout = Uniform(micro_batch=sequences)
        stage = api.estimate(small, cluster, Job(sequences, seq, dtype), layout, hwdb=hwdb).document.stages[0]
        found.append(stage.forward_s + stage.backward_s)
    return found[1] - found[0]


def scale_between(measured: float, kernels: float) -> float:
    """The factor from what kernels take to what was measured, kept to what can be true."""
    return min(max(measured / kernels, LEAST_SCALE), MOST_SCALE)


def pass_cost(measured: Sequence[float], kernels: Sequence[float], launches: float) -> PassCost:
    """The factor and the seconds per kernel that take `kernels` (no launch in them) to `measured`.

    `launches` is how often the model counts a launch in a block. What two sizes differ by gives the factor,
    what the smaller one has left the launches.
    """
    slope = (measured[-1] - measured[0]) / (kernels[-1] - kernels[0])
    scale = scale_between(slope, 1.0)
    if measured[0] < scale * kernels[0]:  # nothing left for launches: one factor through both sizes
        scale = scale_between(sum(measured), sum(kernels))
    return PassCost(scale, max(measured[0] / scale - kernels[0], 0.0) / launches)
