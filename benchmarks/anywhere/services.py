"""Laws of services: what laxer objectives, more KV memory and more replicas do to what is served."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.anywhere.told import Told
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.batching import batching_rules
from tangram_sim.serving.build import deployment_of, precision_of
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.costs import LayerStepCost
from tangram_sim.serving.engines import engine_defaults
from tangram_sim.serving.fleet import FleetReplica, play
from tangram_sim.serving.kv import kv_capacity
from tangram_sim.serving.outcome import ServiceOutcome, Slo
from tangram_sim.serving.router import LeastOutstanding
from tangram_sim.serving.workload import plain
from tangram_sim.serving_planners.offers import kept_throughput

# Relative: steps jump where a batch needs the next CUDA graph, or none holds it, and rates fall by so much.
GRAPHS = 0.01
SERVED = ("llama3-8b", "qwen3-14b", "gpt-oss-20b", "qwen3-30b-a3b", "opt-350m")
SERVERS = ("H100-SXM5-80GB", "A100-SXM4-80GB", "L40S", "A100-PCIe-80GB", "H200-SXM-141GB")


def services(seed: int, hwdb: Hwdb) -> Iterator[Told]:
    """Replicas: what a laxer objective, more KV memory and more replicas do to what they serve."""
    rng = random.Random(seed)
    model, gpu = load_model(rng.choice(SERVED)), hwdb.gpu(rng.choice(SERVERS))
    engine = engine_defaults(hwdb, rng.choice(("vllm", "sglang", "trtllm")), gpu)
    precision = precision_of("bf16", model)
    tp = rng.choice([1, 2, 4])
    where = deployment_of(model, gpu.name, hwdb, engine, precision=precision, tp=tp)
    fit = CalibrationTable.load(hwdb).fit_of(where)
    cost = LayerStepCost(where, hwdb, fit)
    try:
        capacity = kv_capacity(where, hwdb, fit)
    except InfeasibleError:
        return
    load = Load.of(float(rng.choice([64, 500, 3000])), float(rng.choice([8, 200, 1000])))
    words = f"{model.name} on {tp} x {gpu.name} under {engine.engine}"
    law, slow = f"services, {words}", 1.0 + GRAPHS

    def kept(slo: Slo, room: Any = capacity) -> float:
        return float(kept_throughput(cost, where, room, load, slo)[0])

    goals = sorted(rng.uniform(0.005, 0.2) for _ in range(3))
    rates = [kept(Slo(tpot_s=goal)) for goal in goals]
    for (strict, lax), (one, other) in zip(pairwise(goals), pairwise(rates), strict=True):
        yield Told(law, f"tpot {strict:.3g} s, then {lax:.3g} s", one, other, one <= other * slow)
    waits = sorted(rng.uniform(0.02, 3.0) for _ in range(3))
    firsts = [kept(Slo(ttft_s=wait)) for wait in waits]
    for (strict, lax), (one, other) in zip(pairwise(waits), pairwise(firsts), strict=True):
        yield Told(law, f"ttft {strict:.3g} s, then {lax:.3g} s", one, other, one <= other * slow)
    both = kept(Slo(ttft_s=waits[1], tpot_s=goals[1]))
    yield Told(law, "both objectives, then one", both, rates[1], both <= min(rates[1], firsts[1]) * slow)
    free = kept(Slo())
    yield Told(
        law, "an objective, then none", max(*rates, *firsts), free, max(*rates, *firsts) <= free * slow
    )
    larger = kept(Slo(), replace(capacity, blocks=2 * capacity.blocks))
    yield Told(law, "twice the KV memory", free, larger, free <= larger * slow)
    yield from _replicas(rng, law, where, cost, capacity)


def _replicas(rng: random.Random, law: str, where: Any, cost: LayerStepCost, capacity: Any) -> Iterator[Told]:
    """Equal requests on one replica more: none of them waits for longer, and none is lost.

    Requests that come together end no later. A request that comes alone waits for the iteration in progress,
    and iterations begin at other times on other replicas: the last request may end later by up to one full
    iteration, although no iteration takes longer for having less to do (a scheduling anomaly: Graham, 1969).
    """
    table = cost.table(64, 4096)
    rules = replace(batching_rules(where.engine, capacity), seats=rng.choice([2, 8, 64]))
    count, each = rng.choice([8, 50]), rng.choice([64, 700])
    together = rng.random() < 0.5
    arrivals = (
        np.zeros(count) if together else np.sort(np.array([rng.uniform(0.0, 5.0) for _ in range(count)]))
    )
    work = plain(arrivals, np.full(count, each), np.full(count, rng.choice([1, 40])))

    def ended(replicas: int) -> tuple[float, float]:
        fleet = [FleetReplica(f"r{k}", rules, table) for k in range(replicas)]
        found = ServiceOutcome(play(fleet, work, LeastOutstanding()))
        return found.duration_s, float(found.queue_s.mean())

    rows, seats = min(count * each, rules.budget_tokens), min(count, rules.seats)
    longest_s = table.mixed_step_s(rows, rows * each / 2, seats, seats * (each + work.output_tokens[0]))
    late_s = 0.0 if together else longest_s
    before = ended(1)
    for replicas in (2, 3):
        now = ended(replicas)
        held = now[0] <= before[0] * (1 + 1e-6) + late_s
        yield Told(law, f"{replicas} replicas: the last end", before[0], now[0], held)
        if together:
            held = now[1] <= before[1] * (1 + 1e-6) + 1e-9
            yield Told(law, f"{replicas} replicas: mean wait", before[1], now[1], held)
        before = now
