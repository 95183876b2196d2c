"""Uniform: the best single Megatron layout over all GPUs, the plan of software that sees equal GPUs only."""

from collections.abc import Iterator
from math import gcd

from tangram_sim.clusters import Cluster
from tangram_sim.errors import TangramError
from tangram_sim.jobs import Job
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors, expert_degrees
from tangram_sim.planners.uniform import Uniform, uniform_plan
from tangram_sim.planners.whole_cluster import CannotAnswerError, Price, WholeClusterPlanner
from tangram_sim.plans import Plan

# Savers of memory, (ZeRO stage, recomputation): the first that fits is taken.
SAVERS = ((0, "none"), (1, "none"), (1, "selective"), (1, "full"), (3, "full"))
PLAYED = 24  # layouts, best by closed form, that are simulated whole


class BestUniform(WholeClusterPlanner):
    """Even layers, one layout, ranks in file order; a stage that spans kinds runs at its slowest member."""

    name = "uniform"
    limits = "it lays one layout with even stages over all GPUs"

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The fastest layout of those that fit."""
        short = [kind for kind in cluster.groups if not kind.node.gpu.peak_flop_per_s(job.recipe.gemm_dtype)]
        if short:
            raise CannotAnswerError(
                f"uniform: {', '.join(group.node.gpu.name for group in short)}: no {job.dtype} units; "
                f"{self.limits}"
            )
        rough: list[tuple[float, int, Plan]] = []
        for wanted in layouts(model, cluster, job):
            found = _first_that_fits(model, cluster, job, wanted, price)
            if found is not None:
                rough.append((found[0], len(rough), found[1]))
        if not rough:
            raise CannotAnswerError(
                f"uniform: no layout of {model.name} on {cluster.name} fits; {self.limits}"
            )
        rough.sort(key=lambda one: one[:2])
        return min((plan for _, _, plan in rough[:PLAYED]), key=price.step_s)


def layouts(model: Model, cluster: Cluster, job: Job) -> Iterator[Uniform]:
    """Degrees that use as many GPUs as the batch allows; tp inside the smallest node."""
    node = gcd(*(group.node.gpus for group in cluster.groups))
    experts = sorted({1, *expert_degrees(model, cluster.gpus)})
    for tp in divisors(node):
        for pp in divisors(cluster.gpus // tp):
            if pp > model.layers:
                continue
            room = cluster.gpus // tp // pp
            dp = max(one for one in divisors(job.global_batch) if one <= room)
            for ep in experts:
                if dp % ep:
                    continue
                for size in divisors(job.global_batch // dp):
                    yield Uniform(tp=tp, pp=pp, dp=dp, ep=ep, micro_batch=size, sequence_parallel=tp > 1)


def _first_that_fits(
    model: Model, cluster: Cluster, job: Job, wanted: Uniform, price: Price
) -> tuple[float, Plan] | None:
    """(closed form of the step, plan) with the first saver of memory that suffices; None where none does."""
    for zero, recompute in SAVERS:
        saving = Uniform(
            tp=wanted.tp,
            pp=wanted.pp,
            dp=wanted.dp,
            ep=wanted.ep,
            micro_batch=wanted.micro_batch,
            zero_stage=zero,
            recompute=recompute,
            sequence_parallel=wanted.sequence_parallel,
        )
        try:
            plan = uniform_plan(model, cluster, job, saving)
            lowered = price.lowered(plan)
        except TangramError:  # a law of the model that these degrees break: heads, experts, layers
            return None
        if lowered.fits():
            (step,) = lowered.steps
            paces = step.times.forward_s + step.times.backward_input_s + step.times.backward_weight_s
            microbatches = step.pipeline.microbatches
            seconds = (microbatches - 1) * paces.sum(axis=1).max() + paces.sum()
            return float(seconds + (step.times.sync_s + step.times.optimizer_s).max()), plan
    return None
