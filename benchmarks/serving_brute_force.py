"""Small random problems of `serve plan` against all plans: `python -m benchmarks.serving_brute_force`.

Every vector of replicas within caps and budget is tried, and the shares of requests are a linear program of
their own for each, with no code of the planners. Families: batches, least costs of rates, whole slices (all
ways to lay slices on configurations), scenarios of loss, two models, prefill and decode apart over a link.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from math import ceil, inf
from typing import Any

import numpy as np
from scipy.optimize import linprog

from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import plan_problem

Problem = dict[str, Any]
FAMILIES = ("makespan", "cost", "slices", "robust", "two_models", "apart")
_TOLERANCE, _CPU_S = 1e-4, 2.0


def random_problem(family: str, random: np.random.Generator) -> Problem:
    """Two kinds with 2 to 3 GPUs each, four configurations, two types of request."""
    prices = random.uniform(1.0, 4.0, 2)
    caps = random.integers(2, 4, 2)
    found: list[dict[str, Any]] = []
    for c, (first, second) in enumerate(((1, 0), (0, 1), (2, 0), (1, 1))):
        speed = (first * prices[0] + second * prices[1]) * random.uniform(0.6, 1.4)
        rates = (speed * random.uniform(0.5, 1.5, 2)).tolist()
        gpus = {name: n for name, n in (("a", first), ("b", second)) if n}
        found.append({"name": f"c{c}", "gpus": gpus, "throughput": rates})
    rated = family in ("cost", "slices", "apart")
    amounts = random.uniform(0.3, 1.5, 2) if rated else random.uniform(10, 90, 2)
    unit = "rate" if rated else "requests"
    given: Problem = {
        "kind": "cost" if rated else "robust" if family == "robust" else "makespan",
        "gpus": {
            name: {"price_per_hour": float(price), "available": int(cap)}
            for name, price, cap in zip("ab", prices, caps, strict=True)
        },
        "configurations": found,
        "workload": [{unit: float(amount)} for amount in amounts],
    }
    if not rated:
        given["budget_per_hour"] = float(random.uniform(4, 12))
    if family == "slices":
        given["slices"] = int(random.integers(1, 4))
    if family == "robust":
        given["scenarios"] = [{"lost": "a", "coverage": float(random.uniform(0.2, 0.6))}]
    if family == "two_models":
        for w, name in enumerate(("x", "y")):
            given["workload"][w]["model"] = name
        for c, item in enumerate(found):
            item["throughput"][c % 2] = None
    if family == "apart":
        for item, role in zip(found, ("prefill", "decode", "both", "both"), strict=True):
            item["role"] = role
        given["link_gb_per_s"] = float(random.uniform(0.05, 0.6))
        for item in given["workload"]:
            item["kv_bytes"] = 1e9
    return given


def best_of_all(given: Problem) -> float:
    """The best objective over every plan; inf where there is none."""
    configurations = given["configurations"]
    usd = [sum(n * given["gpus"][k]["price_per_hour"] for k, n in c["gpus"].items()) for c in configurations]
    budget = given.get("budget_per_hour", inf)
    best = inf
    for counts in _counts(given):
        cost = float(np.dot(counts, usd))
        if cost > budget * (1 + 1e-12) or (given["kind"] == "cost" and cost >= best):
            continue
        value = _shared(given, counts)
        if given["kind"] == "cost":
            best = min(best, cost if value >= 1 - 1e-9 else inf)
        elif value > 0:
            best = min(best, 1.0 / value)
    return best


def _counts(given: Problem) -> Iterator[tuple[int, ...]]:
    """Replicas of each configuration within what is available."""
    most = [
        min(given["gpus"][kind]["available"] // n for kind, n in item["gpus"].items())
        for item in given["configurations"]
    ]
    for counts in product(*(range(n + 1) for n in most)):
        used = dict.fromkeys(given["gpus"], 0)
        for count, item in zip(counts, given["configurations"], strict=True):
            for kind, n in item["gpus"].items():
                used[kind] += count * n
        if all(used[kind] <= given["gpus"][kind]["available"] for kind in used):
            yield counts


def _shared(given: Problem, counts: tuple[int, ...]) -> float:
    """The greatest pace of these replicas, in workloads a second (a rate is carried from 1 on)."""
    if given.get("slices"):
        return 1.0 if _slices_fit(given, counts) else 0.0
    pace = _pace(given, counts, frozenset())
    for scenario in given.get("scenarios", ()):
        lost = frozenset(
            c for c, item in enumerate(given["configurations"]) if scenario["lost"] in item["gpus"]
        )
        pace = min(pace, _pace(given, counts, lost) / scenario["coverage"])
    return pace


def _pace(given: Problem, counts: tuple[int, ...], lost: frozenset[int]) -> float:
    """max u: every type is entered u amount, decoded as much, no replica and no link is overloaded."""
    configurations, types = given["configurations"], given["workload"]
    amounts = [item.get("rate", item.get("requests")) for item in types]
    pairs = [
        (c, w)
        for c, configuration in enumerate(configurations)
        for w in range(len(types))
        if counts[c] and c not in lost and configuration["throughput"][w]
    ]
    size = len(pairs) + 1
    upper, equal = [], []
    for c in range(len(configurations)):
        row = np.zeros(size)
        for place, (mine, w) in enumerate(pairs):
            if mine == c:
                row[place] = amounts[w] / configurations[c]["throughput"][w]
        upper.append((row, counts[c]))
    link = np.zeros(size)
    for w in range(len(types)):
        entered, decoded = np.zeros(size), np.zeros(size)
        entered[-1] = -1.0
        for place, (c, mine) in enumerate(pairs):
            role = configurations[c].get("role", "both")
            if mine == w:
                entered[place] = float(role != "decode")
                decoded[place] = {"both": 0.0, "prefill": 1.0, "decode": -1.0}[role]
                if role == "prefill":
                    link[place] = amounts[w] * types[w].get("kv_bytes", 0.0) / 1e9
        equal += [entered, decoded]
    upper.append((link, given.get("link_gb_per_s", inf)))
    rows = [(row, high) for row, high in upper if high < inf]
    found = linprog(
        np.append(np.zeros(len(pairs)), -1.0),
        A_ub=[row for row, _ in rows],
        b_ub=[high for _, high in rows],
        A_eq=equal,
        b_eq=np.zeros(len(equal)),
        bounds=[(0, None)] * size,
    )
    return -float(found.fun) if found.status == 0 else 0.0


def _slices_fit(given: Problem, counts: tuple[int, ...]) -> bool:
    """Whether some way to lay whole slices on configurations overloads none of them."""
    configurations, slices = given["configurations"], given["slices"]
    ways = []
    for w, item in enumerate(given["workload"]):
        able = [c for c, n in enumerate(counts) if n and configurations[c]["throughput"][w]]
        loads = []
        for chosen in combinations_with_replacement(able, slices):
            load = np.zeros(len(counts))
            for c in chosen:
                load[c] += item["rate"] / slices / configurations[c]["throughput"][w]
            loads.append(load)
        ways.append(loads)
    return any((sum(mix) <= np.array(counts) + 1e-9).all() for mix in product(*ways))


def compared(family: str, seed: int) -> tuple[float, float, float, float]:
    """(planned, best of all, bound, CPU seconds of planning); inf: no plan."""
    given = random_problem(family, np.random.default_rng([seed, FAMILIES.index(family)]))
    problem, _ = read_problem(given)
    begun = time.process_time()
    found = plan_problem(problem)
    cpu_s = time.process_time() - begun
    value = found.makespan_s if given["kind"] != "cost" else found.cost_per_hour
    planned = inf if found.status == "infeasible" else float(value or 0.0)
    return planned, best_of_all(given), float(found.bound or 0.0), cpu_s


def agrees(planned: float, best: float, bound: float) -> bool:
    """Whether a plan is the best of all to the tolerance, and its bound one."""
    if inf in (planned, best):
        return planned == best
    return abs(planned / best - 1.0) <= _TOLERANCE and bound <= best * (1 + _TOLERANCE)


def main() -> None:
    """Print every problem whose plan is not the best or takes too long, and a line for each family."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=200)
    seeds = parser.parse_args().seeds
    each = ceil(seeds / len(FAMILIES))
    for family in FAMILIES:
        worst_s, wrong, none = 0.0, 0, 0
        for seed in range(each):
            planned, best, bound, cpu_s = compared(family, seed)
            worst_s, none = max(worst_s, cpu_s), none + (best == inf)
            if not agrees(planned, best, bound) or cpu_s > _CPU_S:
                wrong += 1
                print(
                    f"{family} {seed}: planned {planned:.6g}, best {best:.6g}, bound {bound:.6g}, "
                    f"{cpu_s:.2f} CPU-s"
                )
        print(
            f"{family}: {each - wrong} of {each} the best ({none} have no plan), {worst_s:.2f} CPU-s at most"
        )


if __name__ == "__main__":
    main()
