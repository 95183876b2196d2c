"""Fleets that serve all day: requests/s within the latency limits, and USD per million tokens of each."""

import time
from collections.abc import Callable, Sequence
from datetime import date

from pydantic import Field

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing import catalogue as offered
from tangram_sim.purchasing.billing import Terms, bill
from tangram_sim.purchasing.catalogue import Limits
from tangram_sim.purchasing.fleets import Fleet, Purchase
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.purchasing.served_fleets import FleetServices, ServiceDemand, has_all
from tangram_sim.studies.documents import VersionedAnswer
from tangram_sim.studies.serving_plan import ServePlanDocument
from tangram_sim.studies.serving_whatif import (
    ServeWhatIfDocument,
    ServiceCandidateDocument,
    candidate,
    cheapest_tokens,
    good_rps,
)


class ServedPurchaseDocument(VersionedAnswer):
    """`purchase --serve --json`: mixes that no other beats, by rising USD an hour."""

    front: list[ServiceCandidateDocument]
    cheapest_tokens: str | None = Field(None, description="the mix whose good tokens cost least")
    looked_at: list[ServiceCandidateDocument]
    mixes: int = Field(description="within the limits")
    bounded_away: int
    not_looked_at: int = Field(description="for lack of time")
    notes: list[str]
    planning_cpu_s: float


def what_if_served(
    candidates: Sequence[tuple[str, Fleet]], demand: ServiceDemand, prices: Prices, paid: Terms, hwdb: Hwdb
) -> ServeWhatIfDocument:
    """Plan every fleet for the most requests/s within the latency limits; the first is the reference.

    Bought nodes may stay idle: if the plan with more nodes simulates worse than the first fleet's, that one
    is shown.
    """
    begun, found = time.process_time(), list[ServiceCandidateDocument]()
    services = FleetServices(demand, [fleet for _, fleet in candidates], hwdb)
    first: ServePlanDocument | None = None
    for name, fleet in candidates:
        usd = hourly(fleet, prices, paid)
        try:
            plan = services.most(fleet)
        except InfeasibleError as error:
            found.append(
                ServiceCandidateDocument(name=name, status="infeasible", reason=str(error), usd_per_hour=usd)
            )
            continue
        if not found:
            first = plan
        elif first is not None and good_rps(plan) < good_rps(first) and has_all(fleet, candidates[0][1]):
            plan = first
        found.append(candidate(name, plan, usd, found[0] if found else None))
    return ServeWhatIfDocument(candidates=found, planning_cpu_s=time.process_time() - begun)


def purchase_served(
    fleet: Fleet,
    catalogue: Sequence[tuple[Purchase, int]],
    limits: Limits,
    prices: Prices,
    demand: ServiceDemand,
    *,
    ordered: date,
    paid: Terms,
    hwdb: Hwdb,
    deadline: Deadline,
    tell: Callable[[ServiceCandidateDocument, int, int], None] | None = None,
) -> ServedPurchaseDocument:
    """Plan the mixes within the limits, from the cheapest on, for the most requests/s served.

    A mix whose upper bound on requests/s is no more than a cheaper mix serves is skipped. `tell` is called
    after each mix with its result, the number done and the total. Raises InfeasibleError if no mix serves
    anything.
    """
    begun = time.process_time()
    offers, notes = offered.priced_offers(catalogue, prices, paid, limits, ordered)
    mixes = sorted(
        offered.mixes(offers, limits),
        key=lambda mix: (sum(offer.usd_per_hour * n for offer, n in zip(offers, mix, strict=True)), mix),
    )
    fleets = [offered.bought(fleet, offers, mix) for mix in mixes]
    services = FleetServices(demand, fleets, hwdb)
    looked, front = list[ServiceCandidateDocument](), list[ServiceCandidateDocument]()
    passed = 0
    for mix, grown in zip(mixes, fleets, strict=True):
        if deadline.over():
            break
        if services.bound_rps(grown) <= (front[-1].good_rps if front else 0.0):
            passed += 1
            continue
        name, usd = offered.mix_name(offers, mix), hourly(grown, prices, paid)
        try:
            told = candidate(name, services.most(grown), usd, front[-1] if front else None)
        except InfeasibleError as error:
            told = ServiceCandidateDocument(
                name=name, status="infeasible", reason=str(error), usd_per_hour=usd
            )
        looked.append(told)
        if told.good_rps > (front[-1].good_rps if front else 0.0):
            front.append(told)
        if tell is not None:
            tell(told, passed + len(looked), len(mixes))
    if not front:
        reasons = [item.reason for item in reversed(looked) if item.reason]
        why = reasons[0] if reasons else deadline.why() if deadline.over() else "none has enough GPUs"
        raise InfeasibleError(f"no mix serves the requests: {why}")
    least = cheapest_tokens(front)
    return ServedPurchaseDocument(
        front=front,
        cheapest_tokens=None if least is None else least.name,
        looked_at=looked,
        mixes=len(mixes),
        bounded_away=passed,
        not_looked_at=len(mixes) - passed - len(looked),
        notes=notes,
        planning_cpu_s=time.process_time() - begun,
    )


def hourly(fleet: Fleet, prices: Prices, paid: Terms) -> float | None:
    """USD per hour with all nodes running; None if a price is not stated."""
    charged = bill(fleet.members, [member.nodes for member in fleet.members], prices, paid)
    return charged.usd_per_hour if charged.known else None
