"""Why a problem has no plan, in numbers: an unserved type, the caps or the budget, and what would suffice."""

from dataclasses import replace
from math import inf

from tangram_sim.serving_planners.answer import PROVEN, Rental, Unanswered
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.problem import COST, MAKESPAN, WHOLE, RentalProblem

_LIMIT_S = 1.0
_NEAR = 0.01  # a gap at which a figure is said to be the most, or the least


def why_infeasible(problem: RentalProblem, *, proven: bool = True) -> str:
    """Why a problem has no plan, in a sentence or two: the obstacle, and what would remove it.

    `proven`: there is no plan; otherwise none was found in time.
    """
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
    least, caps, budget = _least_usd(problem), _caps(problem), problem.budget_usd_per_hour
    dearer = " and ".join(scenario.name for scenario in problem.scenarios if scenario.price_factors)
    if isinstance(least, Rental) and budget < least.value:
        would_do = "the least that would do is " * (least.gap <= _NEAR)
        would_do += f"{least.value:.6g} USD/h" + " would do" * (least.gap > _NEAR)
        would_do += f", without the prices of {dearer}" * bool(dearer)
        words.append(f"the budget of {budget:g} USD/h is too small: {would_do}")
    elif isinstance(least, Rental) and dearer and proven:
        words.append(
            f"at the prices of {dearer} no plan is within the budget of {budget:g} USD/h; at today's "
            f"{least.value:.6g} USD/h would do"
        )
    if isinstance(least, Unanswered):
        freed = _least_usd(problem.keeping(frozenset(range(len(problem.configurations))), capped=False))
        if isinstance(freed, Rental):
            little = f"what is available ({caps}) is too little at any price; without these caps "
            unknown = f"without the limits on what is available ({caps}) "
            short = f" (the budget is {budget:g} USD/h)" * (budget < freed.value)
            words.append(f"{little if least.proven else unknown}{freed.value:.6g} USD/h would do{short}")
    if not words and not proven and not (isinstance(least, Unanswered) and least.proven):
        return "whether there is one is not known"
    return "; ".join(words) or "no mix of the configurations serves these requests"


def _without_a_node(problem: RentalProblem) -> list[str]:
    """Text: requests/s with all nodes and after any loss of one; [] where all are too few, or unknown."""
    if problem.objective != COST:
        return []
    whole, left = _most_rps(problem.without_lost_nodes), _most_rps(problem)
    if whole is None or left is None or not problem.total * (1 - PROVEN) <= whole < inf:
        return []
    return [
        f"all nodes together carry {whole:.4g} requests/s, what any one lost node leaves {left:.4g} of the "
        f"{problem.total:.4g} that are asked for"
    ]


def _most_rps(problem: RentalProblem) -> float | None:
    """Maximum requests per second of the problem's mix, to 1 %: inf where nothing limits them, 0 for none.

    None where it was not found in time.
    """
    if problem.budget_usd_per_hour == inf and any(gpu.available == inf for gpu in problem.gpus):
        return inf
    found = solve(replace(problem, objective=MAKESPAN), relative_gap=1e-3, time_limit_s=_LIMIT_S)
    if isinstance(found, Rental):
        return problem.total / found.value if found.gap <= _NEAR else None
    return 0.0 if found.proven else None


def _caps(problem: RentalProblem) -> str:
    return ", ".join(f"{gpu.available:g} {gpu.name}" for gpu in problem.gpus if gpu.available < inf)


def _least_usd(problem: RentalProblem) -> Rental | Unanswered:
    """The cheapest plan without a budget.

    For a batch of any length: the cheapest replicas that together serve every type in every scenario, where a
    replica that serves a type at all counts as serving all of it.
    """
    asked = replace(problem, budget_usd_per_hour=inf)
    if problem.objective == MAKESPAN:
        amount = 1.0 / max(1, sum(kind.amount > 0 for kind in problem.types))
        asked = replace(
            asked,
            objective=COST,
            configurations=tuple(
                replace(one, rps=tuple(float(rps > 0) for rps in one.rps)) for one in problem.configurations
            ),
            types=tuple(replace(kind, amount=amount * (kind.amount > 0)) for kind in problem.types),
            slices=0,
            utilisation=1.0,
            scenarios=tuple(
                replace(scenario, coverage=float(scenario.coverage > 0), rate_factor=1.0)
                for scenario in problem.scenarios
            ),
            link_bytes_per_s=inf,
        )
    return solve(asked, relative_gap=1e-3, time_limit_s=_LIMIT_S)
