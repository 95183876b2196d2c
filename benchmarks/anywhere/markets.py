"""Laws of money and memory, and all laws by name: what a wider or dearer question must do to its answer.

Each law makes a small world from a seed, asks twice or more, and yields what was changed and whether the
answers stand as they must. Rentals are solved to proven best: there is no slack but the gap they tell.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from benchmarks import serving_problems
from benchmarks.anywhere.hardware import cluster as random_cluster
from benchmarks.anywhere.models import model as random_model
from benchmarks.anywhere.services import services
from benchmarks.anywhere.told import Told
from tangram_sim.clusters import Island, Node
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_model
from tangram_sim.hwdb.model_file import from_model_file
from tangram_sim.hwdb.prices import Figure
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.purchasing.catalogue import Limits
from tangram_sim.purchasing.fleets import Fleet, Purchase
from tangram_sim.purchasing.front import Simulated
from tangram_sim.purchasing.pricefile import Economics, NodeFacts, Prices
from tangram_sim.purchasing.purchase import purchase
from tangram_sim.purchasing.search import ModelToTrain
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import plan_problem
from tangram_sim.studies.sweep import Sweep
from tangram_sim.training.job import Job
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting

ROUNDING = 1e-6  # relative


def rentals(seed: int, hwdb: Hwdb) -> Iterator[Told]:
    """Fleets to rent: what a budget, more on offer, prices, rates and amounts do to the proven best."""
    del hwdb
    draws = np.random.default_rng(seed)
    family = ("makespan", "cost", "robust", "two_models", "sliced")[seed % 5]
    base = serving_problems.FAMILIES[family](draws)
    rng = random.Random(seed)
    value, gap = _best(base)
    kinds, configurations = sorted(base["gpus"]), base["configurations"]
    kind, times = rng.choice(kinds), rng.choice([1.5, 2.0, 3.0])

    def changed(change: Callable[[dict[str, Any]], object]) -> tuple[float, float]:
        other = deepcopy(base)
        change(other)
        return _best(other)

    def told(what: str, change: Callable[[dict[str, Any]], object], least: float, most: float) -> Told:
        other, its_gap = changed(change)
        return Told(
            f"rentals, {family}", what, value, other, _within(value, other, least, most, gap + its_gap)
        )

    yield told("a larger budget", lambda p: p.update(budget_per_hour=times * p["budget_per_hour"]), 0.0, 1.0)
    yield told("more of a kind", lambda p: _more(p["gpus"][kind], 5), 0.0, 1.0)
    spare = rng.choice(configurations)
    yield told("without a configuration", lambda p: p["configurations"].remove(spare), 1.0, inf)
    if not base.get("scenarios") or all(one.get("lost") != kind for one in base["scenarios"]):
        yield told("without a kind", lambda p: _without_kind(p, kind), 1.0, inf)
    slower = deepcopy(spare) | {"name": "a slower one"}
    slower["throughput"] = [rate and 0.5 * rate for rate in slower["throughput"]]
    yield told("a slower configuration beside", lambda p: p["configurations"].append(slower), 1.0, 1.0)
    yield told("configurations in another order", lambda p: rng.shuffle(p["configurations"]), 1.0, 1.0)
    costs = base["kind"] == "cost" or (family == "robust" and "rate" in base["workload"][0])
    dearer = times if costs else 1.0
    yield told("all prices and the budget", lambda p: _dearer(p, times), dearer, dearer)
    free = 1.0 if costs else 1 / times
    yield told("faster configurations", lambda p: _faster(p, times), 0.0 if costs else free, free)
    yield told(
        "more requests", lambda p: _requested(p, times), 1.0 if costs else times, inf if costs else times
    )


def _best(problem: dict[str, Any]) -> tuple[float, float]:
    """(the objective, inf without a plan; the share by which it may be better)."""
    read, _ = read_problem(deepcopy(problem))
    found = plan_problem(read, beside=False)
    if found.status == "infeasible":
        return inf, 0.0
    value = found.makespan_s if found.objective == "makespan" else found.cost_per_hour
    assert value is not None
    return value, found.gap or 0.0


def _within(base: float, other: float, least: float, most: float, gap: float) -> bool:
    """Whether a figure is from `least` to `most` times another one; no plan is worse than any."""
    if base == inf:
        return other == inf or least < 1.0 or most < 1.0
    slack = 1.0 + ROUNDING + gap
    over = other > base * most * slack if most < inf else False
    return not over and not other * slack < base * least


def _more(kind: dict[str, Any], count: int) -> None:
    if kind.get("available") is not None:
        kind["available"] += count


def _without_kind(problem: dict[str, Any], kind: str) -> None:
    problem["configurations"] = [one for one in problem["configurations"] if kind not in one["gpus"]] or [
        # Nothing left that serves: one that takes nobody.
        problem["configurations"][0] | {"throughput": [None] * len(problem["workload"]), "name": "none"}
    ]


def _dearer(problem: dict[str, Any], times: float) -> None:
    problem["budget_per_hour"] *= times
    for gpu in problem["gpus"].values():
        gpu["price_per_hour"] *= times


def _faster(problem: dict[str, Any], times: float) -> None:
    for one in problem["configurations"]:
        one["throughput"] = [rate and times * rate for rate in one["throughput"]]


def _requested(problem: dict[str, Any], times: float) -> None:
    for one in problem["workload"]:
        for unit in ("rate", "requests"):
            if unit in one:
                one[unit] *= times


def memory(seed: int, hwdb: Hwdb) -> Iterator[Told]:
    """What a rank of a stage holds: never more for twice a degree, a finer ZeRO, recomputing more."""
    rng = random.Random(seed)
    given = random_model(rng, f"memory-{seed}", 8e9, 12)
    model = load_model(given) if isinstance(given, str) else from_model_file(given, "memory", "memory")
    job = Job(64, rng.choice([512, 2048, 8192]), "bf16", rng.choice(("adamw", "sgd", "adamw-8bit")))
    job = replace(job, stack=rng.choice(("generic", "megatron", "fsdp", "deepspeed")))
    gpu, link = hwdb.gpu("H100-SXM5-80GB"), hwdb.link("NVLink4")
    island = Island("i", gpu, 4, 8, link, 50e9, 10e-6)
    heads = min(block.attention.heads for block in model.blocks)
    experts = min(
        (block.feed_forward.experts for block in model.blocks if isinstance(block.feed_forward, Experts)),
        default=1,
    )
    tp = rng.choice([one for one in (1, 2) if heads % (2 * one) == 0] or [1])
    ep = rng.choice([one for one in (1, 2, 4) if experts % (2 * one) == 0]) if experts > 1 else 1
    layout = Layout(tp=tp, dp=4, ep=ep, zero_stage=rng.choice([0, 1, 2, 3]), sequence_parallel=tp > 1)
    layout = replace(layout, recompute=rng.choice(("none", "selective", "full")))
    law = f"memory, {model.name} under {job.stack}"
    atoms = model.layers + 2

    def held(one: Layout, stop: int = atoms) -> dict[str, float]:
        found = Pricer(Setting(model, island, job, 4, (one,), hwdb)).price(0, stop)
        return {
            name: float(getattr(found, name).max())
            for name in ("static_bytes", "activation_bytes", "transient_bytes")
        }

    def told(what: str, other: dict[str, float], *parts: str) -> Iterator[Told]:
        for part in parts:
            one, two = base[part], other[part]
            yield Told(law, f"{layout}: {what}: {part}", one, two, two <= one * (1 + ROUNDING))

    base = held(layout)
    if heads % (2 * tp) == 0:
        wider = replace(layout, tp=2 * tp, sequence_parallel=True)
        yield from told("twice tp", held(wider), "static_bytes", "activation_bytes")
    yield from told("twice dp", held(replace(layout, dp=8)), "static_bytes")
    # DeepSpeed's optimizers that shard keep copies of gradients, also where there is one replica of experts.
    if layout.zero_stage < 3 and (layout.zero_stage or job.stack != "deepspeed"):
        finer = held(replace(layout, zero_stage=layout.zero_stage + 1))
        yield from told("ZeRO one stage further", finer, "static_bytes")
    yield from told("fewer layers", held(layout, atoms // 2), "static_bytes", "activation_bytes")
    yield from told("full recomputation", held(replace(layout, recompute="full")), "activation_bytes")
    if layout.recompute == "none":
        yield from told("selective", held(replace(layout, recompute="selective")), "activation_bytes")
    if experts % (2 * ep) == 0 and ep < 4:
        yield from told("twice ep", held(replace(layout, ep=2 * ep)), "static_bytes")


_TINY = Model(
    "tiny", "gpt2", 1024, 8192, (Block(Attention(16, 16, 64, 64), FeedForward(4096, gated=False)),) * 4
)
_TODAY = date(2026, 11, 1)
_OFFERED = (
    ("V100x4", "V100-SXM2-32GB", 4, "NVLink2"), ("A100x2", "A100-SXM4-40GB", 2, "NVLink3"),
    ("T4x4", "T4", 4, "PCIe3x16"), ("H100x1", "H100-SXM5-80GB", 1, "NVLink4"),
)  # fmt: skip


def purchases(seed: int, hwdb: Hwdb) -> Iterator[Told]:
    """Fronts of throughput against cost: wider limits and more on offer hold what narrow ones do."""
    rng = random.Random(seed)
    fleet = Fleet.of(cluster_from_dict(random_cluster(rng, "own", 2, 2), hwdb, "own"))
    offers = rng.sample(_OFFERED, 2)
    catalogue = [
        (
            Purchase(
                name, Node(hwdb.gpu(gpu), gpus, hwdb.link(link), rng.choice([3e9, 12.5e9]), name=name), 1
            ),
            most,
        )
        for (name, gpu, gpus, link), most in zip(offers, rng.choices([1, 2], k=2), strict=True)
    ]

    def figure(*values: float) -> Figure:
        return Figure(rng.choice(values), "made up")

    facts = {}
    for name, *_ in offers:
        rented, bought = (
            NodeFacts(rent_usd_per_hour=figure(1.0, 7.0)),
            NodeFacts(capital_usd=figure(2e4, 9e4)),
        )
        facts[name] = replace(
            rng.choice([rented, bought]),
            rack_units=figure(2.0, 4.0),
            power_w=figure(900.0, 2500.0),
            delivery_days=figure(1.0, 30.0, 200.0),
        )
    every = Economics(figure(3.0, 5.0), figure(1.1, 1.5), figure(0.08, 0.2))
    sweep, job = Sweep(jobs=1), Job(global_batch=8, seq=1024)

    def front(limits: Limits, times: float = 1.0, without: int = 0) -> list[Simulated]:
        def dearer(one: Figure | None) -> Figure | None:
            return one and replace(one, value=times * one.value)

        money = Prices(
            {
                name: replace(
                    one, rent_usd_per_hour=dearer(one.rent_usd_per_hour), capital_usd=dearer(one.capital_usd)
                )
                for name, one in facts.items()
            },
            replace(every, usd_per_kwh=dearer(every.usd_per_kwh)),
        )
        try:
            study = purchase(
                [ModelToTrain(_TINY, job)], fleet, catalogue[without:], limits, money, ordered=_TODAY,
                wishes=SearchOptions(sub_islands=False), hwdb=hwdb, sweep=sweep,
            )  # fmt: skip
        except InfeasibleError:
            return []
        return study.front.points

    law = f"purchases, {' and '.join(name for name, *_ in offers)}"
    narrow = Limits(nodes=2, deadline=_TODAY + timedelta(days=rng.choice([10, 60])))
    base = front(narrow)
    for name, strict in {
        "little power": replace(narrow, power_w=3000.0),
        "few racks": replace(narrow, rack_units=5.0),
        "little an hour": replace(narrow, budget_usd_per_hour=8.0),
        "a small outlay": replace(narrow, budget_usd=1e5),
    }.items():
        yield _covers(law, f"{name}, then no limit", front(strict), base)
    later = replace(narrow, deadline=_TODAY + timedelta(days=365))
    yield _covers(law, "one node more", base, front(replace(narrow, nodes=3)))
    yield _covers(law, "a later deadline", base, front(later))
    yield _covers(law, "a second kind on offer", front(narrow, without=1), base)
    twice = front(narrow, times=2.0)
    held = [(one.tokens_per_s, 2 * one.cost) for one in base] == [
        (one.tokens_per_s, one.cost) for one in twice
    ]
    yield Told(law, "all prices twice as high", len(base), len(twice), held)
    rising = all(a.cost < b.cost and a.tokens_per_s < b.tokens_per_s for a, b in pairwise(base))
    yield Told(law, "along the front both rise", len(base), len(base), rising)


def _covers(law: str, what: str, some: Sequence[Simulated], more: Sequence[Simulated]) -> Told:
    """Whether for every point of a front the other one has one as fast for no more."""
    lacking = [
        one
        for one in some
        if not any(
            other.cost <= one.cost * (1 + ROUNDING)
            and other.tokens_per_s >= one.tokens_per_s * (1 - ROUNDING)
            for other in more
        )
    ]
    return Told(law, what, len(some), len(more), not lacking)


LAWS: dict[str, Callable[[int, Hwdb], Iterator[Told]]] = {
    "rentals": rentals,
    "services": services,
    "memory": memory,
    "purchases": purchases,
}


def told(name: str, seeds: Sequence[int], hwdb: Hwdb | None = None) -> Iterator[tuple[int, Told]]:
    """Every comparison of one family of laws in the worlds of some seeds."""
    hwdb = hwdb or Hwdb.load()
    for seed in seeds:
        for one in LAWS[name](seed, hwdb):
            yield seed, one
