"""Column generation over many configurations: a relaxation that prices all, and a proof for those left out.

With time shares s[c,w] of replicas of configuration c on type w (in replicas, fractions allowed) and l[c,w]
the replicas that the whole type needs at pace 1, the relaxation of a batch is

    max u,  sum_c s[c,w] / l[c,w] >= u,  sum d[n,c] s[c,w] <= a[n],  sum o[c] s[c,w] <= B,

with a few columns at a time. Its duals pi (types), lambda (kinds) and mu (budget) price all other columns: c
may improve the optimum where max_w pi[w] / l[c,w] exceeds p[c] = sum_n lambda[n] d[n,c] + mu o[c]. Those that
improve it most enter, until none does. At any time, with theta the minimum of p[c] l[c,w] / pi[w], lambda and
mu divided by theta are feasible duals for all configurations, so no plan is faster than (lambda a + mu B) /
theta (Farley 1990). A plan with a whole replica of c is slower than that by at least p[c] / theta - max_w
pi[w] / l[c,w]: where this is worse than the best plan found, c is in no better plan, and is left out with a
proof. Minimum costs for given rates are the same with o[c] in the objective, and theta scaling pi.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from tangram_sim.serving_planners.answer import Rental, Unanswered
from tangram_sim.serving_planners.problem import MAKESPAN, WHOLE, RentalProblem

Array = NDArray[np.float64]

MANY = 200  # configurations from which on columns are generated
_ENTERING, _MOST_ROUNDS = 40, 200
_UNSERVED = 10.0  # times the dearest way to serve
_SETTLED = 1e-7  # of theta from 1
_MOST_KEPT = 400  # configurations of one integer program
_FIRST_SHARE = 0.3  # of the time, for a plan of the generated columns alone

Solver = Callable[[RentalProblem, float], Rental | Unanswered]  # of a problem, within seconds


@dataclass(frozen=True)
class PricedOut:
    """Result of the relaxation over all configurations.

    `bound`: no plan has a greater pace (a batch) or a lower cost. `worse[c]`: lower bound on how much worse
    than `bound` a plan with a whole replica of c is. `columns` are those that entered. `rounds` of pricing.
    """

    bound: float
    worse: Array
    columns: tuple[int, ...]
    rounds: int


def generates(problem: RentalProblem) -> bool:
    """Whether column generation applies: many configurations, no scenarios, slices or roles, and a limit."""
    limited = problem.budget_usd_per_hour < inf or all(gpu.available < inf for gpu in problem.gpus)
    return (
        len(problem.configurations) >= MANY
        and not problem.scenarios
        and not problem.slices
        and all(configuration.role == WHOLE for configuration in problem.configurations)
        and (limited or problem.objective != MAKESPAN)
    )


def solve_by_columns(problem: RentalProblem, time_limit_s: float, solver: Solver) -> Rental | Unanswered:
    """The best plan over all configurations, by integer programs over few of them, with a bound for all."""
    priced = price_out(problem)
    if priced is None:
        return solver(problem, time_limit_s)
    first = _on(problem, frozenset(priced.columns), solver, _FIRST_SHARE * time_limit_s)
    batch = problem.objective == MAKESPAN
    at_hand = (0.0 if batch else inf) if isinstance(first, Unanswered) else _pace(first.value, batch)
    best_with = priced.bound - priced.worse if batch else priced.bound + priced.worse
    open_ = np.flatnonzero(best_with > at_hand if batch else best_with < at_hand)
    order = open_[np.argsort(priced.worse[open_], kind="stable")]
    kept, left = order[:_MOST_KEPT], order[_MOST_KEPT:]
    answer = first
    if len(kept) and not (isinstance(first, Rental) and not set(kept.tolist()) - set(priced.columns)):
        both = frozenset(kept.tolist()) | frozenset(priced.columns)
        answer = _on(problem, both, solver, (1 - _FIRST_SHARE) * time_limit_s)
    if isinstance(answer, Unanswered):
        answer = first
    if isinstance(answer, Unanswered):
        return Unanswered(proven=answer.proven and not len(left))
    # No plan of the columns looked at passes their bound, none with another column passes the best left out.
    others = best_with[left].max(initial=0.0) if batch else best_with[left].min(initial=inf)
    inside = _pace(answer.bound, batch)
    bound = min(priced.bound, max(inside, others)) if batch else max(priced.bound, min(inside, others))
    seconds = 1.0 / bound if batch else bound
    best = min(
        (item for item in (first, answer) if isinstance(item, Rental)), key=lambda rental: rental.value
    )
    return replace(best, bound=min(best.value, seconds))


def promising(problem: RentalProblem, most: int) -> frozenset[int]:
    """About `most` configurations: the best for each type in every scenario, then the best in the relaxation.

    The relaxation ignores losses. All configurations if no more than `most`, or without a result.
    """
    given = problem.configurations
    everything = frozenset(range(len(given)))
    plain = len(given) > most and all(configuration.role == WHOLE for configuration in given)
    priced = price_out(problem) if plain else None
    if priced is None:
        return everything
    kept = set[int]()
    for lost in {frozenset[int](), *(scenario.lost for scenario in problem.scenarios)}:
        for w, kind in enumerate(problem.types):
            able = [c for c in everything - lost if kind.amount > 0 and given[c].rps[w] > 0]
            if able:
                kept.add(max(able, key=lambda c: given[c].rps[w] / max(given[c].usd_per_hour, 1e-9)))
                kept.add(max(able, key=lambda c: given[c].rps[w] / given[c].gpu_count))
    for c in np.argsort(priced.worse, kind="stable").tolist():
        if len(kept) >= most:
            break
        kept.add(c)
    return frozenset(kept)


def _pace(value: float, batch: bool) -> float:
    return 1.0 / value if batch else value


def _on(
    problem: RentalProblem, chosen: frozenset[int], solver: Solver, time_limit_s: float
) -> Rental | Unanswered:
    """The plan with the `chosen` configurations only; counts and shares are numbered as in the problem."""
    found = solver(problem.keeping(chosen), time_limit_s)
    if isinstance(found, Unanswered):
        return found
    return found.among(sorted(chosen), len(problem.configurations), len(problem.types))


def price_out(problem: RentalProblem) -> PricedOut | None:
    """Solve the relaxation by column generation; None where it has no solution or its duals give no bound."""
    batch = problem.objective == MAKESPAN
    live = [w for w, request_type in enumerate(problem.types) if request_type.amount > 0]
    rps = np.array([configuration.rps for configuration in problem.configurations])[:, live]
    amounts = np.array([problem.types[w].amount for w in live]) / problem.utilisation
    # Of the pace or the demand that one replica gives to each type.
    gains = rps / amounts
    unit = (
        float(gains.max(initial=0.0)) if batch else 1.0
    )  # paces near 1: the solver's tolerances are absolute
    if unit <= 0:
        return None
    gains = gains / unit
    usd = np.array([configuration.usd_per_hour for configuration in problem.configurations])
    takes = np.array([configuration.gpus for configuration in problem.configurations], dtype=np.float64)
    caps = np.array([gpu.available for gpu in problem.gpus] + [problem.budget_usd_per_hour])
    uses = np.column_stack([takes, usd])[:, caps < inf]
    caps = caps[caps < inf]
    # A replica that passes a cap by itself is in no plan.
    possible = np.asarray((uses <= caps * (1 + 1e-12)).all(axis=1))
    chosen = _first_columns(gains, uses, usd, possible)
    for rounds in range(1, _MOST_ROUNDS + 1):
        duals = _restricted(gains[chosen], uses[chosen], usd[chosen], caps, batch)
        if duals is None:
            return None
        of_types, of_caps = duals
        price = uses @ of_caps + (0.0 if batch else usd)
        worth = (gains * of_types).max(axis=1)
        over = np.where(possible, worth - price * (1 + _SETTLED), -inf)
        over[chosen] = -inf
        entering = np.argsort(-over, kind="stable")[:_ENTERING]
        entering = entering[over[entering] > 0]
        if not len(entering) or rounds == _MOST_ROUNDS:
            break
        chosen = np.unique(np.concatenate([chosen, entering]))
    ratio = np.divide(price, worth, out=np.full_like(price, inf), where=possible & (worth > 0))
    theta = min(1.0, float(ratio.min()))
    if theta <= 0:
        return None
    if batch:
        bound = unit * float(of_caps @ caps) / theta
        worse = unit * (price / theta - worth)
    else:
        bound = float(theta * of_types.sum() - of_caps @ caps)
        worse = price - theta * worth
    return PricedOut(bound, np.where(possible, np.maximum(worse, 0.0), inf), tuple(chosen.tolist()), rounds)


def _first_columns(gains: Array, uses: Array, usd: Array, possible: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Initial configurations: for each type the fastest, in all, per dollar and per unit of each limit."""
    found: set[int] = set()
    weights = [np.ones(len(usd)), usd, *(np.maximum(column, 1e-9) for column in uses.T)]
    for weight in weights:
        rates = np.where(possible[:, None], gains / weight[:, None], -1.0)
        found.update(np.argmax(rates, axis=0).tolist())
    return np.array(sorted(found), dtype=np.int64)


def _restricted(
    gains: Array, uses: Array, usd: Array, caps: Array, batch: bool
) -> tuple[Array, Array] | None:
    """(duals of the types, duals of the caps) of the relaxation with these columns; None: no solution."""
    from scipy.optimize import linprog  # half a second to import

    columns, types = gains.shape
    pairs = columns * types
    serve = np.zeros((types, pairs + 1))
    for w in range(types):
        serve[w, w:pairs:types] = -gains[:, w]
    serve[:, pairs] = 1.0
    spend = np.zeros((len(caps), pairs + 1))
    spend[:, :pairs] = np.repeat(uses, types, axis=0).T
    cost = np.zeros(pairs + 1)
    bounds: list[tuple[float, float | None]] = [(0.0, None)] * pairs
    if batch:
        cost[pairs] = -1.0
        bounds.append((0.0, None))
    else:
        cost[:pairs] = np.repeat(usd, types)
        # Columns that cannot serve everything within the caps serve what they can, at a loss no column has.
        dearest = np.divide(usd[:, None], gains, out=np.ones_like(gains), where=gains > 0).max(initial=1.0)
        cost[pairs] = -_UNSERVED * float(dearest)
        bounds.append((0.0, 1.0))
    found = linprog(
        cost,
        A_ub=np.vstack([serve, spend]),
        b_ub=np.concatenate([np.zeros(types), caps]),
        bounds=bounds,
        method="highs",
    )
    if found.status != 0:
        return None
    duals = np.maximum(-np.asarray(found.ineqlin.marginals), 0.0)
    scale = float(duals[:types].sum()) if batch else 1.0
    return (duals[:types] / scale, duals[types:] / scale) if scale > 0 else None
