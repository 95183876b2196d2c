"""Watts of a replica under a steady load, and what a power cap does to its clocks."""

from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.cost.energy import LEAST_CLOCK, Activity, gpu_power
from tangram_sim.cost.kernels import Floats
from tangram_sim.errors import InfeasibleError
from tangram_sim.serving.closed_form import Load, Steady
from tangram_sim.serving.costs import LayerStepCost
from tangram_sim.serving.deployment import Deployment, ReplicaStage


@dataclass(frozen=True)
class ReplicaPower:
    """Mean watts of a replica's GPUs and of their shares of the hosts. Arrays of N loads."""

    gpu_w: Floats  # all GPUs together
    host_w: float
    highest_w: Floats  # of any one GPU
    sigma: float  # standard deviation of log watts
    basis: str


def stage_activities(
    cost: LayerStepCost, load: Load, steady: Steady, clock: float = 1.0
) -> list[tuple[ReplicaStage, Activity]]:
    """What a GPU of each stage does in a mean second, where `steady` is the answer of `cost` to `load`.

    `clock`, relative to the highest, is the one that `cost` was made for (`at_clock`); arithmetic is counted
    at the highest.
    """
    deployment = cost.deployment
    b, pp = np.maximum(steady.running, 1.0), float(deployment.pp)
    contexts, zero = b * load.context, np.zeros_like(b)
    mixed = deployment.engine.prefill == "mixed"
    beside, beside_contexts = (b, contexts) if mixed else (zero, zero)
    decode = cost.passes(cost.work(zero, zero, b, contexts))
    both = cost.passes(cost.work(load.rows, load.scores, beside, beside_contexts))
    yielded = deployment.speculation.tokens if deployment.speculation else 1.0
    iterations = steady.request_rate * load.osl / (yielded * b)  # per second
    passing = iterations * steady.step_s + steady.request_rate * steady.prompt_s
    found = []
    for stage, alone, with_prompt in zip(deployment.stages, decode, both, strict=True):
        gpu = stage.island.gpu
        vector = max(gpu.peak_flop_per_s("bf16"), gpu.peak_flop_per_s("fp16"))
        per_second: dict[str, Floats] = {}
        for name in ("least_s", "attention_flop", "moved_bytes", "sent_bytes"):
            decoded, prompted = getattr(alone, name), getattr(with_prompt, name)
            added = np.maximum(prompted - decoded, 0.0) if mixed else prompted
            per_second[name] = pp * (iterations * decoded + steady.request_rate * added)
        products_s = per_second["least_s"] + per_second["attention_flop"] / vector
        link = stage.island.intra.bytes_per_s
        activity = Activity(
            seconds=1.0,
            running_s=np.minimum(passing, 1.0),
            arithmetic_s=products_s * clock,
            memory_s=per_second["moved_bytes"] / gpu.memory_bytes_per_s,
            link_s=per_second["sent_bytes"] / link if link else 0.0,
        )
        found.append((stage, activity))
    return found


def replica_power(cost: LayerStepCost, load: Load, steady: Steady, clock: float = 1.0) -> ReplicaPower:
    """Watts of the replica that `cost` prices; arguments as of `stage_activities`."""
    total = highest = np.zeros_like(steady.running)
    host_w, sigma, basis = 0.0, 0.0, []
    for stage, activity in stage_activities(cost, load, steady, clock):
        power = gpu_power(stage.island.gpu, cost.hwdb)
        watts = power.watts(activity, clock)
        total, host_w = total + watts * stage.gpus, host_w + power.host_w * stage.gpus
        highest, sigma = np.maximum(highest, watts), max(sigma, power.sigma)
        basis.append(power.basis)
    return ReplicaPower(total, host_w, highest, sigma, "; ".join(dict.fromkeys(basis)))


def at_clock(deployment: Deployment, clock: float) -> Deployment:
    """The deployment with every GPU's arithmetic at a part of its highest clock, memory as fast as before."""
    if clock == 1.0:
        return deployment
    stages = tuple(
        replace(stage, island=replace(stage.island, gpu=stage.island.gpu.slowed(1.0 / clock, clock)))
        for stage in deployment.stages
    )
    return replace(deployment, stages=stages)


def least_clock_error(cap_w: float, watts: float, gpu: str) -> InfeasibleError:
    """The error for a cap that the lowest clock does not meet; `watts` is what a GPU draws then."""
    return InfeasibleError(
        f"a power cap of {cap_w:g} W cannot be met: {gpu} still draws {watts:,.0f} W at {LEAST_CLOCK:.0%} of "
        "its clock; give a higher cap or more GPUs"
    )
