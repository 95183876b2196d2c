"""Policies for a service that follows prices and availability, compared with the best plan in hindsight."""

import time
from collections.abc import Sequence

from pydantic import Field

from tangram_sim.errors import BadInputError
from tangram_sim.serving_planners.problem import COST, RentalProblem
from tangram_sim.serving_planners.replanning import (
    Followed,
    MarketPeriod,
    Switching,
    hindsight,
    myopic,
    unmoved,
)
from tangram_sim.studies.documents import Document, VersionedAnswer

_LIMIT_S = 20.0  # for all policies together, half of it for hindsight


class ReplanPeriodDocument(Document):
    """The plan of one period."""

    begin_s: float
    seconds: float
    replicas: dict[str, int]
    served_share: float


class ReplanPolicyDocument(Document):
    """What a policy costs over the whole trace."""

    name: str
    usd: float = Field(description="rent and switches")
    switching_usd: float
    starts: int = Field(description="replicas started after the first period")
    lost_requests: float
    cost: float = Field(description="USD with what lost requests cost")
    over_hindsight: float = Field(description="cost over that of hindsight, less one")
    periods: list[ReplanPeriodDocument]


class ServeReplanDocument(VersionedAnswer):
    """Output of `tangram serve replan --json`: every policy over one trace of prices and availability."""

    periods: int
    requests: float
    bound: float = Field(description="no policy costs less, whatever it foresees")
    gap: float = Field(description="of hindsight to the bound, as a share")
    policies: list[ReplanPolicyDocument]
    planning_cpu_s: float


def follow_market(
    problem: RentalProblem,
    market: Sequence[MarketPeriod],
    switching: Switching,
    time_limit_s: float | None = None,
) -> ServeReplanDocument:
    """Results of every policy on a market trace, hindsight first. Raises BadInputError for a batch."""
    if problem.objective != COST or problem.scenarios or problem.slices:
        raise BadInputError(
            "replanning is of a rate: give a problem of kind cost, without slices and scenarios"
        )
    begun = time.process_time()
    limit_s = _LIMIT_S if time_limit_s is None else time_limit_s
    best = hindsight(problem, market, switching, 0.5 * limit_s)
    part_s = limit_s / 6
    others = [
        myopic(problem, market, switching, sees_switches=True, time_limit_s=part_s),
        myopic(problem, market, switching, sees_switches=False, time_limit_s=part_s),
        unmoved(problem, market, switching, part_s),
    ]
    cheapest = min([best, *others], key=lambda followed_plan: followed_plan.cost)
    bound = min(best.bound, cheapest.cost)
    return ServeReplanDocument(
        periods=len(market),
        requests=sum(
            problem.total * market_period.rate_factor * market_period.seconds for market_period in market
        ),
        bound=bound,
        gap=max(0.0, 1.0 - bound / cheapest.cost) if cheapest.cost else 0.0,
        policies=[
            _policy(followed_plan, problem, market, cheapest.cost) for followed_plan in (best, *others)
        ],
        planning_cpu_s=time.process_time() - begun,
    )


def _policy(
    followed_plan: Followed, problem: RentalProblem, market: Sequence[MarketPeriod], least: float
) -> ReplanPolicyDocument:
    names = [configuration.name for configuration in problem.configurations]
    return ReplanPolicyDocument.from_objects(
        followed_plan,
        over_hindsight=followed_plan.cost / least - 1.0 if least else 0.0,
        periods=[
            ReplanPeriodDocument(
                begin_s=period.begin_s,
                seconds=period.seconds,
                replicas={name: count for name, count in zip(names, plan.counts, strict=True) if count},
                served_share=plan.served,
            )
            for period, plan in zip(market, followed_plan.plans, strict=True)
        ],
    )
