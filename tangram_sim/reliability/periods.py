"""Checkpoint periods and useful share of time: closed forms under exponential failures.

Symbols as in the checkpointing literature: a period T holds one blocking checkpoint C, mu is the mean time
between failures, D downtime in which nothing can fail, R recovery in which failures may occur again. Sources:
J. W. Young, CACM 17 (1974) 530; J. T. Daly, Future Generation Computer Systems 22 (2006) 303-312; G. Aupy et
al., arXiv:1302.4558 (2013), who print all four periods side by side. docs/models/goodput.md has the
equations.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_TOO_LONG = 700.0  # exponents above this overflow; nothing gets done long before


@dataclass(frozen=True, slots=True)
class Recovery:
    """Downtime and recovery after one class of failures. `share`: of all failures."""

    share: float
    downtime_s: float  # D: no failure strikes meanwhile
    recovery_s: float  # R: failures may strike; then it starts over


def young_s(mtbf_s: float, checkpoint_s: float) -> float:
    """Young's period, checkpoint included: sqrt(2 mu C) + C."""
    return math.sqrt(2 * mtbf_s * checkpoint_s) + checkpoint_s


def daly_s(mtbf_s: float, checkpoint_s: float, downtime_s: float = 0.0, recovery_s: float = 0.0) -> float:
    """Daly's first-order period, checkpoint included: sqrt(2 (mu + D + R) C) + C."""
    return math.sqrt(2 * (mtbf_s + downtime_s + recovery_s) * checkpoint_s) + checkpoint_s


def refined_s(mtbf_s: float, checkpoint_s: float, downtime_s: float = 0.0, recovery_s: float = 0.0) -> float:
    """The optimum of the first-order waste: sqrt(2 (mu - D - R) C); nan where recovery outlasts the MTBF."""
    left = mtbf_s - downtime_s - recovery_s
    return math.sqrt(2 * left * checkpoint_s) if left > 0 else math.nan


def best_period_s(mtbf_s: float, checkpoint_s: float) -> float:
    """Period with the largest exact useful share, seconds; it does not depend on D and R.

    d/dT of (T - C)/(e^(T/mu) - 1) is zero where 1 - e^-x = x - C/mu, x = T/mu: solved by Newton's method from
    above, where it converges monotonically. 0 for checkpoints that cost nothing; inf without failures.
    """
    if math.isinf(mtbf_s):
        return math.inf
    if checkpoint_s <= 0:
        return 0.0
    cost = checkpoint_s / mtbf_s
    x = math.sqrt(2 * cost) + cost + 1e-18  # Young's: above the root
    for _ in range(100):
        step = (x - cost + math.expm1(-x)) / -math.expm1(-x)
        x -= step
        if abs(step) <= 1e-15 * x:
            break
    return mtbf_s * x


def daly_interval_s(mtbf_s: float, checkpoint_s: float) -> float:
    """Daly's higher-order interval of *work* between checkpoints; mu where one checkpoint outlasts 2 mu."""
    if math.isinf(mtbf_s) or checkpoint_s <= 0:
        return math.inf if math.isinf(mtbf_s) else 0.0
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    small = checkpoint_s / (2 * mtbf_s)
    return math.sqrt(2 * checkpoint_s * mtbf_s) * (1 + math.sqrt(small) / 3 + small / 9) - checkpoint_s


def first_order_share(
    mtbf_s: float, period_s: float, checkpoint_s: float, downtime_s: float = 0.0, recovery_s: float = 0.0
) -> float:
    """Useful share to first order: 1 - C/T - (1 - C/T) (D + R + T/2)/mu, at least 0."""
    working = 1 - checkpoint_s / period_s
    return max(0.0, working * (1 - (downtime_s + recovery_s + period_s / 2) / mtbf_s))


def useful_share(
    mtbf_s: float, period_s: float, checkpoint_s: float, downtime_s: float = 0.0, recovery_s: float = 0.0
) -> float:
    """Exact useful share: (T - C) / ((mu + D) e^(R/mu) (e^(T/mu) - 1)); the limit for T = C = 0.

    0 where the expected time of one period overflows.
    """
    return useful_share_of(mtbf_s, period_s, checkpoint_s, (Recovery(1.0, downtime_s, recovery_s),))


def useful_share_of(
    mtbf_s: float, period_s: float, checkpoint_s: float, recoveries: Sequence[Recovery]
) -> float:
    """Exact useful share of time where every class of failure has its own downtime D and recovery R.

    The mean time A from a failure until work resumes satisfies A = sum p (D + (1 - e^(-R/mu)) mu + (1 -
    e^(-R/mu)) A); one period then takes (e^(T/mu) - 1) (mu + A).
    """
    if math.isinf(mtbf_s):
        return 1.0 if math.isinf(period_s) else 1 - checkpoint_s / period_s if period_s else 1.0
    if period_s / mtbf_s > _TOO_LONG or any(r.recovery_s / mtbf_s > _TOO_LONG for r in recoveries):
        return 0.0
    after = recovery_mean_s(mtbf_s, recoveries)
    if period_s <= 0:  # checkpoints cost nothing: ever shorter periods lose nothing
        return mtbf_s / (mtbf_s + after)
    return max(0.0, period_s - checkpoint_s) / (math.expm1(period_s / mtbf_s) * (mtbf_s + after))


def lost_shares(
    mtbf_s: float, period_s: float, checkpoint_s: float, downtime_s: float, recovery_s: float
) -> dict[str, float]:
    """Shares of the time lost to each cause, for one class of failures; with `useful_share` they sum to 1.

    Per period of T seconds the expected number of failures is e^(T/mu) - 1. Work takes (e^(T/mu) - 1) mu, of
    which all but T is repeated; each failure costs D e^(R/mu) of downtime. Empty where nothing gets done.
    """
    share = useful_share(mtbf_s, period_s, checkpoint_s, downtime_s, recovery_s)
    if not 0 < share < 1 or period_s <= checkpoint_s:
        return {}
    failures, all_s = math.expm1(period_s / mtbf_s), (period_s - checkpoint_s) / share
    waiting_s = downtime_s * math.exp(recovery_s / mtbf_s)
    restart_s = recovery_mean_s(mtbf_s, (Recovery(1.0, downtime_s, recovery_s),)) - waiting_s
    spent = {
        "waiting for another node": failures * waiting_s,
        "restarts": failures * restart_s,
        "work done again": failures * mtbf_s - period_s,
        "checkpoints": checkpoint_s,
    }
    return {what: seconds / all_s for what, seconds in spent.items()}


def recovery_mean_s(mtbf_s: float, recoveries: Sequence[Recovery]) -> float:
    """Mean seconds from a failure until work resumes, failures during recovery included."""
    struck = sum(r.share * -math.expm1(-r.recovery_s / mtbf_s) for r in recoveries)
    down = sum(r.share * r.downtime_s for r in recoveries)
    spared = sum(r.share * math.exp(-r.recovery_s / mtbf_s) for r in recoveries)  # 1 - struck, but exact
    return (down + mtbf_s * struck) / spared


def elastic_share(mtbf_s: float, replicas: int, stall_s: float, degraded_s: float) -> float:
    """Useful share of elastic data parallelism over `replicas` G: 1 - (S + t_r/G)/mu, at least 0.

    All replicas stall for `stall_s` S at every failure; then the failed one is absent for `degraded_s` t_r.
    """
    return max(0.0, 1 - (stall_s + degraded_s / replicas) / mtbf_s)


def spares(nodes: int, failures_per_node_s: float, repair_s: float, quantile: float) -> int:
    """The fewest spare nodes that suffice with probability `quantile`: P(Poisson(n lambda t) <= k) >= q."""
    mean = nodes * failures_per_node_s * repair_s
    term = total = math.exp(-mean)
    if term == 0.0:  # the mean is huge: the normal quantile, which Poisson tends to
        from statistics import NormalDist

        return math.ceil(mean + NormalDist().inv_cdf(quantile) * math.sqrt(mean))
    count = 0
    while total < quantile and term > 0:
        count += 1
        term *= mean / count
        total += term
    return count


def minimise(cost: Callable[[float], float], low: float, high: float, tolerance: float = 1e-7) -> float:
    """Minimiser in [low, high] of a unimodal function of a positive number: golden section over log."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = math.log(low), math.log(high)
    left, right = b - ratio * (b - a), a + ratio * (b - a)
    at_left, at_right = cost(math.exp(left)), cost(math.exp(right))
    while b - a > tolerance:
        if at_left <= at_right:
            b, right, at_right = right, left, at_left
            left = b - ratio * (b - a)
            at_left = cost(math.exp(left))
        else:
            a, left, at_left = left, right, at_right
            right = a + ratio * (b - a)
            at_right = cost(math.exp(right))
    return math.exp((a + b) / 2)
