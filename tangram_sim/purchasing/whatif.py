"""What-if: a fleet with nodes added or removed is planned, simulated and billed; one row per candidate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing.billing import Terms, failure_lacks
from tangram_sim.purchasing.candidate_plans import CandidatePlans
from tangram_sim.purchasing.cases import PlanOutcome
from tangram_sim.purchasing.fleets import Fleet, Purchase
from tangram_sim.purchasing.notes import notes_of
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.purchasing.rows import Billing, WhatIfRow
from tangram_sim.studies.sweep import Sweep
from tangram_sim.training.job import Job


@dataclass(frozen=True)
class WhatIf:
    """The rows, the fleet without purchases first; the assumptions made; notes."""

    model: Model
    rows: tuple[WhatIfRow, ...]
    billing: Billing
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def contenders(self) -> tuple[WhatIfRow, ...]:
        """The rows with a plan to rank: those that buy something, or all if these are fewer than two."""
        planned = [row for row in self.rows if row.document is not None]
        bought = [row for row in planned if any(use.bought for use in row.uses)]
        return tuple(bought if len(bought) > 1 else planned)


def what_if(
    model: Model,
    fleet: Fleet,
    purchases: Sequence[tuple[Purchase, ...]],
    *,
    retired: dict[str, int] | None = None,
    job: Job | None = None,
    tokens: float = 1e12,
    prices: Prices | None = None,
    terms: Terms | None = None,
    wishes: SearchOptions | None = None,
    hwdb: Hwdb | None = None,
    sweep: Sweep | None = None,
    deadline: Deadline | None = None,
) -> WhatIf:
    """Add every purchase to the fleet (without `retired` nodes); plan, simulate and bill each candidate.

    The first row is the existing fleet, unless that is empty; with `retired`, the second is what is left of
    it. Each candidate gets an even share of the time that the `deadline` leaves; rows cut short are marked,
    and rows not reached show the fleet's plan. Raises InfeasibleError when no row has a plan.
    """
    deadline = deadline or Deadline()
    hwdb, sweep = hwdb or Hwdb.load(), sweep or Sweep(jobs=1)
    prices = replace(prices or Prices(), hwdb=hwdb)
    candidates = candidates_of(fleet, purchases, retired or {})
    wishes, every = wishes or SearchOptions(), range(len(candidates))
    standing = len(candidates) - len(purchases)
    terms = terms or Terms()
    plans = CandidatePlans(model, job or Job(), candidates, standing, hwdb, sweep, power=terms.power)
    failures = not any(failure_lacks(item.members, prices) for _, item in candidates)
    billing = Billing(tokens, prices, terms, failures)
    outcomes = plans.planned(wishes, deadline)
    outcomes |= _unseen(plans, every[standing:], outcomes, outcomes.get(standing - 1), deadline)
    rows = _rows(candidates, outcomes, billing, deadline.why)
    if all(row.document is None for row in rows):
        raise InfeasibleError("no candidate has a plan: " + rows[0].reason)
    return WhatIf(
        model=model,
        rows=tuple(rows),
        billing=billing,
        notes=(*_cut_short(rows, deadline), *notes_of(rows, prices)),
        assumptions=assumed(prices, rows),
    )


_LATE_S = 0.4  # beyond a limit, for rows that nothing was searched for
_UNSEEN = "no other was looked for"


def _unseen(
    plans: CandidatePlans,
    bought: Sequence[int],
    outcomes: Mapping[int, PlanOutcome],
    standing: PlanOutcome | None,
    deadline: Deadline,
) -> dict[int, PlanOutcome]:
    """The fleet's own plan for those of the candidates `bought` that were not reached in time, by number.

    As many as can be priced in the short grace time after the deadline.
    """
    if standing is None or standing.document is None or standing.document.power is not None:
        return {}  # under limits on power clocks are other ones
    found: dict[int, PlanOutcome] = {}
    time_left = deadline.grace(_LATE_S) if deadline.over() else Deadline()
    for number in bought:
        own = outcomes.get(number)
        if time_left.over():
            break
        if own is None or (own.cut_short and own.document is None):
            floor = plans.floor(number, standing.document, _UNSEEN)
            found[number] = replace(floor, cut_short=True, reason=_UNSEEN)
    return found


def _rows(
    candidates: Sequence[tuple[str, Fleet]],
    outcomes: Mapping[int, PlanOutcome],
    billing: Billing,
    why: Callable[[], str],
) -> list[WhatIfRow]:
    """The rows of all candidates; `why` gives the reason for candidates without an outcome."""
    rows: list[WhatIfRow] = []
    for number, (name, member) in enumerate(candidates):
        found = outcomes.get(number)
        if found is None:
            rows.append(WhatIfRow(name, member, None, f"not looked at: {why()}", cut_short=True))
            continue
        if found.document is None:
            rows.append(WhatIfRow(name, member, None, found.reason, cut_short=found.cut_short))
            continue
        standing = rows and not all(node.bought for node in rows[0].fleet.members)
        base = rows[0] if standing else None  # else all is new: there is no fleet to compare it with
        row = billing.row(name, member, found.document, base)
        rows.append(replace(row, cut_short=found.cut_short, reason=found.reason))
    return rows


def candidates_of(
    fleet: Fleet, purchases: Sequence[tuple[Purchase, ...]], retired: dict[str, int]
) -> list[tuple[str, Fleet]]:
    """(name, fleet): the fleet unchanged, without `retired` nodes if any, and that with each purchase."""
    if not fleet.members:
        return [(" + ".join(map(str, bought)), fleet.with_purchases(bought)) for bought in purchases]
    found, rest, left = [("fleet", fleet)], fleet, ""
    if retired:
        less = "".join(f" - {count} x {name}" for name, count in retired.items())
        rest, left = fleet.without(retired), f"fleet{less}"
        found.append((left, rest))
    for bought in purchases:
        name = f"{left} + " if left else "+ "
        found.append((name + " + ".join(map(str, bought)), rest.with_purchases(bought)))
    return found


def _cut_short(rows: Sequence[WhatIfRow], deadline: Deadline) -> list[str]:
    """Notes on the rows whose search ran out of time."""
    found = []
    unseen = [f"`{row.name}`" for row in rows if row.cut_short and row.document is None]
    own = [f"`{row.name}`" for row in rows if row.cut_short and row.document and row.reason]
    cut = [f"`{row.name}`" for row in rows if row.cut_short and row.document and not row.reason]
    if own:
        show = "shows" if len(own) == 1 else "show"
        found.append(f"{deadline.why()}: {', '.join(own)} {show} a plan of fewer nodes, {_UNSEEN}")
    if cut:
        found.append(
            f"{deadline.why()}: the best plans so far of {', '.join(cut)}; more time may find faster"
        )
    if unseen:
        found.append(f"{deadline.why()}: no plan was found, or looked for, of {', '.join(unseen)}")
    return found


def assumed(prices: Prices, rows: Sequence[WhatIfRow]) -> tuple[str, ...]:
    """Every figure that the bills rest on, with its source."""
    lines = dict.fromkeys(
        f"{charge.member} {charge.kind}: {charge.basis}" for row in rows for charge in row.bill.charges
    )
    economics = prices.economics
    for name in economics.__dataclass_fields__:
        figure = getattr(economics, name)
        if figure is not None:
            lines.setdefault(f"economics.{name}: {figure}")
    return tuple(lines)


def plan_path(folder: Path, name: str) -> Path:
    """The path of a candidate's plan file; its name has only letters, digits, dots and dashes."""
    kept = "".join(char if char.isalnum() or char in ".-" else "_" for char in name)
    while "__" in kept:
        kept = kept.replace("__", "_")
    return folder / f"{kept.strip('_')}.json"
