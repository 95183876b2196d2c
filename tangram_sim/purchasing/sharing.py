"""Fleets that serve by day and train by night, compared with two separate fleets of the same nodes.

By day, just enough nodes serve to keep the rate within the latency limits, and the others train; by night all
train. A few choices of serving nodes are tried: those with the least peak rate lost to training, and those of
each GPU kind alone. The one with the most tokens trained is kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing.billing import RENTED, Terms, bill, failure_lacks, way_of
from tangram_sim.purchasing.cases import Case, outcome, overlays_of, simulate_case
from tangram_sim.purchasing.days import (
    DAY_HOURS,
    DAYS_PER_MONTH,
    ChangeOver,
    trained_day,
)
from tangram_sim.purchasing.fleets import Fleet, Member
from tangram_sim.purchasing.known import known_on
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.purchasing.rows import planned_goodput, throughput_of
from tangram_sim.purchasing.search import ModelToTrain, work_bound
from tangram_sim.purchasing.served_day import DayTerms, ServedDay
from tangram_sim.purchasing.served_fleets import FleetServices, ServiceDemand, has_all, taken_nodes
from tangram_sim.reliability.state import atom_bytes
from tangram_sim.studies.candidate_loop import CandidateJudge
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.number_formats import resolve
from tangram_sim.studies.serving_plan import ServePlanDocument
from tangram_sim.studies.sweep import Sweep
from tangram_sim.studies.training_run import ranks_of
from tangram_sim.training.plan import Plan
from tangram_sim.units import HOUR_S

_SAVED_BYTES_PER_S = 1.25e9  # of one node to or from storage: 10 Gbit/s
_PART = 0.25  # of the time that is left, for one plan


@dataclass(frozen=True, slots=True)
class _Training:
    """Tokens/s that a fleet trains, and the number of nodes of each member (by label) that its plan uses."""

    tokens_per_s: float
    used: Mapping[str, int]


_NOTHING = _Training(0.0, {})


class _TimeOverError(Exception):
    """The deadline ended before a training plan was searched for."""


@dataclass(frozen=True)
class SharedWork:
    """Work to train and to serve on the same nodes, with prices and search options."""

    work: ModelToTrain
    demand: ServiceDemand
    terms: DayTerms
    prices: Prices
    paid: Terms  # whether nodes are bought or rented
    wishes: SearchOptions
    hwdb: Hwdb
    sweep: Sweep
    deadline: Deadline


class DayPlanner(CandidateJudge[Fleet, ServedDay]):
    """Plans the days of fleets; training plans are remembered, so that each fleet is planned once."""

    def __init__(self, shared: SharedWork, fleets: Sequence[Fleet]) -> None:
        """For days of these fleets. Goodput is included if failures of all of them are stated."""
        self.work = shared.work
        self.model, self.job, self.terms = shared.work.model, shared.work.job, shared.terms
        self.prices, self.paid, self.wishes = shared.prices, shared.paid, shared.wishes
        self.hwdb, self.sweep, self.deadline = shared.hwdb, shared.sweep, shared.deadline
        self.services = FleetServices(shared.demand, fleets, shared.hwdb) if shared.terms.hours else None
        self.failures = not any(failure_lacks(fleet.members, shared.prices) for fleet in fleets)
        self._known: dict[tuple[tuple[str, int], ...], _Training] = {}
        self._plans: list[tuple[Fleet, PlanDocument]] = []

    def planned(self, subject: Fleet, deadline: Deadline) -> ServedDay:
        """The best day of a fleet, without a name; searches share the planner's own time left."""
        del deadline
        return self.day("", subject)

    def value(self, found: ServedDay) -> float:
        """Tokens trained a day."""
        return found.trained.shared

    def bound(self, subject: Fleet) -> float:
        """Upper bound on tokens trained per day, whatever is served."""
        return work_bound(self.work, subject.cluster, self.hwdb) * DAY_HOURS * HOUR_S

    def day(self, name: str, fleet: Fleet) -> ServedDay:
        """The best day found for one fleet: the one with the most tokens trained."""
        try:
            return self._best(name, fleet)
        except _TimeOverError as over:
            return ServedDay(name, fleet, f"not looked at: {over}")

    def _best(self, name: str, fleet: Fleet) -> ServedDay:
        if not self.terms.hours or self.services is None:
            return self._of(ServedDay(name, fleet))
        try:
            plans = self.services.carrying(fleet)
        except InfeasibleError as error:
            return ServedDay(name, fleet, str(error), self._most(fleet))
        found: dict[tuple[tuple[str, int], ...], ServedDay] = {}
        for plan in plans:
            nodes = taken_nodes(fleet, plan)
            key = tuple(sorted(nodes.items()))
            if not any(all(nodes.get(label, 0) >= count for label, count in other) for other in found):
                begun = ServedDay(
                    name, fleet, serving_nodes=nodes, service=plan, served_tokens=self._served(plan)
                )
                found[key] = self._of(begun)
        return max(
            found.values(),
            key=lambda served_day: (served_day.trained.shared, -(served_day.usd_per_month or 0.0)),
        )

    def _most(self, fleet: Fleet) -> float | None:
        """Good requests/s (within the latency limits) of all nodes; None if they can serve nothing."""
        assert self.services is not None
        try:
            replay = self.services.planned(fleet).replay
        except InfeasibleError:
            return None
        return replay.played * replay.good_share if replay else None

    def _served(self, plan: ServePlanDocument) -> float:
        """Output tokens per day in requests served within the latency limits."""
        good = plan.replay.played * plan.replay.good_share if plan.replay else 0.0
        tokens = sum(planned_type.amount * planned_type.output_tokens for planned_type in plan.types)
        each = tokens / sum(planned_type.amount for planned_type in plan.types)
        return good * each * self.terms.hours * HOUR_S

    def _of(self, begun: ServedDay) -> ServedDay:
        """Complete a day whose serving nodes are chosen with its trained tokens and costs."""
        fleet, nodes = begun.fleet, begun.serving_nodes
        rest = _rest(fleet, nodes)
        resting = self.training(rest) if rest else _NOTHING
        everyone = self.training(fleet)
        if everyone.tokens_per_s < resting.tokens_per_s:
            everyone = resting  # the others may stand idle
        change = self._change(fleet, begun.service)
        trained = trained_day(self.terms.hours, resting.tokens_per_s, everyone.tokens_per_s, change)
        by_day = {label: resting.used.get(label, 0) + nodes.get(label, 0) for label in _labels(fleet)}
        by_night = everyone.used if trained.changes or not self.terms.hours else resting.used
        hours, night = self.terms.hours, DAY_HOURS - self.terms.hours
        day_usd = self._hourly(fleet.members, by_day)
        return replace(
            begun,
            trained=trained,
            change=change,
            usd_per_month=self._month(
                (hours, day_usd),
                (night, self._hourly(fleet.members if trained.changes else self._kept(begun), by_night)),
            )
            if hours
            else self._month((DAY_HOURS, self._hourly(fleet.members, by_night))),
            apart_usd_per_month=self._month(
                (hours, day_usd), (night, self._hourly(self._kept(begun), resting.used))
            ),
            serving_usd_per_month=self._month((hours, self._hourly(_serving(begun), nodes))),
        )

    def training(self, fleet: Fleet) -> _Training:
        """Training throughput of a fleet when none of its nodes serves; zero tokens/s if there is no plan."""
        key = tuple(sorted((member.label, member.nodes) for member in fleet.members))
        if key not in self._known:
            document = self._plan(fleet)
            self._known[key] = _NOTHING
            if document is not None:
                self._plans.append((fleet, document))
                good = planned_goodput(fleet, document, self.prices) if self.failures else None
                used = zip(_labels(fleet), fleet.used(ranks_of(document)), strict=True)
                self._known[key] = _Training(
                    throughput_of(document, good).tokens_per_s, {label: nodes for label, (_, nodes) in used}
                )
        return self._known[key]

    def _plan(self, fleet: Fleet) -> PlanDocument | None:
        """The training plan of a fleet; None if there is none. Raises _TimeOverError.

        The search starts from the fastest plan of a contained fleet, since more nodes never slow a plan.
        """
        inside = [(plan.step_s, n) for n, (small, plan) in enumerate(self._plans) if has_all(fleet, small)]
        known: tuple[Plan, ...] = ()
        if inside:
            small, plan = self._plans[min(inside)[1]]
            place = dict(zip(_labels(fleet), fleet.group_of, strict=True))
            groups = {
                group: place[label] for group, label in zip(small.group_of, _labels(small), strict=True)
            }
            known = (known_on(plan, small.cluster, fleet.cluster, groups, self.hwdb),)
        case = Case(self.model, fleet.cluster, self.job, self.wishes, overlays_of(self.hwdb), known)
        time_left = self.deadline.share(_PART * self.deadline.left_s())
        keys, done = [case.key(self.hwdb)], len(self._known)
        (answer,) = self.sweep.run(simulate_case, [case], keys, "plan", before=done, deadline=time_left)
        if answer is None:
            raise _TimeOverError(self.deadline.why())
        return outcome(answer).document

    def _change(self, fleet: Fleet, service: ServePlanDocument | None) -> ChangeOver:
        economics, nodes = self.prices.economics, sum(member.nodes for member in fleet.members)
        state = sum(sum(sizes) for sizes in atom_bytes(self.model, resolve(self.job, fleet.cluster)).values())
        moved_s = state / nodes / _SAVED_BYTES_PER_S
        drain_s = 0.0
        if service is not None and service.replay is not None:
            longest = max(planned_type.output_tokens for planned_type in service.types)
            drain_s = service.replay.ttft_p99_s + service.replay.tpot_p99_s * longest
        return ChangeOver(
            drain_s,
            economics.checkpoint_s.value if economics.checkpoint_s else moved_s,
            economics.restart_s.value if economics.restart_s else moved_s,
            self.terms.load_s,
        )

    def _kept(self, begun: ServedDay) -> list[Member]:
        """Members that are paid for outside serving hours if serving nodes never train.

        Rented nodes are given back then; owned ones stay.
        """
        kept = []
        for member in begun.fleet.members:
            gone = begun.serving_nodes.get(member.label, 0)
            rented = way_of(member, self.prices, self.paid) in RENTED
            kept.append(replace(member, nodes=member.nodes - gone if rented else member.nodes))
        return [member for member in kept if member.nodes]

    def _hourly(self, members: Sequence[Member], used: Mapping[str, int]) -> float | None:
        """USD per hour of these members with `used` nodes of each running; None if a price is not stated."""
        running = [min(member.nodes, used.get(member.label, 0)) for member in members]
        charged = bill(members, running, self.prices, self.paid)
        return charged.usd_per_hour if charged.known else None

    def _month(self, *parts: tuple[float, float | None]) -> float | None:
        """USD per month, from (hours a day, USD per hour) parts, times the utilisation in the price file.

        None if any rate is unknown.
        """
        total = 0.0
        for hours, usd in parts:
            if usd is None:
                return None
            total += hours * usd
        return total * DAYS_PER_MONTH * self.prices.economics.utilisation.value


def days_of(shared: SharedWork, fleets: Sequence[tuple[str, Fleet]]) -> list[ServedDay]:
    """The day of every named fleet, in order."""
    planner = DayPlanner(shared, [fleet for _, fleet in fleets])
    return [planner.day(name, fleet) for name, fleet in fleets]


def _labels(fleet: Fleet) -> list[str]:
    return [member.label for member in fleet.members]


def _rest(fleet: Fleet, serving: Mapping[str, int]) -> Fleet | None:
    """The fleet without its serving nodes; None if all nodes serve."""
    if all(member.nodes <= serving.get(member.label, 0) for member in fleet.members):
        return None
    return fleet.without(dict(serving)) if serving else fleet


def _serving(begun: ServedDay) -> list[Member]:
    """The members of the fleet that serve, with their counts of serving nodes."""
    held = [replace(item, nodes=begun.serving_nodes.get(item.label, 0)) for item in begun.fleet.members]
    return [member for member in held if member.nodes]
