"""How long plans of a service take: `python -m benchmarks.serving_plans`; problems are drawn from a seed."""

from typing import Any

import numpy as np

from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import plan_problem

_SIZES = (1, 2, 4, 8, 16)
_PAIRS = ((1, 1), (2, 2), (4, 4), (1, 2), (2, 4), (2, 1), (4, 2), (8, 8))


def problem(
    kinds: int, types: int, budget: float, caps: list[int], random: np.random.Generator
) -> dict[str, Any]:
    """Kinds whose throughput goes with their price, with tastes of their own for types of request."""
    prices = random.uniform(0.5, 4.0, kinds)
    speed = prices * random.uniform(0.7, 1.4, kinds)
    taste, length = random.uniform(0.6, 1.6, (kinds, types)), random.lognormal(0.0, 1.0, types)
    alone, pairs = [], []
    for i in range(kinds):
        for size in _SIZES:
            rates = (
                speed[i] * taste[i] * length * size * random.uniform(0.8, 1.15, types) * 0.93 ** np.log2(size)
            )
            alone.append({"name": f"{size} x k{i}", "gpus": {f"k{i}": size}, "throughput": rates.tolist()})
        for j in range(i):
            for p, q in _PAIRS:
                both = (speed[i] * taste[i] * p + speed[j] * taste[j] * q) * length
                rates = both * random.uniform(0.6, 1.05, types)
                name, gpus = f"{p} x k{i} + {q} x k{j}", {f"k{i}": p, f"k{j}": q}
                pairs.append({"name": name, "gpus": gpus, "throughput": rates.tolist()})
    return {
        "kind": "makespan",
        "gpus": {f"k{i}": {"price_per_hour": prices[i], "available": caps[i]} for i in range(kinds)},
        "budget_per_hour": budget,
        "configurations": alone + pairs,
        "workload": [{"requests": float(count)} for count in random.uniform(100, 4000, types)],
    }


def main() -> None:
    """Print one line per problem: size, status, gap, CPU seconds, gain over the best single kind."""
    random = np.random.default_rng(0)
    cases = [(6, 9, 60.0, [16, 12, 8, 12, 6, 8])] * 3 + [(10, 27, 2000.0, [100] * 10)]
    for kinds, types, budget, caps in cases:
        given, _ = read_problem(problem(kinds, types, budget, caps, random))
        found = plan_problem(given)
        alone = min(rival.value for rival in found.rivals if rival.capped and rival.value is not None)
        gain = alone / (found.makespan_s or 1.0)
        print(
            f"{kinds} kinds x {types} types at {budget:g} USD/h: {found.status}, gap {found.gap:.4f}, "
            f"{found.planning_cpu_s:.1f} CPU-s, {gain:.2f} x the best single kind",
            flush=True,
        )


if __name__ == "__main__":
    main()
