"""Replicas that only prefill or only decode: brute force over numbers of replicas, and the link's worth."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from tangram_sim.errors import TangramError
from tangram_sim.serving_planners.answer import Rental
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.problem import RentalProblem
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.serving_planners.program import LinearProgram
from tangram_sim.studies.serving_plan import plan_problem

PROBLEM: dict[str, Any] = {
    "kind": "makespan",
    "budget_per_hour": 7,
    "gpus": {"fast": {"price_per_hour": 2, "available": 2}, "wide": {"price_per_hour": 1, "available": 3}},
    "configurations": [
        {"name": "fast whole", "gpus": {"fast": 1}, "throughput": [1.0]},
        {"name": "fast prefill", "gpus": {"fast": 1}, "throughput": [4.0], "role": "prefill"},
        {"name": "wide decode", "gpus": {"wide": 1}, "throughput": [1.0], "role": "decode"},
    ],
    "workload": [{"requests": 60, "isl": 4000, "osl": 200, "kv_bytes": 5e8}],
}


def rental(data: dict[str, Any]) -> RentalProblem:
    problem, _ = read_problem(data)
    assert isinstance(problem, RentalProblem)
    return problem


def brute_force(problem: RentalProblem) -> float:
    """The least makespan over all numbers of replicas, each by a linear program of its own in 1/T."""
    best = float("inf")
    ranges = [
        range(
            1
            + min(
                int(gpu.available // k) for gpu, k in zip(problem.gpus, configuration.gpus, strict=True) if k
            )
        )
        for configuration in problem.configurations
    ]
    for counts in product(*ranges):
        usd = sum(
            k * configuration.usd_per_hour
            for k, configuration in zip(counts, problem.configurations, strict=True)
        )
        used = np.array([configuration.gpus for configuration in problem.configurations]).T @ np.array(counts)
        if usd > problem.budget_usd_per_hour or any(
            k > gpu.available for k, gpu in zip(used, problem.gpus, strict=True)
        ):
            continue
        program = LinearProgram()
        pace = program.variable()
        flow: dict[tuple[int, int, str], int] = {}
        for c, configuration in enumerate(problem.configurations):
            for w, rate in enumerate(configuration.rps):
                if rate > 0:
                    flow[c, w, configuration.role] = program.variable()
            busy = [(v, 1 / configuration.rps[w]) for (at, w, _), v in flow.items() if at == c]
            program.row(busy, high=float(counts[c]))
        for w, kind in enumerate(problem.types):
            for ends in ("prefill", "decode"):
                mine = [(v, 1.0) for (_, at, role), v in flow.items() if at == w and role in ("both", ends)]
                program.row([*mine, (pace, -kind.amount)], low=0.0, high=0.0)
        sent = [(v, problem.types[w].kv_bytes) for (_, w, role), v in flow.items() if role == "prefill"]
        program.row(sent, high=problem.link_bytes_per_s)
        values = program.maximise([(pace, 1.0)]).values
        if values is not None and values[pace] > 1e-12:
            best = min(best, 1 / float(values[pace]))
    return best


def test_a_link_is_worth_what_it_lets_pass() -> None:
    """One prefills for three that decode, beside a whole one; a narrow link leaves one for each."""
    free = plan_problem(rental(PROBLEM))
    assert free.throughput_rps == pytest.approx(4.0)
    assert free.shares["fast prefill"][0] == pytest.approx(free.shares["wide decode"][0])
    narrow = plan_problem(rental(PROBLEM | {"link_gb_per_s": 0.5}))
    assert narrow.throughput_rps == pytest.approx(2.0)
    assert narrow.makespan_s == pytest.approx(brute_force(rental(PROBLEM | {"link_gb_per_s": 0.5})))


@pytest.mark.parametrize("seed", range(6))
def test_plans_with_roles_are_the_best_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    types = int(random.integers(1, 3))
    roles = ["prefill", "decode", "both", "prefill", "decode"]
    data = {
        "kind": "makespan",
        "budget_per_hour": 6,
        "gpus": {name: {"price_per_hour": usd, "available": 2} for name, usd in (("a", 1.5), ("b", 1.0))},
        "configurations": [
            {
                "name": f"c{c}",
                "gpus": {"ab"[c % 2]: 1},
                "throughput": np.round(random.uniform(0.3, 4, types), 3).tolist(),
                "role": role,
            }
            for c, role in enumerate(roles)
        ],
        "workload": [{"requests": int(count), "kv_bytes": 1e9} for count in random.integers(5, 50, types)],
        "link_gb_per_s": float(random.choice([0.5, 2.0, 100.0])),
    }
    problem = rental(data)
    found = solve(problem)
    assert isinstance(found, Rental)
    assert found.value == pytest.approx(brute_force(problem), rel=1e-6)
    assert found.optimal


def test_a_half_without_the_other_is_refused() -> None:
    with pytest.raises(TangramError, match="none of decode"):
        rental(PROBLEM | {"configurations": PROBLEM["configurations"][:2]})
    lame = [*PROBLEM["configurations"][1:]]
    lame[1] = lame[1] | {"throughput": [None]}
    found = plan_problem(rental(PROBLEM | {"configurations": lame}))
    assert found.status == "infeasible"
    assert "one half, prefill" in found.reason
