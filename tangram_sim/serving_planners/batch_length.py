"""Plans of a batch whose throughputs depend on how long it lasts: a fixed point with a bound.

A replica reaches a share of its steady throughput that rises with the length T of the batch, since filling
and emptying it cost about the same whatever comes between. With the throughputs of length T the program of
`milp` has the least makespan F(T), and F falls as T rises; the makespan wanted is T* = F(T*). If T* < T, then
F(T) <= F(T*) = T*: so T* is at least the smaller of T and any bound on F(T), whichever T was tried. A plan
tried at T lasts as long as its own fixed point says, which is found by halving.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt

from tangram_sim.serving.batch_times import BATCH_SECONDS
from tangram_sim.serving_planners.answer import PROVEN, Rental, Unanswered
from tangram_sim.serving_planners.problem import RentalProblem

_ROUNDS = 4  # lengths that are tried in whole numbers of replicas
_HALVINGS = 60
_SETTLING, _SETTLING_S = 12, 1.0  # times that shares are planned for the length they had, seconds for each
_NEAR = 1.003  # between bounds on the relaxed length
_FIRST_SHARE = 0.5  # of the time, for the first length


def solve_batch(
    problem: RentalProblem,
    solver: Callable[[RentalProblem, float], Rental | Unanswered],
    relaxed_s: Callable[[RentalProblem], float],
    time_limit_s: float,
) -> Rental | Unanswered:
    """The best plan of a batch, whose value and bound are lengths that agree with their throughputs.

    `solver` answers for throughputs that are fixed, within seconds; `relaxed_s` is the makespan with
    fractions of replicas.
    """
    length_s = _relaxed_length_s(problem, relaxed_s)
    if length_s == inf:
        return solver(problem.lasting(float(BATCH_SECONDS[-1])), time_limit_s)
    best: Rental | None = None
    bound_s, clock, left_s = 0.0, time.perf_counter(), _FIRST_SHARE * time_limit_s
    for _ in range(_ROUNDS):
        found = solver(problem.lasting(length_s), left_s)
        if isinstance(found, Unanswered):
            if best is None:
                return found
            break
        bound_s = max(bound_s, min(length_s, found.bound))
        settled = _settled(problem, found, max(length_s, found.value), solver)
        if best is not None and settled.value >= best.value * (1 - PROVEN):
            break
        best, length_s = settled, settled.value
        left_s = time_limit_s - (time.perf_counter() - clock)
        if best.value - bound_s <= PROVEN * best.value or left_s <= 0:
            break
    assert best is not None
    return replace(best, bound=min(best.value, bound_s))


def _relaxed_length_s(problem: RentalProblem, relaxed_s: Callable[[RentalProblem], float]) -> float:
    """The length at which the program with fractions of replicas agrees with its throughputs; inf: none."""
    low = max(relaxed_s(problem.lasting(float(BATCH_SECONDS[-1]))), float(BATCH_SECONDS[0]))
    if low > BATCH_SECONDS[-1]:
        return inf
    high = float(BATCH_SECONDS[-1])
    while high > low * _NEAR:
        middle = sqrt(low * high) if high > 2 * low else 0.5 * (low + high)
        needed = relaxed_s(problem.lasting(middle))
        # The makespan falls as the length rises: the fixed point lies between the two.
        if needed > middle:
            low, high = middle, min(high, needed)
        else:
            low, high = max(low, needed), middle
    return high


def _settled(
    problem: RentalProblem,
    plan: Rental,
    most_s: float,
    solver: Callable[[RentalProblem, float], Rental | Unanswered],
) -> Rental:
    """The same replicas with the shares of the batch's own length, which is `most_s` at most."""
    used = [c for c, count in enumerate(plan.counts) if count]
    mine = problem.keeping(frozenset(used))
    mine = replace(
        mine,
        configurations=tuple(
            replace(one, most=plan.counts[c]) for one, c in zip(mine.configurations, used, strict=True)
        ),
    )
    shares, length_s = [plan.shares[c] for c in used], min(length_of(problem, plan), most_s)
    for _ in range(_SETTLING):
        found = solver(mine.lasting(length_s), _SETTLING_S)
        if isinstance(found, Unanswered):
            break
        nearer_s = min(length_of(mine, found), length_s)
        shares = list(found.shares)
        if length_s - nearer_s < PROVEN * length_s:
            break
        length_s = nearer_s
    rows = list(plan.shares)
    for c, row in zip(used, shares, strict=True):
        rows[c] = row
    return replace(plan, shares=tuple(rows), value=length_s)


def length_of(problem: RentalProblem, plan: Rental) -> float:
    """How long a plan lasts with the throughputs of a batch of that length; inf: longer than any known."""
    used = [
        (
            one,
            sum(
                kind.amount * share / rps
                for kind, share, rps in zip(problem.types, shares, one.rps, strict=True)
                if share > 0
            )
            / count,
        )
        for one, count, shares in zip(problem.configurations, plan.counts, plan.shares, strict=True)
        if count
    ]

    def lasts(seconds: float) -> bool:
        return all(work_s <= seconds * one.share_in(seconds) for one, work_s in used)

    low, high = float(BATCH_SECONDS[0]), float(BATCH_SECONDS[-1])
    if not lasts(high):
        return inf
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if lasts(middle) else (middle, high)
    return high
