"""Why a problem has no plan, in numbers: the type nobody serves, the cap, the budget, and what would do."""

from dataclasses import replace
from math import inf

from tangram_sim.serving_planners.answer import PROVEN, Rental
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.problem import COST, DECODE, MAKESPAN, PREFILL, WHOLE, RentalProblem
from tangram_sim.serving_planners.program import LinearProgram

_LIMIT_S = 1.0


def why_infeasible(problem: RentalProblem) -> str:
    """Why a problem has no plan, in a sentence or two: what stands in the way, and what would help."""
    for w, request_type in enumerate(problem.types):
        able = {c.role for c in problem.configurations if c.rps[w] > 0}
        if request_type.amount > 0 and not able:
            return f"no configuration can serve {request_type.name}: its throughput is null in all of them"
        if request_type.amount > 0 and WHOLE not in able and len(able) < 2:
            return f"{request_type.name} can only be served in one half, {able.pop()}; add the other half"
    for scenario in problem.scenarios:
        for w, request_type in enumerate(problem.types):
            left = (c for c in range(len(problem.configurations)) if c not in scenario.lost)
            if (
                request_type.amount > 0
                and scenario.coverage > 0
                and not any(problem.configurations[c].rps[w] > 0 for c in left)
            ):
                return (
                    f"scenario {scenario.name} takes every configuration that can serve {request_type.name}; "
                    "add one on other GPUs, or set its coverage to 0"
                )
    for gpu in problem.gpus:
        if gpu.available < inf and all(
            c.gpus[problem.gpus.index(gpu)] > gpu.available for c in problem.configurations
        ):
            return f"every configuration takes more {gpu.name} than the {gpu.available:g} that are available"
    words = []
    if problem.loses_nodes:
        words += _without_a_node(problem)
    if problem.budget_usd_per_hour < inf:
        least = _least_usd(problem)
        if least < inf:
            words.append(
                f"the budget of {problem.budget_usd_per_hour:g} USD/h is too small: the least that would do "
                f"is {least:.6g} USD/h"
            )
    if not words or problem.loses_nodes:
        freed = _least_usd(problem.keeping(frozenset(range(len(problem.configurations))), capped=False))
        if freed < inf:
            words.append(
                f"what is available ({_caps(problem)}) is too little at any price; without these caps "
                f"{freed:.6g} USD/h would do"
            )
    return "; ".join(words) or "no mix of the configurations serves these requests"


def _without_a_node(problem: RentalProblem) -> list[str]:
    """What all nodes carry, and what any one lost node leaves of it; [] where all are too few."""
    without = tuple(replace(scenario, any_node=False) for scenario in problem.scenarios)
    whole = _most_rps(replace(problem, scenarios=without))
    left = _most_rps(problem)
    if problem.objective != COST or whole < problem.total * (1 - PROVEN):
        return []
    return [
        f"all nodes together carry {whole:.4g} requests/s, what any one lost node leaves {left:.4g} of the "
        f"{problem.total:.4g} that are asked for"
    ]


def _most_rps(problem: RentalProblem) -> float:
    """The most requests a second of the problem's mix; inf where nothing limits them, 0 for none."""
    if problem.budget_usd_per_hour == inf and any(gpu.available == inf for gpu in problem.gpus):
        return inf
    found = solve(replace(problem, objective=MAKESPAN), relative_gap=1e-3, time_limit_s=_LIMIT_S)
    return problem.total / found.value if isinstance(found, Rental) else 0.0


def _caps(problem: RentalProblem) -> str:
    return ", ".join(f"{gpu.available:g} {gpu.name}" for gpu in problem.gpus if gpu.available < inf)


def _least_usd(problem: RentalProblem) -> float:
    """The least dollars an hour that give any plan at all."""
    if problem.objective == COST:
        found = solve(replace(problem, budget_usd_per_hour=inf), relative_gap=1e-3, time_limit_s=_LIMIT_S)
        return found.value if isinstance(found, Rental) else inf
    # A batch is finished some day by any set of replicas that together serve every type, in every scenario.
    program = LinearProgram()
    counts = [program.variable(1.0, integer=True) for _ in problem.configurations]
    for lost in [
        frozenset[int](),
        *(scenario.lost for scenario in problem.scenarios if scenario.coverage > 0),
    ]:
        for w, request_type in enumerate(problem.types):
            for half in (PREFILL, DECODE):
                able = [
                    (v, 1.0)
                    for c, v in enumerate(counts)
                    if problem.configurations[c].rps[w] > 0
                    and problem.configurations[c].role in (WHOLE, half)
                    and c not in lost
                ]
                if request_type.amount > 0:
                    program.row(able, low=1.0)
    for n, gpu in enumerate(problem.gpus):
        program.row(
            [(v, float(problem.configurations[c].gpus[n])) for c, v in enumerate(counts)], high=gpu.available
        )
    usd = [(v, problem.configurations[c].usd_per_hour) for c, v in enumerate(counts)]
    cheapest = program.minimise(usd, 1e-6, _LIMIT_S)
    return cheapest.bound if cheapest.values is not None else inf
