"""The search over a catalogue: branch and bound to the Pareto front of throughput against cost.

Every mix is planned as `plan` plans its fleet, and on its own: other offers change no figure. A mix stays
unplanned only if its work bound (planners/tangram/bound.py), which holds for any plan, does not exceed the
throughput of a mix that costs no more. Going from the cheapest mix on plans as few as this bound allows. The
fleet itself and the mixes with the highest bounds below a few costs come first, as a first answer.
docs/models/costs.md has the argument.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Cluster
from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.search import microbatch_sizes
from tangram_sim.planners.tangram.kinds import bound_by_kinds
from tangram_sim.purchasing.cases import Case, PlanOutcome, outcome, overlays_of, simulate_case
from tangram_sim.purchasing.catalogue import Offer, bought, mix_name
from tangram_sim.purchasing.fleets import Fleet
from tangram_sim.purchasing.front import Front, Simulated, front_of
from tangram_sim.purchasing.rows import Billing, planned_goodput, throughput_of
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.number_formats import formats
from tangram_sim.studies.sweep import Sweep
from tangram_sim.studies.training_power import PowerTerms, clocked, clocks_under
from tangram_sim.training.job import Job
from tangram_sim.units import DAY_S

_BATCH = 2  # mixes per process and round: fewer waste cores, more waste mixes
_SPREAD = 8  # mixes at costs spread over all of them, for a first answer
_PART = 0.25  # of the time that is left, for the next mixes: one hard mix does not take all of it


@dataclass(frozen=True, slots=True)
class ModelToTrain:
    """One of the models that a fleet is to train, with its job and its share of the tokens."""

    model: Model
    job: Job
    weight: float = 1.0


def rate_of(rates: Sequence[float], weights: Sequence[float]) -> float:
    """Tokens/s of a job that trains each model on its share of the tokens: a weighted harmonic mean."""
    if not all(rate > 0 for rate in rates):
        return 0.0
    return sum(weights) / sum(weight / rate for rate, weight in zip(rates, weights, strict=True))


def work_bound(work: ModelToTrain, cluster: Cluster, hwdb: Hwdb, power: PowerTerms | None = None) -> float:
    """Upper bound on tokens/s of any plan on a cluster; 0 if no GPU supports the job's number format.

    Caps of `power` lower the clocks; if any kind cannot be held to its cap, all count at the highest clocks.
    """
    if power is not None and power.caps_w:
        with suppress(InfeasibleError):
            cluster = clocked(cluster, clocks_under(cluster, power.on(cluster).caps_w, hwdb))
    return max(_bound_of(work.model, job, cluster, hwdb) for job in formats(work.job, cluster))


def _bound_of(model: Model, job: Job, cluster: Cluster, hwdb: Hwdb) -> float:
    """As `work_bound`, for a job whose number format is settled."""
    try:
        bound = bound_by_kinds(model, job, cluster, hwdb)
    except InfeasibleError:
        return 0.0
    return job.tokens / min(bound.microbatch_s(size) for size in microbatch_sizes(job))


class MixSearch:
    """Branch and bound over mixes. `mixes` must hold every mix within the limits, the empty one included."""

    def __init__(
        self,
        works: Sequence[ModelToTrain],
        fleet: Fleet,
        offers: Sequence[Offer],
        mixes: Sequence[tuple[int, ...]],
        hwdb: Hwdb,
        sweep: Sweep,
        billing: Billing,
        *,
        wishes: SearchOptions,
        by_outlay: bool = False,
        most_usd_per_hour: float = math.inf,
        deadline: Deadline | None = None,
        tell: Callable[[Front], None] | None = None,
    ) -> None:
        """`tell` is called with each new front.

        Until a mix is planned, its cost is the least for a run of any length; the plan fixes the length. A
        mix that then costs more than `most_usd_per_hour` is not on the front.
        """
        self.works, self.fleet, self.offers = works, fleet, offers
        self.mixes, self.hwdb, self.sweep, self.wishes = list(mixes), hwdb, sweep, wishes
        self.billing = billing
        self.deadline, self.tell, self._begun_s = deadline or Deadline(), tell, time.monotonic()
        self.by_outlay, self.most_usd_per_hour = by_outlay, most_usd_per_hour
        each = [offer.outlay_usd if by_outlay else offer.usd_per_hour for offer in offers]
        rents = [0.0 if by_outlay else offer.rents.most_usd_per_hour for offer in offers]
        lowest = [0.0 if by_outlay else offer.rents.least_usd_per_hour for offer in offers]
        self.counts: NDArray[np.int64] = np.array(self.mixes, dtype=np.int64).reshape(len(self.mixes), -1)
        self.cost: NDArray[np.float64] = self.counts @ np.array(each)
        # Electricity, USD an hour: of idle nodes, the least there is, until a plan says what it draws.
        drawn = np.array([offer.power_usd_per_hour for offer in offers], dtype=float)
        self.electricity: NDArray[np.float64] = self.counts @ drawn
        self.fleet_electricity: NDArray[np.float64] = np.zeros(len(self.mixes))  # of nodes that stand
        more = np.array(rents) - np.array(lowest)
        if not by_outlay:
            more += np.array([offer.most_power_usd_per_hour for offer in offers]) - drawn
        self._costs = self.cost.copy(), self.cost + self.counts @ more
        self.bound: NDArray[np.float64] = np.array([self._bound(mix) for mix in self.mixes])
        self.rate: NDArray[np.float64] = np.full(len(self.mixes), -1.0)  # -1: not simulated
        self.allowed: NDArray[np.bool_] = np.full(len(self.mixes), True)  # by their costs an hour
        self.answers: dict[int, tuple[PlanOutcome, ...]] = {}

    def _bound(self, mix: tuple[int, ...]) -> float:
        cluster = bought(self.fleet, self.offers, mix).cluster
        if not cluster.groups:
            return 0.0  # who owns nothing and buys nothing trains nothing
        power = self.billing.terms.power
        rates = [work_bound(work, cluster, self.hwdb, power) for work in self.works]
        return rate_of(rates, [work.weight for work in self.works])

    def usd_per_hour(self, days: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """USD per hour of what is new in every mix; `days` of the run: one for all, or one per mix."""
        others = [
            offer.usd_per_hour - offer.rents.least_usd_per_hour - offer.power_usd_per_hour
            for offer in self.offers
        ]
        return np.asarray(self.counts @ np.array(others) + self.rents(days) + self.electricity)

    def rents(self, days: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """The rent part of `usd_per_hour`, by mix."""
        found = np.zeros(len(self.mixes))
        for place, offer in enumerate(self.offers):
            found += self.counts[:, place] * offer.rents.usd_per_hour(days)
        return found

    def days(self, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """Days of every mix's run at these throughputs; very large where a throughput is 0."""
        share = self.billing.prices.economics.utilisation.value
        return np.asarray(self.billing.tokens / np.maximum(rate, 1e-30) / DAY_S / share)

    def run(self) -> Front:
        """Simulate mixes until no other can reach the front, or the deadline is over.

        Raises InfeasibleError when no mix has a plan.
        """
        told: list[tuple[int, ...]] = []
        while True:
            waiting = self._open()
            known = bool((self.rate > 0).any())
            if not len(waiting) or (self.deadline.over() and (known or len(self.answers) > 1)):
                break
            size = self.sweep.jobs * _BATCH if self.sweep.jobs > 1 and known else 1
            self._simulate(waiting[:size], len(waiting))
            if self.tell is None:
                continue
            front = self._front(self._open())
            if told != [point.mix for point in front.points]:
                told = [point.mix for point in front.points]
                self.tell(front)
        front = self._front(waiting)
        if not front.points:
            reasons = [simulated.reason for simulated in front.simulated]
            raise InfeasibleError("no mix has a plan: " + (reasons or [self.deadline.why()])[0])
        return front

    def _share(self, mixes: int) -> Deadline:
        """A deadline for `mixes` more: a part of the time left, but no less than as many took on average."""
        left_s, passed_s = self.deadline.left_s(), time.monotonic() - self._begun_s
        return self.deadline.share(max(_PART * left_s, passed_s * mixes / max(len(self.answers), 1)))

    def _open(self) -> NDArray[np.int64]:
        """Indices of mixes not simulated that may still reach the front, in the order to plan them."""
        best = self._best_at(self.cost)
        waiting = np.flatnonzero((self.rate < 0) & (self.bound > best * (1 + 1e-12)))
        order = np.lexsort(
            (waiting, -self.bound[waiting], self.cost[waiting], ~np.isin(waiting, self._early(waiting)))
        )
        return waiting[order]

    def _early(self, waiting: NDArray[np.int64]) -> NDArray[np.int64]:
        """Mixes to plan next whatever they cost: the fleet itself, then one at each of a few costs."""
        own = waiting[~self.counts[waiting].any(axis=1)]
        turn = len(self.answers)
        if len(own) or not 0 < turn <= _SPREAD:
            return own
        cost = self.cost.max() * (1.0 - _bisecting(turn - 1)) * (1 + 1e-12)
        able = waiting[self.cost[waiting] <= cost]
        return able[[int(np.argmax(self.bound[able]))]] if len(able) else own

    def _best_at(self, cost: NDArray[np.float64]) -> NDArray[np.float64]:
        """The highest throughput (tokens/s) simulated at no more than each of the costs."""
        known = np.flatnonzero((self.rate >= 0) & self.allowed)
        if not len(known):
            return np.zeros(len(cost))
        order = known[np.argsort(self.cost[known], kind="stable")]
        best = np.concatenate([[0.0], np.maximum.accumulate(self.rate[order])])
        place = np.searchsorted(self.cost[order], cost * (1 + 1e-12) + 1e-9, side="right")
        return np.asarray(best[place])

    def _simulate(self, chosen: NDArray[np.int64], waiting: int) -> None:
        """Plan the mixes `chosen`; `waiting` is the number still to plan, these included.

        Mixes not reached before the deadline get no answer. If no mix has a plan yet, the chosen ones are
        planned even after the deadline.
        """
        pairs = [(int(index), work) for index in chosen for work in self.works]
        cases = [
            Case(
                work.model,
                bought(self.fleet, self.offers, self.mixes[index]).cluster,
                work.job,
                self.wishes,
                overlays_of(self.hwdb),
                power=self.billing.terms.power,
            )
            for index, work in pairs
        ]
        keys = [case.key(self.hwdb) for case in cases]
        done, most = len(self.answers) * len(self.works), (len(self.answers) + waiting) * len(self.works)
        time_left = self._share(len(chosen))
        answers = self.sweep.run(simulate_case, cases, keys, "plan", before=done, of=most, deadline=time_left)
        if not (self.rate > 0).any():
            answers = [
                item or simulate_case(case, time_left) for item, case in zip(answers, cases, strict=True)
            ]
        found: dict[int, list[PlanOutcome]] = {}
        for (index, _), answer in zip(pairs, answers, strict=True):
            if answer is not None:
                found.setdefault(index, []).append(outcome(answer))
        for index, outcomes in found.items():
            if len(outcomes) < len(self.works):
                continue
            rates = [
                self._tokens_per_s(self.mixes[index], plan_outcome.document) for plan_outcome in outcomes
            ]
            self.answers[index] = tuple(outcomes)
            self.rate[index] = rate_of(rates, [work.weight for work in self.works])
            if self.rate[index] > self.bound[index] * (1 + 1e-9):
                raise TangramError(
                    f"the plan for {mix_name(self.offers, self.mixes[index])} beats the bound that the "
                    "search rests on; this is a fault of the program: please report it"
                )
            self.electricity[index], self.fleet_electricity[index] = self._electricity_of(index, rates)
            usd = float(self.usd_per_hour(self.days(self.rate[index]))[index])
            self.allowed[index] = usd <= self.most_usd_per_hour * (1 + 1e-12)
            if not self.by_outlay:
                self.cost[index] = usd

    def _tokens_per_s(self, mix: tuple[int, ...], document: PlanDocument | None) -> float:
        """Throughput of a plan, computed as in a what-if; 0 without a plan."""
        if document is None:
            return 0.0
        fleet = bought(self.fleet, self.offers, mix)
        good = planned_goodput(fleet, document, self.billing.prices) if self.billing.failures else None
        return throughput_of(document, good).tokens_per_s

    def _electricity_of(self, index: int, rates: Sequence[float]) -> NDArray[np.float64]:
        """(that of what is new, that of nodes that stand), USD an hour in the mean of all works' time."""
        fleet, total, hours = bought(self.fleet, self.offers, self.mixes[index]), np.zeros(2), 0.0
        for plan_outcome, rate, work in zip(self.answers[index], rates, self.works, strict=True):
            if plan_outcome.document is None or not rate:
                return np.zeros(2)
            charged = self.billing.row("", fleet, plan_outcome.document).bill
            both = [charged.usd_per_hour_of("power", bought=new) for new in (True, False)]
            total += np.array(both) * work.weight / rate
            hours += work.weight / rate
        return total / hours

    def _front(self, waiting: NDArray[np.int64]) -> Front:
        """The front so far; `waiting` are the mixes that may still join it."""
        simulated = [self._simulated(index) for index in sorted(self.answers)]
        cut = [at for at, outcomes in self.answers.items() if any(each.cut_short for each in outcomes)]
        least, most = self._costs
        may_reach = [(float(least[at]), float(most[at]), float(self.bound[at])) for at in (*waiting, *cut)]
        left = len(self.mixes) - len(simulated) - len(waiting)
        listed = [self._simulated(at) for at in sorted(self.answers) if self.allowed[at]]
        return Front(front_of(listed), simulated, len(self.mixes), left, len(waiting), tuple(may_reach))

    def _simulated(self, index: int) -> Simulated:
        outcomes, mix = self.answers[index], self.mixes[index]
        return Simulated(
            mix,
            mix_name(self.offers, mix),
            float(self.cost[index]),
            float(self.rate[index]),
            float(self.bound[index]),
            tuple(plan_outcome.document for plan_outcome in outcomes if plan_outcome.document is not None),
            reason=next(
                (plan_outcome.reason for plan_outcome in outcomes if plan_outcome.document is None),
                ""
                if self.allowed[index]
                else "it costs more an hour than the budget in a run as short as its own",
            ),
            cut_short=any(plan_outcome.cut_short for plan_outcome in outcomes),
        )


def _bisecting(turn: int) -> float:
    """0, 1/2, 1/4, 3/4, 1/8, ...: every turn halves the widest gap (van der Corput)."""
    place, half = 0.0, 0.5
    while turn:
        place += half * (turn & 1)
        turn, half = turn >> 1, half / 2
    return place
