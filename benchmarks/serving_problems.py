"""Random problems of `serve plan` of every kind: how often proven best, how long, and where not.

    python -m benchmarks.serving_problems --seeds 20 [--family flow] [--limit CPU_S]

Shapes follow the published examples: throughputs that go with prices, two models in one fleet, Melange's
slices, scenarios of loss, price and rate, layer placements on nodes in regions with slow links between them.
"""

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import plan_problem

Problem = dict[str, Any]
_DEGREES = (1, 2, 4, 8)


def makespan(random: np.random.Generator) -> Problem:
    """A batch under a budget and caps: 3 to 6 kinds, 3 to 9 types."""
    return rental(random, int(random.integers(3, 7)), int(random.integers(3, 10)), "requests")


def two_models(random: np.random.Generator) -> Problem:
    """A small and a large model in one fleet; the large one needs several GPUs."""
    given = rental(random, int(random.integers(2, 5)), int(random.integers(4, 8)), "requests")
    types, owners = given["workload"], ["small", "large"]
    for w, item in enumerate(types):
        item["model"] = owners[w % 2]
    doubled = []
    for item in given["configurations"]:
        size = sum(item["gpus"].values())
        for owner, slower, least in (("small", 1.0, 1), ("large", 0.12, 2)):
            if size >= least:
                rates = [
                    rate * slower if rate and types[w]["model"] == owner else None
                    for w, rate in enumerate(item["throughput"])
                ]
                doubled.append(
                    item | {"name": f"{owner} on {item['name']}", "model": owner, "throughput": rates}
                )
    return given | {"configurations": doubled}


def cost(random: np.random.Generator) -> Problem:
    """The least cost of given rates, types free to split."""
    return rental(random, int(random.integers(3, 7)), int(random.integers(3, 10)), "rate")


def sliced(random: np.random.Generator) -> Problem:
    """Melange: one configuration a kind, every type cut into whole slices."""
    given = rental(random, int(random.integers(2, 5)), int(random.integers(4, 13)), "rate")
    alone = [item for item in given["configurations"] if len(item["gpus"]) == 1]
    smallest = {next(iter(item["gpus"])): item for item in reversed(alone)}
    for gpu in given["gpus"].values():
        gpu["available"] = None
    return given | {"configurations": list(smallest.values()), "slices": int(random.choice([1, 2, 4, 8]))}


def robust(random: np.random.Generator) -> Problem:
    """The same with a kind lost, a price doubled, a rate half as high again."""
    unit = str(random.choice(["rate", "requests"]))
    given = rental(random, int(random.integers(3, 6)), int(random.integers(3, 7)), unit)
    names = list(given["gpus"])
    given["scenarios"] = [
        {"lost": names[int(random.integers(len(names)))], "coverage": float(random.choice([0.5, 0.7, 0.8]))},
        {"rate_factor": 1.5, "coverage": 0.8},
        {"price_factor": {names[0]: 2.0}},
    ]
    given["kind"] = "robust"
    return given


def flow(random: np.random.Generator) -> Problem:
    """4 to 7 nodes of two or three kinds in two regions, 6 to 10 layers."""
    return placement(random, int(random.integers(4, 8)), int(random.integers(6, 11)))


def large_flow(random: np.random.Generator) -> Problem:
    """24 nodes of three kinds, 60 layers: the size of Helix's single cluster."""
    return placement(random, 24, 60)


FAMILIES: dict[str, Callable[[np.random.Generator], Problem]] = {
    item.__name__: item for item in (makespan, two_models, cost, sliced, robust, flow, large_flow)
}


def rental(random: np.random.Generator, kinds: int, types: int, unit: str) -> Problem:
    """Kinds whose speed goes with their price, sizes that scale below one, some pairs of kinds."""
    prices = np.round(random.uniform(0.4, 4.0, kinds), 2)
    speed = prices * random.uniform(0.7, 1.4, kinds)
    memory = random.choice([24, 48, 80], kinds)
    taste, length = random.uniform(0.6, 1.6, (kinds, types)), random.lognormal(0.0, 1.0, types)
    found = []
    for i in range(kinds):
        for size in _DEGREES:
            rates = speed[i] * taste[i] * length * size * random.uniform(0.8, 1.15, types)
            small = memory[i] * size < random.choice([16, 40, 80], types)
            told = [
                None if lacks else round(float(rate), 4) for rate, lacks in zip(rates, small, strict=True)
            ]
            if any(told):
                found.append({"name": f"{size} k{i}", "gpus": {f"k{i}": size}, "throughput": told})
        if i and random.random() < 0.7:
            j = int(random.integers(i))
            rates = (speed[i] * taste[i] + speed[j] * taste[j]) * length * random.uniform(0.6, 1.1, types)
            found.append(
                {
                    "name": f"k{i} + k{j}",
                    "gpus": {f"k{i}": 1, f"k{j}": 1},
                    "throughput": np.round(rates, 4).tolist(),
                }
            )
    low, high = (50, 3000) if unit == "requests" else (1, 12)
    return {
        "kind": "makespan" if unit == "requests" else "cost",
        "gpus": {
            f"k{i}": {"price_per_hour": float(prices[i]), "available": int(random.integers(4, 33))}
            for i in range(kinds)
        },
        "budget_per_hour": float(random.choice([15, 30, 60])),
        "configurations": found,
        "workload": [{unit: int(count)} for count in random.integers(low, high, types)],
    }


def placement(random: np.random.Generator, nodes: int, layers: int) -> Problem:
    """Nodes whose tokens/s fall with the layers held; links fast inside a region and slow between two."""
    kinds = int(random.integers(2, 4))
    speed = np.sort(random.uniform(0.3, 1.5, kinds))[::-1] * 200 * layers
    most = [max(1, int(layers * share)) for share in np.sort(random.uniform(0.3, 0.9, kinds))[::-1]]
    bend = random.uniform(0.0, 0.1)
    kind = random.integers(0, kinds, nodes)
    table = [
        [round(float(speed[k] / (held * (1 - bend) + bend * layers)), 1) for held in range(1, most[k] + 1)]
        for k in range(kinds)
    ]
    region = random.integers(0, 2, nodes)
    inside, between, host = (float(random.uniform(*ends)) for ends in ((300, 2000), (80, 600), (500, 3000)))
    links = [
        [0.0 if i == j else inside if region[i] == region[j] else between for j in range(nodes)] + [host]
        for i in range(nodes)
    ]
    return {
        "kind": "flow",
        "layers": layers,
        "nodes": [{"name": f"k{k}", "tokens_per_s": table[k]} for k in kind],
        "link_tokens_per_s": [*links, [host] * nodes + [0.0]],
    }


def main() -> None:
    """One line a family, one line a problem that is not proven within the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--family", choices=FAMILIES, action="append")
    parser.add_argument("--limit", type=float, default=2.0, help="CPU seconds")
    given = parser.parse_args()
    for name in given.family or FAMILIES:
        seconds, gaps, proven = [], [], 0
        for seed in range(given.first, given.first + given.seeds):
            problem, _ = read_problem(FAMILIES[name](np.random.default_rng(seed)))
            found = plan_problem(problem)
            seconds.append(found.planning_cpu_s)
            gaps.append(found.gap or 0.0)
            proven += found.status != "feasible"
            if found.status == "feasible" or found.planning_cpu_s > given.limit:
                words = f"{found.status}, gap {found.gap or 0.0:.2%}, {found.planning_cpu_s:.1f} CPU-s"
                print(f"  {name} {seed}: {words}", flush=True)
        print(
            f"{name}: {proven} of {given.seeds} settled, gap at most {max(gaps):.2%}, CPU-s median "
            f"{median(seconds):.2f}, most {max(seconds):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
