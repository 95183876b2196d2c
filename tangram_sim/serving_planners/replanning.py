"""Plans that follow prices and availability over time, with the cost of switching between them.

The market is constant within a period. In every period integer numbers of replicas are chosen, and as much of
the request rate as they can carry is served. A starting replica is paid for while it loads, a stopping one
while it drains; neither serves meanwhile. Policies that know the current period only are compared with the
best plan in hindsight for the whole trace: one mixed-integer program with its bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from tangram_sim.serving_planners.problem import RentalProblem
from tangram_sim.serving_planners.program import LinearProgram
from tangram_sim.units import HOUR_S

_GAP = 1e-6


@dataclass(frozen=True, slots=True)
class MarketPeriod:
    """One period of the market: prices and available GPUs by kind, and the factor on the request rate."""

    begin_s: float
    seconds: float
    usd_per_hour: tuple[float, ...]
    available: tuple[float, ...]
    rate_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Switching:
    """Costs of switching: paid seconds to load and to drain a replica, USD per request not served."""

    load_s: float = 120.0
    drain_s: float = 30.0
    usd_per_lost_request: float = 1.0


@dataclass(frozen=True, slots=True)
class PeriodPlan:
    """Replicas of every configuration in one period, and the share of its requests that they serve."""

    counts: tuple[int, ...]
    served: float


@dataclass(frozen=True, slots=True)
class Followed:
    """Plans of a policy over the whole trace, and their cost in USD.

    `usd` is rent and switches; `cost` also includes requests that were not served. `bound` is a lower bound
    on every policy's cost (0 where none is known).
    """

    name: str
    plans: tuple[PeriodPlan, ...]
    usd: float
    switching_usd: float
    lost_requests: float
    cost: float
    starts: int
    bound: float = 0.0


def hindsight(
    problem: RentalProblem, market: Sequence[MarketPeriod], switching: Switching, time_limit_s: float = inf
) -> Followed:
    """The best plans with the whole trace known in advance, with a lower bound on every policy's cost."""
    plans, bound = _best(problem, market, switching, None, time_limit_s)
    return replace(_followed("hindsight", problem, market, switching, plans), bound=bound)


def myopic(
    problem: RentalProblem,
    market: Sequence[MarketPeriod],
    switching: Switching,
    *,
    sees_switches: bool,
    time_limit_s: float = inf,
) -> Followed:
    """The best plan of each period without knowledge of the next.

    `sees_switches`: the cost of switching counts; otherwise each period is planned afresh.
    """
    plans: list[PeriodPlan] = []
    share = time_limit_s / len(market)
    for period in market:
        before = plans[-1].counts if plans and sees_switches else None
        found, _ = _best(problem, [period], switching, before, share)
        plans += found
    name = "switching seen" if sees_switches else "each period afresh"
    return _followed(name, problem, market, switching, plans)


def unmoved(
    problem: RentalProblem, market: Sequence[MarketPeriod], switching: Switching, time_limit_s: float = inf
) -> Followed:
    """The policy that keeps the first period's plan, less replicas that exceed availability or budget."""
    first = myopic(problem, market[:1], switching, sees_switches=False, time_limit_s=time_limit_s).plans[0]
    plans = []
    for period in market:
        counts = list(first.counts)
        while (short := _short(problem, period, counts)) >= 0:
            counts[short] -= 1
        plans.append(PeriodPlan(tuple(counts), _served(problem, period, tuple(counts))))
    return _followed("first plan kept", problem, market, switching, plans)


def _short(problem: RentalProblem, period: MarketPeriod, counts: Sequence[int]) -> int:
    """The most expensive configuration over an exceeded limit, to lose one replica; -1: none is exceeded."""
    for n, available in enumerate(period.available):
        used = [
            c for c, configuration in enumerate(problem.configurations) if counts[c] and configuration.gpus[n]
        ]
        if sum(counts[c] * problem.configurations[c].gpus[n] for c in used) > available:
            return max(used, key=lambda c: _usd_per_hour(problem, period, c))
    rents = [count * _usd_per_hour(problem, period, c) for c, count in enumerate(counts)]
    if sum(rents) > problem.budget_usd_per_hour * (1 + _GAP):
        running = [c for c, count in enumerate(counts) if count]
        return max(running, key=lambda c: _usd_per_hour(problem, period, c))
    return -1


def _usd_per_hour(problem: RentalProblem, period: MarketPeriod, c: int) -> float:
    """USD an hour of a replica: its price in the problem, scaled by the change in its GPUs' prices."""
    configuration = problem.configurations[c]
    bare = sum(k * gpu.usd_per_hour for k, gpu in zip(configuration.gpus, problem.gpus, strict=True))
    now = sum(k * usd for k, usd in zip(configuration.gpus, period.usd_per_hour, strict=True))
    return configuration.usd_per_hour * now / bare


class _Period:
    """Variables of a period: replicas running, started and stopped, shares of requests, share not served."""

    def __init__(self, lp: LinearProgram, problem: RentalProblem, period: MarketPeriod) -> None:
        self.problem, self.period = problem, period
        configurations = problem.configurations
        self.counts = [lp.variable(self._most(c), integer=True) for c in range(len(configurations))]
        self.started = [lp.variable() for _ in configurations]
        self.stopped = [lp.variable() for _ in configurations]
        self.lost = lp.variable(1.0)
        shares = {
            (c, w): lp.variable()
            for c, configuration in enumerate(configurations)
            for w, kind in enumerate(problem.types)
            if configuration.rps[w] > 0 and kind.amount > 0
        }
        for w, kind in enumerate(problem.types):
            if kind.amount > 0:
                mine = [(v, 1.0) for (_, at), v in shares.items() if at == w]
                lp.row([*mine, (self.lost, 1.0)], low=1.0, high=1.0)
        for c, configuration in enumerate(configurations):
            busy = [
                (v, problem.types[w].amount * period.rate_factor / configuration.rps[w] / problem.utilisation)
                for (at, w), v in shares.items()
                if at == c
            ]
            if busy:
                lp.row([*busy, (self.counts[c], -1.0)], high=0.0)
        for n, available in enumerate(period.available):
            lp.row([(v, float(configurations[c].gpus[n])) for c, v in enumerate(self.counts)], high=available)
        if problem.budget_usd_per_hour < inf:
            rent = [(v, _usd_per_hour(problem, period, c)) for c, v in enumerate(self.counts)]
            lp.row(rent, high=problem.budget_usd_per_hour)

    def _most(self, c: int) -> float:
        configuration = self.problem.configurations[c]
        limits = [
            available // k
            for available, k in zip(self.period.available, configuration.gpus, strict=True)
            if k
        ]
        return min([*limits, configuration.most])

    def cost(self, switching: Switching, *, switches: bool) -> list[tuple[int, float]]:
        """(variable, USD per unit) of a period: rent, requests not served and, with `switches`, switching."""
        terms = []
        for c in range(len(self.counts)):
            usd_per_s = _usd_per_hour(self.problem, self.period, c) / HOUR_S
            terms.append((self.counts[c], usd_per_s * self.period.seconds))
            if switches:
                terms.append((self.started[c], usd_per_s * switching.load_s))
                terms.append((self.stopped[c], usd_per_s * switching.drain_s))
        terms.append((self.lost, _requests(self.problem, self.period) * switching.usd_per_lost_request))
        return terms


def _requests(problem: RentalProblem, period: MarketPeriod) -> float:
    return problem.total * period.rate_factor * period.seconds


def _best(
    problem: RentalProblem,
    market: Sequence[MarketPeriod],
    switching: Switching,
    before: tuple[int, ...] | None,
    time_limit_s: float,
) -> tuple[list[PeriodPlan], float]:
    """(plans, lower bound on the cost in USD) of the cheapest sequence through these periods, all known.

    `before` are replicas that already run; without it starts in the first period cost nothing, since every
    policy has to pay for them.
    """
    lp = LinearProgram()
    periods = [_Period(lp, problem, period) for period in market]
    terms: list[tuple[int, float]] = []
    for t, item in enumerate(periods):
        earlier = periods[t - 1].counts if t else None
        for c, count in enumerate(item.counts):
            change = [(count, 1.0), (item.started[c], -1.0), (item.stopped[c], 1.0)]
            if earlier is not None:
                lp.row([*change, (earlier[c], -1.0)], low=0.0, high=0.0)
            elif before is not None:
                lp.row(change, low=float(before[c]), high=float(before[c]))
        terms += item.cost(switching, switches=bool(t) or before is not None)
    found = lp.minimise(terms, _GAP, time_limit_s)
    if found.values is None:  # nothing rented is always a plan
        nothing = PeriodPlan((0,) * len(problem.configurations), 0.0)
        return [nothing] * len(market), 0.0
    counts = [tuple(round(float(found.values[v])) for v in item.counts) for item in periods]
    plans = [
        PeriodPlan(mine, _served(problem, period, mine)) for mine, period in zip(counts, market, strict=True)
    ]
    return plans, found.bound


def _served(problem: RentalProblem, period: MarketPeriod, counts: tuple[int, ...]) -> float:
    """Maximum share of the period's requests that these replicas can serve."""
    lp = LinearProgram()
    fixed = replace(
        problem,
        configurations=tuple(
            replace(configuration, most=count)
            for configuration, count in zip(problem.configurations, counts, strict=True)
        ),
        budget_usd_per_hour=inf,
    )
    item = _Period(lp, fixed, period)
    values = lp.minimise([(item.lost, 1.0)]).values
    return 0.0 if values is None else 1.0 - min(1.0, float(values[item.lost]))


def _followed(
    name: str,
    problem: RentalProblem,
    market: Sequence[MarketPeriod],
    switching: Switching,
    plans: Sequence[PeriodPlan],
) -> Followed:
    """The cost of a sequence of plans, with the switches between them."""
    rent = moved = lost = 0.0
    starts = 0
    for t, (period, plan) in enumerate(zip(market, plans, strict=True)):
        usd_per_s = np.array([_usd_per_hour(problem, period, c) / HOUR_S for c in range(len(plan.counts))])
        rent += float(usd_per_s @ np.array(plan.counts)) * period.seconds
        lost += (1.0 - plan.served) * _requests(problem, period)
        if t:
            change = np.array(plan.counts) - np.array(plans[t - 1].counts)
            moved += float(usd_per_s @ np.maximum(change, 0)) * switching.load_s
            moved += float(usd_per_s @ np.maximum(-change, 0)) * switching.drain_s
            starts += int(np.maximum(change, 0).sum())
    usd = rent + moved
    return Followed(
        name,
        plans=tuple(plans),
        usd=usd,
        switching_usd=moved,
        lost_requests=lost,
        cost=usd + lost * switching.usd_per_lost_request,
        starts=starts,
    )
