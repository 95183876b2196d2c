"""Which mix of a catalogue to buy for a fleet that serves some hours a day and trains in the others.

Mixes are planned from the cheapest on. One is skipped if even the upper bound on what its nodes could train
all day is no more than a cheaper mix trains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

from tangram_sim.errors import InfeasibleError
from tangram_sim.purchasing import catalogue as offered
from tangram_sim.purchasing.catalogue import Limits, Offer
from tangram_sim.purchasing.days import DAY_HOURS
from tangram_sim.purchasing.fleets import Fleet, Purchase
from tangram_sim.purchasing.search import work_bound
from tangram_sim.purchasing.served_day import ServedDay, front_of_days
from tangram_sim.purchasing.sharing import DayPlanner, SharedWork
from tangram_sim.units import HOUR_S


@dataclass(frozen=True)
class SharedPurchase:
    """The days that no other beats, by rising USD a month, and how the other mixes were dealt with.

    `days` are all days planned, `bounded_away` mixes were skipped by their upper bound, `waiting` for lack of
    time.
    """

    front: tuple[ServedDay, ...]
    days: tuple[ServedDay, ...]
    mixes: int
    bounded_away: int
    waiting: int  # time was over before them
    notes: tuple[str, ...]
    failures: bool


def purchase_shared(
    shared: SharedWork,
    fleet: Fleet,
    catalogue: Sequence[tuple[Purchase, int]],
    limits: Limits,
    ordered: date,
    tell: Callable[[ServedDay], None] | None = None,
) -> SharedPurchase:
    """Plan the days of all mixes that may be worth their price; `tell` is called with each.

    Raises InfeasibleError if no mix can serve the given rate.
    """
    deadline = shared.deadline
    offers, notes = offered.priced_offers(catalogue, shared.prices, shared.paid, limits, ordered)
    mixes = sorted(offered.mixes(offers, limits), key=lambda mix: (_hourly(offers, mix), mix))
    fleets = [offered.bought(fleet, offers, mix) for mix in mixes]
    planner = DayPlanner(shared, fleets)
    found: list[ServedDay] = []
    best, passed = 0.0, 0
    for mix, grown in zip(mixes, fleets, strict=True):
        if deadline.over():
            break
        most = work_bound(shared.work, grown.cluster, shared.hwdb) * DAY_HOURS * HOUR_S
        if most <= best:
            passed += 1
            continue
        day = planner.day(offered.mix_name(offers, mix), grown)
        found.append(day)
        best = max(best, day.trained.shared)
        if tell is not None:
            tell(day)
    front = front_of_days(found)
    if not front:
        reasons = [served_day.reason for served_day in reversed(found) if served_day.reason] or [
            deadline.why()
        ]
        raise InfeasibleError(f"no mix serves the requests: {reasons[0]}")
    return SharedPurchase(
        front=tuple(front),
        days=tuple(found),
        mixes=len(mixes),
        bounded_away=passed,
        waiting=len(mixes) - passed - len(found),
        notes=tuple(notes),
        failures=planner.failures,
    )


def _hourly(offers: Sequence[Offer], mix: Sequence[int]) -> float:
    return sum(offer.usd_per_hour * count for offer, count in zip(offers, mix, strict=True))
