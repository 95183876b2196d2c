"""Planners by name: the configurations that each may use; all plan shares of requests in the same way.

`milp` may use any; `hexgen` the groups that its search found, as many as it made of each; `melange` for each
kind the fewest GPUs in a node that hold the model (it assigns requests to whole GPUs of a kind); the name of
a kind: that kind alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import floor, inf

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.serving.deployment import Speculation
from tangram_sim.serving.engines import drafts_refused
from tangram_sim.serving.workload import Floats
from tangram_sim.serving_planners.degrees import expert_degrees
from tangram_sim.serving_planners.hexgen import GroupPricer, partition, replicas_of
from tangram_sim.serving_planners.offers import (
    GpuOffer,
    OfferPricer,
    PricedConfiguration,
    configurations,
    pipelines,
)
from tangram_sim.serving_planners.phases import halves

_GENERATIONS, _SEED = 12, 0  # of HexGen's search
NAMED = ("milp", "hexgen", "melange")


def planner_names(offers: Sequence[GpuOffer]) -> tuple[str, ...]:
    """Names of all planners for these offers."""
    return (*NAMED, *(offer.name for offer in offers))


def candidates(
    planner: str,
    pricer: OfferPricer,
    offers: Sequence[GpuOffer],
    shares: Floats,
    budget_usd_per_hour: float | None,
    *,
    apart: bool = False,
    speculations: Sequence[Speculation] = (),
) -> list[PricedConfiguration]:
    """The configurations that a planner may use in its plan.

    `shares` is the share of each type among the requests; `apart`: also replicas that only prefill or only
    decode; `speculations`: draft tokens that milp and single kinds may check.
    Raises UnknownNameError, BadInputError for planners that know none of these.
    """
    if apart and planner in ("hexgen", "melange"):
        raise BadInputError(f"planner {planner} plans whole requests; leave the link out")
    if planner == "hexgen":
        return _hexgen(pricer, offers, shares, budget_usd_per_hour)
    alone = [offer for offer in offers if offer.name == planner]
    if planner not in NAMED and not alone:
        raise unknown_name("planner", planner, planner_names(offers))
    priced = configurations(pricer, alone or offers)
    if planner != "melange":
        priced += expert_degrees(pricer, alone or offers)
        for speculation in speculations:
            priced += _drafted(replace(pricer, speculation=speculation), speculation, alone or offers)
    if apart:
        return [*priced, *halves(pricer, pipelines(pricer, alone or offers))]
    if planner == "melange":
        whole = [configuration for configuration in priced if len(configuration.stages) == 1]
        return [
            min(mine, key=lambda configuration: configuration.stages[0][1])
            for offer in offers
            if (
                mine := [configuration for configuration in whole if configuration.stages[0][0] == offer.name]
            )
        ]
    return priced


def _drafted(
    pricer: OfferPricer, speculation: Speculation, offers: Sequence[GpuOffer]
) -> list[PricedConfiguration]:
    """Replicas again with draft tokens, where the engine starts them so. Raises BadInputError for none."""
    if reason := drafts_refused(pricer.engine):
        raise BadInputError(f"`drafts=`: draft tokens, which {reason}; choose another engine")
    short = [
        stages
        for stages in pipelines(pricer, offers)
        if not drafts_refused(pricer.engine, stages=len(stages))
    ]
    return [
        replace(each, name=f"{each.name} drafts{speculation.drafts}", speculation=speculation)
        for each in (*pricer.priced_together(short), *expert_degrees(pricer, offers))
        if any(each.rps) and not drafts_refused(pricer.engine, attention_dp=each.attention_dp)
    ]


def _hexgen(
    pricer: OfferPricer, offers: Sequence[GpuOffer], shares: Floats, budget_usd_per_hour: float | None
) -> list[PricedConfiguration]:
    """The configurations of the groups that HexGen's search finds in a pool of GPUs.

    The pool is what is available or, for a kind without limit, what an equal part of the budget rents: HexGen
    starts from given GPUs and does not say how to spend a budget.
    """
    pool = []
    for offer in offers:
        even = (
            inf
            if budget_usd_per_hour is None
            else floor(budget_usd_per_hour / len(offers) / offer.usd_per_hour)
        )
        count = min(offer.available, even)
        if count == inf:
            raise BadInputError(f"planner hexgen needs `available` of {offer.name}, or a `budget=`")
        pool.append(int(count))
    if not any(pool):
        return []
    groups = GroupPricer(pricer, offers, shares.tolist())
    found = partition(tuple(pool), groups.worth, _SEED, _GENERATIONS)
    counts = {configuration.stages: count for configuration, count in replicas_of(found, groups)}
    return [
        replace(configuration, most=counts[configuration.stages])
        for configuration in pricer.priced_together(list(counts))
    ]
