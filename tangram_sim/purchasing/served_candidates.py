"""Fleets that serve all day: requests/s within the latency limits, and USD per million tokens of each."""

import time
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

from pydantic import Field

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing import catalogue as offered
from tangram_sim.purchasing.billing import Terms, bill
from tangram_sim.purchasing.catalogue import Limits
from tangram_sim.purchasing.documents import MixesDocument
from tangram_sim.purchasing.fleets import Fleet, Purchase
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.purchasing.served_fleets import FleetServices, ServiceDemand
from tangram_sim.studies.candidate_loop import (
    BOUNDED_AWAY,
    STOPPED,
    CandidateJudge,
    Found,
    Judged,
    judged_in_turn,
)
from tangram_sim.studies.documents import VersionedAnswer
from tangram_sim.studies.serving_whatif import (
    ServeWhatIfDocument,
    ServiceCandidateDocument,
    beside_first,
    candidate,
    cheapest_tokens,
)

Tell = Callable[[str, Any, int, int], None]  # name of a mix, what was found, mixes done, mixes in all


class ServedPurchaseDocument(MixesDocument, VersionedAnswer):
    """`purchase --serve --json`: Pareto front of the mixes, by rising USD per hour."""

    front: list[ServiceCandidateDocument]
    cheapest_tokens: str | None = Field(None, description="the mix whose good tokens cost least")
    looked_at: list[ServiceCandidateDocument]
    planning_cpu_s: float


def catalogue_mixes(
    fleet: Fleet,
    catalogue: Sequence[tuple[Purchase, int]],
    limits: Limits,
    prices: Prices,
    terms: Terms,
    ordered: date,
) -> tuple[list[tuple[str, Fleet]], list[str]]:
    """(name, fleet with the purchases) of all mixes within the limits, by rising USD per hour; and notes.

    Deliveries count from the day `ordered`. Raises BadInputError.
    """
    offers, notes = offered.priced_offers(catalogue, prices, terms, limits, ordered, by_run=False)
    costs = {
        mix: sum(offer.usd_per_hour * count for offer, count in zip(offers, mix, strict=True))
        for mix in offered.mixes(offers, limits)
    }
    mixes = sorted(costs, key=lambda mix: (costs[mix], mix))
    return [(offered.mix_name(offers, mix), offered.bought(fleet, offers, mix)) for mix in mixes], notes


def judged_mixes(
    mixes: Sequence[tuple[str, Fleet]], judge: CandidateJudge[Fleet, Found], deadline: Deadline, tell: Tell
) -> tuple[list[Judged[Fleet, Found]], dict[str, Any]]:
    """(mixes planned, counts for a MixesDocument), without mixes that a cheaper one surely beats.

    `tell` is called after each mix with its name, its result, the number done and the number of all.
    """
    planned, passed = list[Judged[Fleet, Found]](), {BOUNDED_AWAY: 0, STOPPED: 0}
    for item in judged_in_turn(mixes, judge, deadline, prunes=True):
        if item.status in passed:
            passed[item.status] += 1
            continue
        planned.append(item)
        tell(item.name, item.found, len(planned) + passed[BOUNDED_AWAY], len(mixes))
    counts = {"mixes": len(mixes), "bounded_away": passed[BOUNDED_AWAY], "not_looked_at": passed[STOPPED]}
    return planned, counts


def what_if_served(
    candidates: Sequence[tuple[str, Fleet]],
    demand: ServiceDemand,
    prices: Prices,
    paid: Terms,
    hwdb: Hwdb,
    deadline: Deadline,
) -> ServeWhatIfDocument:
    """Plan every fleet for the most requests/s within the latency limits; the first is the reference."""
    begun = time.process_time()
    services = FleetServices(demand, [fleet for _, fleet in candidates], hwdb)
    judged = judged_in_turn(candidates, services, deadline)
    found = beside_first(judged, lambda fleet: hourly(fleet, prices, paid))
    return ServeWhatIfDocument(candidates=found, planning_cpu_s=time.process_time() - begun)


def purchase_served(
    mixes: Sequence[tuple[str, Fleet]],
    demand: ServiceDemand,
    prices: Prices,
    paid: Terms,
    hwdb: Hwdb,
    *,
    deadline: Deadline,
    tell: Tell,
) -> ServedPurchaseDocument:
    """Plan the mixes, from the cheapest on, for the most requests/s served.

    Raises InfeasibleError if no mix serves anything.
    """
    begun, services = time.process_time(), FleetServices(demand, [fleet for _, fleet in mixes], hwdb)
    planned, counts = judged_mixes(mixes, services, deadline, tell)
    looked, front = list[ServiceCandidateDocument](), list[ServiceCandidateDocument]()
    for item in planned:
        looked.append(candidate(item, hourly(item.subject, prices, paid), front[-1] if front else None))
        if looked[-1].good_rps > (front[-1].good_rps if front else 0.0):
            front.append(looked[-1])
    if not front:
        reasons = [item.reason for item in reversed(looked) if item.reason]
        why = reasons[0] if reasons else deadline.why() if deadline.over() else "none has enough GPUs"
        raise InfeasibleError(f"no mix serves the requests: {why}")
    least = cheapest_tokens(front)
    return ServedPurchaseDocument(
        front=front,
        cheapest_tokens=None if least is None else least.name,
        looked_at=looked,
        **counts,
        planning_cpu_s=time.process_time() - begun,
    )


def hourly(fleet: Fleet, prices: Prices, paid: Terms) -> float | None:
    """USD per hour with all nodes running; None if a price is not stated."""
    charged = bill(fleet.members, [member.nodes for member in fleet.members], prices, paid)
    return charged.usd_per_hour if charged.known else None
