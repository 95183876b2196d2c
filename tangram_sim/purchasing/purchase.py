"""A whole purchase study: from catalogue, limits and jobs to the best trade-offs with their bills."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing import catalogue as offered
from tangram_sim.purchasing.billing import Terms, failure_lacks
from tangram_sim.purchasing.catalogue import Limits, Offer
from tangram_sim.purchasing.fleets import Fleet, Purchase
from tangram_sim.purchasing.front import Front, Simulated
from tangram_sim.purchasing.notes import notes_of
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.purchasing.rows import Billing, WhatIfRow
from tangram_sim.purchasing.search import MixSearch, ModelToTrain
from tangram_sim.purchasing.whatif import WhatIf, assumed, plan_path
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.sweep import Sweep


@dataclass(frozen=True)
class FrontPoint:
    """One mix of nodes that no other beats in both cost and throughput, with a what-if row per model."""

    simulated: Simulated
    rows: tuple[WhatIfRow, ...]

    def plan_files(self, folder: Path) -> list[tuple[Path, PlanDocument]]:
        """(path, plan) for every plan of this point; paths are in `folder`."""
        several = len(self.simulated.documents) > 1
        return [
            (
                plan_path(folder, self.simulated.name + (f" {document.model['name']}" if several else "")),
                document,
            )
            for document in self.simulated.documents
        ]


@dataclass(frozen=True)
class PurchaseStudy:
    """The answer of a purchase study, with all its inputs."""

    works: tuple[ModelToTrain, ...]
    offers: tuple[Offer, ...]
    limits: Limits
    front: Front
    points: tuple[FrontPoint, ...]
    billing: Billing
    notes: tuple[str, ...]
    assumptions: tuple[str, ...]

    def as_what_if(self) -> WhatIf:
        """The points of one model as the rows of a what-if, for its sensitivity analysis."""
        rows = tuple(point.rows[0] for point in self.points)
        return WhatIf(self.works[0].model, rows, self.billing, self.notes, self.assumptions)


def purchase(
    works: Sequence[ModelToTrain],
    fleet: Fleet,
    catalogue: Sequence[tuple[Purchase, int]],
    limits: Limits,
    prices: Prices,
    *,
    ordered: date,
    tokens: float = 1e12,
    terms: Terms | None = None,
    wishes: SearchOptions | None = None,
    hwdb: Hwdb | None = None,
    sweep: Sweep | None = None,
    by_outlay: bool = False,
    deadline: Deadline | None = None,
    tell: Callable[[PurchaseStudy], None] | None = None,
) -> PurchaseStudy:
    """The Pareto front of throughput against cost over all mixes of a catalogue within the limits.

    Every mix is planned on its own, with the options `wishes`. `ordered` is the day from which deliveries
    count. Cost is USD per hour of training of the bought nodes, or their outlay. After the `deadline` the
    front so far is the answer; `tell` is called with each new front. Raises BadInputError for missing
    figures, InfeasibleError when nothing fits.
    """
    deadline = deadline or Deadline()
    hwdb, terms, sweep = hwdb or Hwdb.load(), terms or Terms(), sweep or Sweep(jobs=1)
    prices = replace(prices, hwdb=hwdb)
    if not works or any(work.weight <= 0 for work in works):
        raise BadInputError("give at least one model, and weights above zero")
    offers, notes = offered.priced_offers(catalogue, prices, terms, limits, ordered)
    if by_outlay and not any(offer.outlay_usd for offer in offers):
        raise BadInputError(
            "`cost=outlay`: nothing in the catalogue is bought, all is rented; take `cost=hourly`"
        )
    left = offered.beside(limits, fleet, prices)
    mixes = offered.mixes(offers, left)
    if not mixes:
        drawn_w = limits.power_w - left.power_w
        raise InfeasibleError(
            f"`power_kw={limits.power_w / 1000:g}`: the nodes that are there draw {drawn_w / 1000:.3g} kW; "
            "give the power of the site, old and new nodes together"
        )
    if len(mixes) == 1:
        raise InfeasibleError(_nothing_fits(offers, left))
    everything = offered.bought(fleet, offers, [1] * len(offers)).members
    billing = Billing(tokens, prices, terms, not failure_lacks(everything, prices))

    def study(front: Front) -> PurchaseStudy:
        grown = [offered.bought(fleet, offers, simulated.mix) for simulated in front.points]
        points = _points(front, grown, billing)
        rows = [row for point in points for row in point.rows]
        return PurchaseStudy(
            works=tuple(works),
            offers=tuple(offers),
            limits=limits,
            front=front,
            points=points,
            billing=billing,
            notes=(*_unfinished(front, deadline), *notes, *notes_of(rows, prices)),
            assumptions=assumed(prices, rows),
        )

    search = MixSearch(
        works=works,
        fleet=fleet,
        offers=offers,
        mixes=mixes,
        hwdb=hwdb,
        sweep=sweep,
        billing=billing,
        wishes=wishes or SearchOptions(),
        by_outlay=by_outlay,
        most_usd_per_hour=limits.budget_usd_per_hour,
        deadline=deadline,
        tell=None if tell is None else lambda front: tell(study(front)),
    )
    return study(search.run())


def _unfinished(front: Front, deadline: Deadline) -> list[str]:
    """Notes on mixes not searched, or not in full, for lack of time."""
    cut = sum(simulated.cut_short for simulated in front.simulated)
    if not (front.waiting or cut):
        return []
    if not front.waiting:
        return [
            f"{cut} of {len(front.simulated)} mixes simulated were cut short by their share of the time; "
            "more time may find faster plans"
        ]
    why = f"{deadline.why()}: " if deadline.left_s() <= 0 else "the search goes on: "
    found = f"{why}{len(front.simulated)} of {front.mixes:,} mixes simulated"
    found += f", {cut} of them cut short" if cut else ""
    return [found + f"; {front.waiting} were not looked at, each of which may reach the front"]


def _points(front: Front, grown: Sequence[Fleet], billing: Billing) -> tuple[FrontPoint, ...]:
    """The points of a front with their bills; differences are relative to the first, the cheapest."""
    if not front.points:
        return ()
    first = front.points[0]
    bases = [billing.row(first.name, grown[0], document) for document in first.documents]
    return tuple(
        FrontPoint(
            simulated,
            tuple(
                base if simulated is first else billing.row(simulated.name, fleet, document, base)
                for document, base in zip(simulated.documents, bases, strict=True)
            ),
        )
        for simulated, fleet in zip(front.points, grown, strict=True)
    )


def _nothing_fits(offers: Sequence[Offer], limits: Limits) -> str:
    """A sentence on why no node fits the limits, for every offer."""
    lines = []
    for offer in offers:
        takes = (
            ("outlay", offer.outlay_usd, limits.budget_usd, "USD"),
            ("rate", offer.usd_per_hour, limits.budget_usd_per_hour, "USD/h"),
            ("power", offer.power_w / 1000, limits.power_w / 1000, "kW"),
            ("space", offer.rack_units, limits.rack_units, "rack units"),
            ("nodes", 1.0, limits.nodes, "nodes"),
            ("available", 1.0, float(offer.most), "nodes"),
        )
        over = [
            f"{what} {amount:g} of {limit:g} {unit}" for what, amount, limit, unit in takes if amount > limit
        ]
        lines.append(f"one {offer.name}: {', '.join(over)}")
    return "nothing in the catalogue fits the limits: " + "; ".join(lines)
