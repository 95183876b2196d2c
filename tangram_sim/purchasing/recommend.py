"""Recommend nodes to rent or buy for a training run, with runner-ups and what would change it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.errors import InfeasibleError
from tangram_sim.fields import HasDocument, described, stated
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.models import Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing import catalogue as offered
from tangram_sim.purchasing.billing import RENTED, Terms, failure_lacks, rent_of, rents_of, way_of
from tangram_sim.purchasing.catalogue import Limits, Offer
from tangram_sim.purchasing.clouds import MOST_NODES, cloud_catalogue, clouds_named
from tangram_sim.purchasing.fleets import Fleet, Purchase, standing_fleet
from tangram_sim.purchasing.front import Front
from tangram_sim.purchasing.goal import Goal, goal_of, ranked, reaches, slow_end_days
from tangram_sim.purchasing.goal_search import GoalSearch, Terminals, cloud_mixes
from tangram_sim.purchasing.notes import notes_of
from tangram_sim.purchasing.out_of_reach import out_of_reach
from tangram_sim.purchasing.pricefile import SPOT_RETURN_S, Preemption, Prices, load_prices
from tangram_sim.purchasing.rows import Billing, WhatIfRow, kinds_of
from tangram_sim.purchasing.search import ModelToTrain
from tangram_sim.purchasing.sensitivity import with_figure
from tangram_sim.purchasing.whatif import WhatIf, assumed
from tangram_sim.purchasing.words import days, dollars
from tangram_sim.studies.sweep import Sweep
from tangram_sim.studies.training_run import wanted_run
from tangram_sim.training.job import Job
from tangram_sim.units import HOUR_S, days_of, percent, usd_of

if TYPE_CHECKING:
    from tangram_sim.purchasing.recommendation_document import RecommendationDocument

MOST_SHOWN = 8
_FEW = 20_000  # mixes of a catalogue, of which it is known at once what each takes at the least


@described
@dataclass(frozen=True)
class Recommendation(HasDocument):
    """All mixes planned for a goal, the best first, and how far the search proves the best."""

    work: ModelToTrain = field(metadata=stated("The model and the job to train."))
    goal: Goal = field(metadata=stated("Tokens to train, by when, for how much."))
    limits: Limits = field(metadata=stated("The most nodes, money and power."))
    offers: tuple[Offer, ...] = field(metadata=stated("Nodes that may be added, with their prices."))
    rows: tuple[WhatIfRow, ...] = field(metadata=stated("Mixes planned, the best first: plan, bill, days."))
    searched: Terminals = field(metadata=stated("How many mixes were planned, and what bounds the others."))
    billing: Billing = field(metadata=stated("Prices and terms."))
    notes: tuple[str, ...] = field(metadata=stated("What was assumed or left out, in words."))

    @property
    def document(self) -> "RecommendationDocument":
        """Its JSON, as of `purchase` with a goal."""
        from tangram_sim.purchasing.recommendation_document import recommendation_document

        return recommendation_document(self, None, (), Hwdb.load())

    @property
    def best(self) -> WhatIfRow:
        """The recommended mix, or the one nearest to the goal where none reaches it."""
        return self.rows[0]

    @property
    def reached(self) -> bool:
        """Whether the recommended mix finishes in time and within the budget."""
        return self.reaches(self.best)

    def reaches(self, row: WhatIfRow) -> bool:
        """Whether a mix finishes in time and within the budget."""
        return reaches(row, self.goal)

    @property
    def runner_ups(self) -> tuple[WhatIfRow, ...]:
        """The best mix of each other set of node kinds, and the second best of the recommended set."""
        found: dict[tuple[str, ...], int] = {kinds_of(self.best): 1}
        shown = []
        for row in self.rows[1:]:
            kinds = kinds_of(row)
            found[kinds] = found.get(kinds, 0) + 1
            if found[kinds] <= (2 if kinds == kinds_of(self.best) else 1):
                shown.append(row)
        return tuple(shown[: MOST_SHOWN - 1])

    @property
    def _of_other_kinds(self) -> WhatIfRow | None:
        """The best runner-up of other kinds of nodes that reaches the goal; None: there is none."""
        able = (row for row in self.runner_ups if self.reaches(row))
        return next((row for row in able if kinds_of(row) != kinds_of(self.best)), None)

    def as_what_if(self) -> WhatIf:
        """The mixes as the rows of a what-if: for its documents, its report and its sensitivity analysis."""
        rows = (self.best, *(row for row in self.runner_ups if self.reaches(row) or not self.reached))
        assumptions = assumed(self.billing.prices, rows)
        return WhatIf(self.work.model, rows, self.billing, self.notes, assumptions)

    def why(self) -> list[str]:
        """Sentences on the reasons: the mixes compared, and how much better another could be."""
        best = self.best
        if not self.reached:
            return [
                f"no mix that was planned finishes within {_limits(self.goal)}: `{best.name}` comes nearest"
            ]
        what = "the fastest" if self.goal.wants_speed else "the cheapest"
        said = f"{what} of {self.searched.planned} mixes planned that finish within {_limits(self.goal)}"
        if not (best.bill.known or self.goal.wants_speed):
            said += ", by the costs that are stated"
        other = self._of_other_kinds
        if other is not None and best.usd_to_train_at_least:
            more = other.usd_to_train_at_least / best.usd_to_train_at_least - 1
            said += f"; `{other.name}`, the next of other kinds, costs {percent(more, 1, signed=True)}"
        least = self.searched.least_usd
        found = [said, *self._reserved()]
        if best.usd_to_train and least < best.usd_to_train * (1 - 1e-9) and not self.goal.wants_speed:
            found.append(
                "a mix that was not planned can be at most "
                f"{percent(1 - least / best.usd_to_train, 1)} cheaper (by the bound on its work)"
            )
        return found

    def _reserved(self) -> list[str]:
        """One sentence on the listed rows that pay for more days of a reservation than they run; else []."""
        prices, terms, said = self.billing.prices, self.billing.terms, list[str]()
        for row in (self.best, *self.runner_ups):
            rents = [rents_of(member, prices, terms) for member in row.fleet.members]
            paid = max((each.paid_days(row.days_to_train) for each in rents), default=0.0)
            if paid > row.days_to_train * 1.01:
                said.append(f"`{row.name}` {paid:,g} (it takes {row.days_to_train:,.3g})")
        return [f"whole days of reservations are paid for: {', '.join(said)}"] if said else []

    def changes(self) -> list[str]:
        """Sentences on what would change the choice: prices, time, the slow end of the interval."""
        best = self.best
        found: list[str] = []
        if not self.reached:
            return found
        other = self._of_other_kinds
        if other is not None and best.usd_to_train and other.usd_to_train and not self.goal.wants_speed:
            found += _price_flip(best, other, self.billing, rises=True)
            found += _price_flip(other, best, self.billing, rises=False)
        late = slow_end_days(best)
        if late > self.goal.days:
            found.append(
                f"at the slow end of its 90 % interval it takes {days(late)}, more than the "
                f"{days(self.goal.days)} asked for"
            )
            safe = [
                row for row in self.rows if reaches(row, self.goal) and slow_end_days(row) <= self.goal.days
            ]
            if safe:
                found[-1] += (
                    f"; `{safe[0].name}` stays within them there, for {dollars(safe[0].usd_to_train)}"
                )
        sooner = [
            row for row in self.rows if row.days_to_train < best.days_to_train * 0.999 and row.bill.known
        ]
        if sooner and not self.goal.wants_speed:
            sooner.sort(key=lambda row: row.usd_to_train or math.inf)
            one = sooner[0]
            found.append(
                f"sooner than {days(best.days_to_train)}: `{one.name}` takes {days(one.days_to_train)} for "
                f"{dollars(one.usd_to_train)}"
            )
        return found


def recommend_mix(
    work: ModelToTrain,
    fleet: Fleet,
    catalogue: Sequence[tuple[Purchase, int]],
    limits: Limits,
    prices: Prices,
    goal: Goal,
    *,
    ordered: date | None = None,
    one_kind: bool = False,
    terms: Terms | None = None,
    wishes: SearchOptions | None = None,
    hwdb: Hwdb | None = None,
    sweep: Sweep | None = None,
    deadline: Deadline | None = None,
    tell: Callable[[Recommendation], None] | None = None,
) -> Recommendation:
    """Search for the mix of a catalogue that reaches `goal` best together with `fleet`, which may be empty.

    `one_kind`: all nodes added are of one kind, as for a cloud's list. `tell` is called with each better mix.
    Raises BadInputError for missing figures, InfeasibleError where nothing has a plan or can reach the goal.
    """
    deadline, terms = deadline or Deadline(), terms or Terms()
    hwdb, sweep = hwdb or Hwdb.load(), sweep or Sweep(jobs=1)
    prices = replace(prices, hwdb=hwdb)
    limits = replace(limits, budget_usd=min(limits.budget_usd, goal.budget_usd))
    offers, notes = offered.priced_offers(catalogue, prices, terms, limits, ordered or date.today())
    left = offered.beside(limits, fleet, prices)

    def within(limits: Limits) -> list[tuple[int, ...]]:
        if not one_kind:
            return offered.mixes(offers, limits)
        return [mix for mix in cloud_mixes(offers) if offered.fits(offers, limits, mix)]

    everything = offered.bought(fleet, offers, [1] * len(offers)).members
    billing = Billing(goal.tokens, prices, terms, not failure_lacks(everything, prices))

    def study(search: GoalSearch) -> Recommendation:
        planned: dict[tuple[int, ...], WhatIfRow] = {}
        for index, outcomes in sorted(search.answers.items()):
            document = outcomes[0].document
            if document is None or not search.allowed[index]:
                continue
            mix = search.mixes[index]
            grown, name = offered.bought(fleet, offers, mix), offered.mix_name(offers, mix)
            row = billing.row(name, grown, document)
            planned[mix] = replace(row, cut_short=outcomes[0].cut_short)
        idle = {
            search.mixes[index]
            for index in search.answers
            if _is_no_better(planned, search.mixes[index], search.trimmed(index), goal)
        }
        rows = [row for mix, row in planned.items() if mix not in idle]
        best = tuple(rows[index] for index in ranked(rows, goal))
        shown = best[:MOST_SHOWN]
        cut = [] if not deadline.over() else [f"{deadline.why()}: more time may find a better mix"]
        return Recommendation(
            work=work,
            goal=goal,
            limits=limits,
            offers=tuple(offers),
            rows=best,
            searched=search.terminals(),
            billing=billing,
            notes=(*cut, *notes, *notes_of(shown, prices)),
        )

    def heard(_: Front) -> None:
        found = study(search)
        if tell is not None and found.rows:
            tell(found)

    def searching(mixes: Sequence[tuple[int, ...]]) -> GoalSearch:
        return GoalSearch(
            [work],
            fleet,
            offers,
            mixes,
            hwdb,
            sweep,
            billing=billing,
            wishes=wishes or SearchOptions(),
            deadline=deadline,
            tell=None if tell is None else heard,
            goal=goal,
            most_usd_per_hour=limits.budget_usd_per_hour,
        )

    mixes = within(left)
    search = searching(mixes or [(0,) * len(offers)])
    if not mixes or not search.may_reach():
        few = one_kind or math.prod(offer.most + 1 for offer in offers) <= _FEW
        every = within(Limits()) if few else mixes or cloud_mixes(offers)
        raise InfeasibleError(out_of_reach(searching(every), limits, limits.power_w - left.power_w))
    search.run()
    return study(search)


def _is_no_better(
    planned: Mapping[tuple[int, ...], WhatIfRow], mix: tuple[int, ...], used: tuple[int, ...], goal: Goal
) -> bool:
    """Whether a mix that uses only the nodes `used` is no better for the goal than those nodes alone."""
    row, alone = planned.get(mix), planned.get(used)
    if mix == used or row is None or alone is None:
        return False
    return ranked([row, alone], goal)[0] == 1


def _limits(goal: Goal) -> str:
    parts = [days(goal.days)] if math.isfinite(goal.days) else []
    parts += [dollars(goal.budget_usd)] if math.isfinite(goal.budget_usd) else []
    return " and ".join(parts) or "any time"


def _price_flip(row: WhatIfRow, than: WhatIfRow, billing: Billing, *, rises: bool) -> list[str]:
    """The rent of its one kind at which `row` costs as much as `than`, as a sentence; [] where there is none.

    There is none unless `row` adds nodes of one rented kind, if `than` rents as many hours of that kind, or
    if nodes would be paid for in another way at that rent.
    """
    members = [member for member in row.fleet.members if member.bought]
    prices, terms = billing.prices, billing.terms
    way = way_of(members[0], prices, terms, row.days_to_train) if len(members) == 1 else ""
    rent = rent_of(members[0], prices, way) if way in RENTED else None
    if rent is None or row.usd_to_train is None or than.usd_to_train is None:
        return []
    name = members[0].name
    more_hours = sum(
        sign * charge.usd_per_hour / rent.value * billing.tokens / each.throughput.tokens_per_s / HOUR_S
        for sign, each in ((1, row), (-1, than))
        for charge in each.bill.charges
        if (charge.member, charge.kind) == (f"+{name}", way)
    )
    if more_hours <= 0:
        return []
    flip = rent.value + (than.usd_to_train - row.usd_to_train) / more_hours
    changed = with_figure(prices, f"nodes.{name}.{way}_usd_per_hour", flip)
    nodes = [(member, each.days_to_train) for each in (row, than) for member in each.fleet.members]
    now, then = ([way_of(node, at, terms, length) for node, length in nodes] for at in (prices, changed))
    if flip <= 0 or now != then:
        return []
    what = "rent" if way == "rent" else f"{way} price"
    over = "above" if rises else "below"
    first, second = (than, row) if rises else (row, than)
    return [
        f"at a {what} of {name} {over} ${flip:,.4g} an hour (now ${rent.value:,.4g}, "
        f"{percent(flip / rent.value - 1, 1, signed=True)}) `{first.name}` is cheaper than `{second.name}`"
    ]


def recommend(
    model: Model | str,
    *,
    tokens: float | str,
    finish_within: float | str | None = None,
    budget: float | str | None = None,
    clouds: str | Sequence[str] = "all",
    job: Job | None = None,
    fleet: str = "none",
    acquire: str = "auto",
    losses_per_node_hour: float | None = None,
    most_nodes: int = MOST_NODES,
    power_kw: float | None = None,
    prices: Path | None = None,
    wishes: SearchOptions | None = None,
    hwdb: Hwdb | None = None,
) -> Recommendation:
    """The mix of nodes from some clouds that trains `tokens` best: cheapest in time, or fastest for a budget.

    `tokens` and `budget` may be written as `300B` and `250k`, `finish_within` in days or as `14d`. `fleet`:
    the nodes you own. With `losses_per_node_hour` nodes are rented on spot and withdrawn at that rate. Raises
    BadInputError, UnknownNameError, or InfeasibleError where nothing reaches the goal.
    """
    hwdb = hwdb or Hwdb.load()
    names = [clouds] if isinstance(clouds, str) else list(clouds)
    named = clouds_named([part.strip() for name in names for part in name.split(",")])
    catalogue, notes = cloud_catalogue(named, hwdb, most_nodes)
    known = load_prices(prices, hwdb)
    if losses_per_node_hour is not None:
        known = replace(known, preemption=Preemption(losses_per_node_hour, SPOT_RETURN_S, "restart"))
        acquire = "spot"
    wanted = wanted_run(tokens)
    assert wanted is not None
    aim, assumed_time = goal_of(
        wanted.tokens,
        None if finish_within is None else days_of(finish_within),
        None if budget is None else usd_of(budget),
        known,
    )
    found = recommend_mix(
        ModelToTrain(load_model(model) if isinstance(model, str) else model, job or Job()),
        standing_fleet(fleet, hwdb),
        catalogue,
        Limits(power_w=math.inf if power_kw is None else power_kw * 1000.0),
        known,
        aim,
        one_kind=True,
        terms=Terms(acquire),
        wishes=wishes,
        hwdb=hwdb,
    )
    return replace(found, notes=(*assumed_time, *notes, *found.notes))
