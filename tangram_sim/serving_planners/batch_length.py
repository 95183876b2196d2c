"""Plans of a batch whose throughputs depend on its length: a fixed point with a bound.

A replica of configuration c reaches a share s_c(T) of its steady throughput in a batch of length T, since
filling and draining it cost about the same at any length. Wanted is T*, the shortest of all plans' consistent
lengths. Shares mostly rise with T, but where memory fills up they fall again by some points. So let L be a
lower bound, T* >= L, and try any T > L: with the greatest shares of any length from L to T, the program of
`milp` has the minimum makespan G. If T* < T, no configuration reaches more at T* than in the program, so the
best plan takes at most T* in it, and G <= T*: hence T* is at least the smaller of T and any lower bound on G,
the next L. The length of a plan found in this way is its own fixed point, found by bisection; where it must
tolerate scenarios, by bisection over lengths at whose throughputs it meets each of them.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt

from tangram_sim.serving.batch_times import BATCH_SECONDS
from tangram_sim.serving_planners.answer import PROVEN, Rental, Unanswered
from tangram_sim.serving_planners.problem import RentalProblem

_ROUNDS = 8  # lengths that are tried in whole numbers of replicas
_HALVINGS = 60
_SETTLING, _SETTLING_S = 12, 1.0  # times that shares are planned for the length they had, seconds for each
_NEAR = 1.003  # between the bound by fractions of replicas and the first length tried
_FIRST_SHARE = 0.5  # of the time, for the first length


def solve_batch(
    problem: RentalProblem,
    solver: Callable[[RentalProblem, float], Rental | Unanswered],
    relaxed_s: Callable[[RentalProblem], float],
    paced: Callable[[RentalProblem, Rental], Rental | None],
    time_limit_s: float,
) -> Rental | Unanswered:
    """The best plan of a batch; value and bound are batch lengths consistent with throughputs at that length.

    `solver` solves a problem with fixed throughputs within the given seconds; `relaxed_s` is the makespan
    with fractional replicas; `paced` keeps a plan's replicas on their nodes and returns the shares and
    makespan for a problem (None: nothing is served).
    """
    clock = time.perf_counter()
    bound_s, length_s = _relaxed_length_s(problem, relaxed_s)
    if bound_s > BATCH_SECONDS[-1]:  # beyond, shares stay at those of the last length known
        return solver(problem.lasting(bound_s), time_limit_s)
    best: Rental | None = None
    left_s = _FIRST_SHARE * time_limit_s
    for _ in range(_ROUNDS):
        found = solver(problem.lasting(length_s, bound_s), left_s)
        if isinstance(found, Unanswered):
            if best is None:
                return found
            break
        before_s, bound_s = bound_s, max(bound_s, min(length_s, found.bound))
        if problem.scenarios:
            settled = _borne(problem, found, paced, bound_s, clock + time_limit_s)
        else:
            settled = _settled(problem, found, solver, clock + time_limit_s)
        if best is None or settled.value < best.value * (1 - PROVEN):
            best = settled
        elif bound_s < before_s * (1 + PROVEN):
            break
        length_s = best.value
        left_s = time_limit_s - (time.perf_counter() - clock)
        if best.value - bound_s <= PROVEN * best.value or left_s <= 0:
            break
    assert best is not None
    return replace(best, bound=min(best.value, bound_s))


def _relaxed_length_s(
    problem: RentalProblem, relaxed_s: Callable[[RentalProblem], float]
) -> tuple[float, float]:
    """(lower bound on all plans' lengths, a length near it), seconds, by fractional replicas; inf: none."""
    low, high = float(BATCH_SECONDS[0]), float(BATCH_SECONDS[-1])
    low = max(low, relaxed_s(problem.lasting(high, low)))
    while high > low * _NEAR:
        middle = sqrt(low * high) if high > 2 * low else 0.5 * (low + high)
        needed = relaxed_s(problem.lasting(middle, low))
        if needed > middle:
            low, high = middle, min(high, needed)
        else:
            low, high = max(low, needed), middle
    return low, max(low, high)


def _settled(
    problem: RentalProblem,
    plan: Rental,
    solver: Callable[[RentalProblem, float], Rental | Unanswered],
    until: float,
) -> Rental:
    """The same replicas with the shares that fit the batch's own length, iterated `until` (clock)."""
    used = [c for c, count in enumerate(plan.counts) if count]
    mine = problem.keeping(frozenset(used))
    mine = replace(
        mine,
        configurations=tuple(
            replace(configuration, most=plan.counts[c])
            for configuration, c in zip(mine.configurations, used, strict=True)
        ),
    )
    shares, length_s = [plan.shares[c] for c in used], length_of(problem, plan)
    for _ in range(_SETTLING):
        left_s = until - time.perf_counter()
        if left_s <= 0:
            break
        found = solver(mine.lasting(length_s), min(_SETTLING_S, left_s))
        if isinstance(found, Unanswered):
            break
        nearer_s = length_of(mine, found)
        if nearer_s > length_s:
            break
        gained_s, length_s, shares = length_s - nearer_s, nearer_s, list(found.shares)
        if gained_s < PROVEN * length_s:
            break
    rows = list(plan.shares)
    for c, row in zip(used, shares, strict=True):
        rows[c] = row
    return replace(plan, shares=tuple(rows), value=length_s)


def _borne(
    problem: RentalProblem,
    plan: Rental,
    paced: Callable[[RentalProblem, Rental], Rental | None],
    low: float,
    until: float,
) -> Rental:
    """The same replicas with the shares and the length that hold in every scenario; inf: there is none.

    `low` is a lower bound on every length. The length is as near to the minimum as bisection gets `until`.
    """
    last = float(BATCH_SECONDS[-1])
    high = min(max(low, plan.value), last)
    kept = paced(problem.lasting(high), plan)
    while high < last and (kept is None or kept.value > high):
        low, high = high, min(2.0 * high, last)
        kept = paced(problem.lasting(high), plan)
    if kept is None or kept.value > high:  # beyond, shares stay at those of the last length known
        return kept or replace(plan, value=inf)
    while high - low > PROVEN / 4 * high and time.perf_counter() < until:
        middle = 0.5 * (low + high)
        shorter = paced(problem.lasting(middle), plan)
        if shorter is not None and shorter.value <= middle:
            high, kept = middle, shorter
        else:
            low = middle
    return replace(kept, value=high)


def length_of(problem: RentalProblem, plan: Rental) -> float:
    """Seconds of a plan, consistent with throughputs at that length (or at the last length known)."""
    used = [
        (
            configuration,
            sum(
                kind.amount * share / rps
                for kind, share, rps in zip(problem.types, shares, configuration.rps, strict=True)
                if share > 0
            )
            / count,
        )
        for configuration, count, shares in zip(problem.configurations, plan.counts, plan.shares, strict=True)
        if count
    ]

    def lasts(seconds: float) -> bool:
        return all(work_s <= seconds * configuration.share_in(seconds) for configuration, work_s in used)

    low, high = float(BATCH_SECONDS[0]), float(BATCH_SECONDS[-1])
    if not lasts(high):
        return max(
            work_s / share if (share := configuration.share_in(high)) > 0 else inf
            for configuration, work_s in used
        )
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if lasts(middle) else (middle, high)
    return high
