"""The cost-efficiency program: replicas of configurations and shares of requests, with a proven bound.

Of a batch (arXiv 2502.00722, which bisects the makespan T): with u = 1/T and z = x/T it is one program,

    max u,  sum_c z[c,w] = u,  sum_w z[c,w] f[w] / h[c,w] <= y[c],
            sum_c o[c] y[c] <= B,  sum_c d[n,c] y[c] <= a[n],

with y integer. Where replicas only prefill or only decode, sums over shares are those of whole and prefilling
replicas, all prefilled requests are decoded, and their KV caches pass the link. Of rates: u = 1, minimise
sum_c o[c] y[c], replicas busy at most `utilisation` of the time. Every scenario repeats the rows of shares
with what is left, for the requests that it must cover; one that loses any one node, for each node.
"""

import time
from dataclasses import replace
from math import inf

from tangram_sim.serving_planners.answer import PROVEN, Rental, Unanswered
from tangram_sim.serving_planners.batch_length import solve_batch
from tangram_sim.serving_planners.columns import generates, price_out, promising, solve_by_columns
from tangram_sim.serving_planners.dominance import undominated
from tangram_sim.serving_planners.node_loss import MOST_CONFIGURATIONS, each_alone, nodes_suffice
from tangram_sim.serving_planners.problem import MAKESPAN, WHOLE, RentalProblem
from tangram_sim.serving_planners.replica_program import ReplicaProgram, paced

# Of the time left: for a first plan, for placed replicas (all there are, or not), for plans losing none.
_FIRST_SHARE, _SURE_SHARE, _PLACED_SHARE, _BOUND_SHARE = 0.1, 0.9, 0.6, 0.5
_LEAST_S = 0.05  # for any part


def solve(
    problem: RentalProblem,
    *,
    allowed: frozenset[int] | None = None,
    capped: bool = True,
    common_shares: bool = False,
    relative_gap: float = PROVEN / 2,
    time_limit_s: float = inf,
) -> Rental | Unanswered:
    """The best plan of the problem.

    `allowed`: only these configurations; `capped`: within what is available. `common_shares`: all types of a
    model have the same shares over replicas (a router that does not look at the type). With a time limit, the
    best plan found, with its gap.
    """
    until = time.perf_counter() + time_limit_s
    chosen = allowed if allowed is not None else frozenset(range(len(problem.configurations)))
    if common_shares:
        chosen = frozenset(c for c in chosen if problem.serves_some_group(c))
    first = sorted(chosen)
    kept = problem.keeping(chosen, capped=capped)
    if first and not common_shares and not kept.depends_on_length:
        worth = undominated(kept)
        first, kept = [first[place] for place in sorted(worth)], kept.keeping(worth)
    if not first:
        return Unanswered(proven=True)
    if kept.depends_on_length:
        answer = solve_batch(
            kept,
            lambda some, seconds: solve(
                some, common_shares=common_shares, relative_gap=relative_gap, time_limit_s=seconds
            ),
            _relaxed_s,
            lambda some, plan: paced(some, common_shares, plan.value, plan.counts, plan.nodes),
            time_limit_s,
        )
    elif kept.loses_nodes:
        some, every = promising(kept, MOST_CONFIGURATIONS), kept
        first, kept = [first[place] for place in sorted(some)], kept.keeping(some)
        answer = _solve_placed(kept, every, common_shares, relative_gap, until)
    elif generates(kept) and not common_shares:
        answer = solve_by_columns(kept, time_limit_s, lambda some, s: _solve(some, False, relative_gap, s))
    else:
        answer = _solve(kept, common_shares, relative_gap, time_limit_s)
    if isinstance(answer, Unanswered):
        return answer
    return answer.among(first, len(problem.configurations), len(problem.types))


def _solve_placed(
    problem: RentalProblem, every: RentalProblem, common_shares: bool, relative_gap: float, until: float
) -> Rental | Unanswered:
    """The best plan found with replicas placed on nodes, and a bound for `every` configuration and placement.

    Ends at time `until` (clock). First a few configurations are placed on classes of equal nodes; then those
    of `problem`, within that plan's cost, with equal nodes in classes where they are many; then again if the
    reduced budget leaves few enough nodes to treat each by itself. Unless this covers all configurations and
    nodes, the bound is the better of two: plans without lost nodes, and fractional replicas.
    """

    def left_s(share: float) -> float:
        return max(_LEAST_S, share * (until - time.perf_counter()))

    batch, repriced = problem.objective == MAKESPAN, any(s.price_factors for s in problem.scenarios)
    best = _first_placed(problem, common_shares, relative_gap, left_s(_FIRST_SHARE))

    def for_less(asked: RentalProblem) -> RentalProblem:
        if best is None or batch or repriced:  # under other prices the budget is for them, too
            return asked
        return replace(
            asked, budget_usd_per_hour=min(asked.budget_usd_per_hour, best.value * (1 + PROVEN / 100))
        )

    tried, again = for_less(problem), True
    while again:
        alone = each_alone(tried)
        whole = alone and len(problem.configurations) == len(every.configurations)
        sure = whole and nodes_suffice(every, tried.budget_usd_per_hour)
        answer = _solve(tried, common_shares, relative_gap, left_s(_SURE_SHARE if sure else _PLACED_SHARE))
        if isinstance(answer, Rental) and (best is None or answer.value <= best.value * (1 + PROVEN / 10)):
            best = answer
        tried = for_less(tried)
        again = not alone and each_alone(tried)
    usd = problem.budget_usd_per_hour
    enough = nodes_suffice(every, usd if best is None or batch else min(usd, best.value))
    if whole and enough and best in (None, answer):
        return answer
    free = solve(
        every.without_lost_nodes,
        common_shares=common_shares,
        relative_gap=relative_gap,
        time_limit_s=left_s(_BOUND_SHARE),
    )
    bound, impossible = (0.0, free.proven) if isinstance(free, Unanswered) else (free.bound, False)
    if enough:
        scale_s = best.value if batch and best is not None else 1.0
        found = ReplicaProgram(every, common_shares, scale_s, whole_replicas=False).optimum(
            relative_gap, left_s(1.0)
        )
        impossible = impossible or found.infeasible
        if found.values is not None and found.bound > 0:
            bound = max(bound, scale_s / found.bound if batch else found.bound)
        elif found.values is not None and batch:
            impossible = True
    return Unanswered(proven=impossible) if best is None else replace(best, bound=min(best.value, bound))


def _first_placed(
    problem: RentalProblem, common_shares: bool, relative_gap: float, time_limit_s: float
) -> Rental | None:
    """A plan with the configurations of the best fractional solution; its bound is valid for these only."""
    relaxed = ReplicaProgram(problem, common_shares, 1.0, whole_replicas=False)
    found = relaxed.optimum(relative_gap, time_limit_s)
    if found.values is None:
        return None
    used = [c for c, v in enumerate(relaxed.counts) if found.values[v] > PROVEN]
    few = problem.keeping(frozenset(used))
    first = _solve(few, common_shares, relative_gap, time_limit_s, coarse=True) if used else None
    if not isinstance(first, Rental):
        return None
    return first.among(used, len(problem.configurations), len(problem.types))


def _solve(
    problem: RentalProblem,
    common_shares: bool,
    relative_gap: float,
    time_limit_s: float,
    *,
    coarse: bool = False,
) -> Rental | Unanswered:
    """Solve the integer program with all configurations.

    Times are scaled by the makespan with fractional replicas, so that the program's numbers are near 1.
    """
    scale_s = 1.0
    if problem.objective == MAKESPAN:
        relaxed = ReplicaProgram(problem, common_shares, 1.0, whole_replicas=False)
        found = relaxed.lp.maximise([(relaxed.pace, 1.0)])
        if found.values is None or found.values[relaxed.pace] <= 0:
            return Unanswered(proven=found.infeasible or found.values is not None)
        scale_s = 1.0 / float(found.values[relaxed.pace])
    return ReplicaProgram(problem, common_shares, scale_s, coarse=coarse).best(relative_gap, time_limit_s)


def _relaxed_s(problem: RentalProblem) -> float:
    """Makespan with fractional replicas, seconds; inf where nothing is served."""
    if not problem.configurations:
        return inf
    if all(configuration.role == WHOLE for configuration in problem.configurations) and not problem.scenarios:
        priced = price_out(problem)
        if priced is not None and priced.bound > 0:
            return 1.0 / priced.bound
    relaxed = ReplicaProgram(problem, False, 1.0, whole_replicas=False)
    found = relaxed.lp.maximise([(relaxed.pace, 1.0)])
    pace = 0.0 if found.values is None else float(found.values[relaxed.pace])
    return 1.0 / pace if pace > 0 else inf
