"""Replicas that run one phase of requests: prefill alone, or decode alone (DistServe, arXiv 2401.09670).

A prefill replica fills iterations with whole prompts and delivers the first token; a decode replica yields
the other tokens, without prompts in between, from caches sent over a link. One kind of GPU may prefill for
another; each phase meets its part of the latency objective: the time to first token, the time between tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tangram_sim.serving.closed_form import Load, seats
from tangram_sim.serving.costs import LayerStepCost
from tangram_sim.serving.deployment import Deployment
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.stepcost import KvCapacities, KvCapacity
from tangram_sim.serving.transfer import prompt_kv_bytes
from tangram_sim.serving.workload import Floats
from tangram_sim.serving_planners.offers import OfferPricer, PricedConfiguration, Stages, configuration_of
from tangram_sim.serving_planners.problem import DECODE, PREFILL

MOST_HALF_STAGES = 2  # of a replica that does one half
_ROUNDS = 12  # of a bisection for the most at once
_WAITS = 1.5  # iterations until a prompt is through: half of the one under way, and its own


def halves(pricer: OfferPricer, pipelines: Sequence[Stages]) -> list[PricedConfiguration]:
    """Prefill replicas and decode replicas of the pipelines that fit, each with requests/s of every type."""
    short = [pipeline for pipeline in pipelines if len(pipeline) <= MOST_HALF_STAGES]
    found: list[PricedConfiguration] = []
    types = len(pricer.loads.isl)
    for batch in pricer.batches(short):
        size = len(batch.numbers)
        loads = pricer.loads.repeated(size)
        cost, capacity = batch.cost, batch.capacity(types)
        moved = tuple(prompt_kv_bytes(cost.deployment, float(tokens)) for tokens in pricer.loads.isl.tolist())
        rates = (
            (PREFILL, prefill_throughput(cost, cost.deployment, capacity, loads, pricer.slo)),
            (DECODE, decode_throughput(cost, cost.deployment, capacity, loads, pricer.slo)),
        )
        for role, rps in rates:
            for number, row in zip(batch.numbers.tolist(), rps.reshape(size, types).tolist(), strict=True):
                configuration = configuration_of(short[number], tuple(row))
                if any(row):
                    found.append(
                        replace(configuration, name=f"{configuration.name} {role}", role=role, kv_bytes=moved)
                    )
    return found


def prefill_throughput(
    cost: LayerStepCost, deployment: Deployment, capacity: KvCapacity | KvCapacities, loads: Load, slo: Slo
) -> Floats:
    """Prompts/s of each load alone, with as many at once as token budget, memory and TTFT allow; 0: none."""
    budget = float(deployment.engine.max_batched_tokens)
    room = np.floor(np.asarray(capacity.tokens) / loads.isl)
    most = np.maximum(np.minimum(np.floor(budget / loads.rows), room), 1.0)

    def step_s(prompts: Floats) -> Floats:
        return cost.step_s(prompts * loads.rows, prompts * loads.scores, np.zeros_like(prompts), 0.0)

    # A prompt longer than the budget is several iterations; its work is that of one.
    kept, at_once = _most(lambda n: _WAITS * step_s(n) + cost.request_s <= slo.ttft_s, most)
    return np.where(kept & (room >= 1), at_once / step_s(at_once), 0.0)


def decode_throughput(
    cost: LayerStepCost, deployment: Deployment, capacity: KvCapacity | KvCapacities, loads: Load, slo: Slo
) -> Floats:
    """Outputs/s of each load alone, with as many requests at once as `seats` and TPOT allow; 0: none."""
    room = seats(deployment, capacity, loads)

    def step_s(running: Floats) -> Floats:
        return cost.step_s(np.zeros_like(running), 0.0, running, running * loads.context)

    kept, running = _most(lambda b: step_s(b) <= slo.tpot_s, np.maximum(room, 1.0))
    # The first token came with the prompt.
    stays = np.maximum(loads.osl - 1.0, 1.0) * step_s(running)
    return np.where(kept & (room >= 1), running / stays, 0.0)


def _most(keeps: Callable[[Floats], NDArray[np.bool_]], most: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """(whether 1 satisfies `keeps`, the largest value from 1 to `most` that does), by bisection."""
    low, high = np.ones_like(most), most
    all_of = keeps(high)
    for _ in range(_ROUNDS):
        middle = 0.5 * (low + high)
        good = keeps(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return keeps(np.ones_like(most)), np.where(all_of, most, low)
