"""Cash that a candidate costs until the tokens are trained: by purpose, by month, and the residual value."""

from dataclasses import dataclass

from tangram_sim.purchasing import costs
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.purchasing.rows import WhatIfRow
from tangram_sim.units import DAY_S, HOUR_S

MONTH_DAYS = 365.25 / 12
_MOST_MONTHS = 12  # shown each; what is later is one


@dataclass(frozen=True, slots=True)
class Payment:
    """USD paid for machines, rent, electricity and hosting."""

    purchase: float = 0.0
    rent: float = 0.0
    energy: float = 0.0
    hosting: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all payments."""
        return self.purchase + self.rent + self.energy + self.hosting


@dataclass(frozen=True, slots=True)
class Cash:
    """Payments of a run in all and by month, and what the machines bought are worth at its end.

    `residual_usd`: straight line over the amortisation; None where that is not stated.
    """

    total: Payment
    months: tuple[tuple[str, Payment], ...]
    residual_usd: float | None
    days: float


def cash_of(row: WhatIfRow, tokens: float, prices: Prices) -> Cash:
    """The cash flow of a planned candidate that trains `tokens`.

    Machines are paid for in the first month; rent, electricity and hosting (with the upkeep of bought
    machines) by the day. Rent and electricity cover the hours of training, as in the bill and the budget;
    reserved nodes are paid for all days of their reservation.
    """
    economics = prices.economics
    hours = tokens / row.throughput.tokens_per_s / HOUR_S
    days = row.days_to_train
    calendar_hours = days * DAY_S / HOUR_S
    kinds: dict[str, float] = {}
    for charge in row.bill.charges:
        kinds[charge.kind] = kinds.get(charge.kind, 0.0) + charge.usd_per_hour
    outlay = row.bill.outlay_usd or 0.0
    rents = sum(usd for kind, usd in kinds.items() if kind not in ("capital", "power", "hosting"))
    upkeep = outlay * economics.upkeep_per_year.value / costs.HOURS_PER_YEAR * calendar_hours
    hosting = kinds.get("hosting", 0.0) * hours + upkeep
    total = Payment(outlay, rents * hours, kinds.get("power", 0.0) * hours, hosting)
    life = economics.amortisation_years
    residual = None
    if not outlay:
        residual = 0.0
    elif life is not None:
        residual = outlay * max(0.0, 1.0 - days / 365.25 / life.value)
    return Cash(total, _by_month(total, days), residual, days)


def _by_month(total: Payment, days: float) -> tuple[tuple[str, Payment], ...]:
    """(label, payment) of each month of a run; months beyond _MOST_MONTHS are added up as `later`."""
    found: list[tuple[str, Payment]] = []
    begin, number = 0.0, 1
    while begin < days or number == 1:
        last = number > _MOST_MONTHS
        end = days if last else min(days, begin + MONTH_DAYS)
        share = (end - begin) / days if days else 0.0
        label = f"month {number}" if not last else "later"
        paid = Payment(
            total.purchase if number == 1 else 0.0,
            total.rent * share,
            total.energy * share,
            total.hosting * share,
        )
        found.append((label, paid))
        begin, number = end, number + 1
    return tuple(found)
