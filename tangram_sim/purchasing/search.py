"""The search over a catalogue: branch and bound to the Pareto front of throughput against cost.

A mix stays unsimulated only when no plan of it can reach the front, by two bounds:
1. Work (planners/tangram/bound.py): GPUs work no faster than their ideal rates. Always valid.
2. Growth, if asked for: planners may leave nodes idle, so a fleet is worth no more than one that has it.
   It holds for best plans; a heuristic planner may break it. Every simulated pair is checked, and the bound
   is widened by the worst breach seen. A mix whose search time ended bounds no other.
The fleet's own plan comes first: it is one of every mix's. Then the mixes of the highest bounds below a few
costs spread over all of them, so that both bounds have something to begin with; then the most promising.
docs/models/costs.md has the argument.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

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
from tangram_sim.purchasing.candidate_plans import SMALL_GPUS
from tangram_sim.purchasing.cases import Case, PlanOutcome, outcome, overlays_of, simulate_case
from tangram_sim.purchasing.catalogue import Offer, bought, mix_name
from tangram_sim.purchasing.fleets import Fleet
from tangram_sim.purchasing.front import Front, Simulated, front_of
from tangram_sim.purchasing.known import known_on
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.purchasing.rows import planned_goodput, throughput_of
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.number_formats import formats
from tangram_sim.studies.sweep import Sweep
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan

_BATCH = 4  # mixes per process and round: fewer waste cores, more waste mixes
_SPREAD = 8  # mixes at costs spread over all of them: of 360 mixes 135 were simulated so, 161 without
_GAIN = 1.02  # what a fine plan may gain over one with whole islands, where those seen gained less
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


def work_bound(work: ModelToTrain, cluster: Cluster, hwdb: Hwdb) -> float:
    """An upper limit on tokens/s of any plan on a cluster; 0 if no GPU supports the job's number format."""
    return max(_bound_of(work.model, job, cluster, hwdb) for job in formats(work.job, cluster))


def _bound_of(model: Model, job: Job, cluster: Cluster, hwdb: Hwdb) -> float:
    """As `work_bound`, of a job whose number format is settled."""
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
        prices: Prices,
        *,
        wishes: SearchOptions,
        failures: bool,
        growth: bool = True,
        by_outlay: bool = False,
        deadline: Deadline | None = None,
        tell: Callable[[Front], None] | None = None,
        fine: int = 0,
    ) -> None:
        """`failures`: multiply throughput by goodput. `tell` is called with each new set of best mixes.

        With `fine` mixes are planned with whole islands, and so many of the front then as `wishes` say,
        unless all together are few enough to be planned so at once.
        """
        if sum(bought(fleet, offers, mix).cluster.gpus for mix in mixes) <= SMALL_GPUS:
            fine = 0
        self._wishes_of_fine, self._fine, self._most_fine = wishes, set[int](), fine
        wishes = replace(wishes, sub_islands=False) if fine else wishes
        self.works, self.fleet, self.offers = works, fleet, offers
        self.mixes, self.hwdb, self.sweep, self.wishes, self.growth = list(mixes), hwdb, sweep, wishes, growth
        self.prices, self.failures = prices, failures
        self.deadline, self.tell, self._begun_s = deadline or Deadline(), tell, time.monotonic()
        each = [offer.outlay_usd if by_outlay else offer.usd_per_hour for offer in offers]
        self.counts: NDArray[np.int64] = np.array(self.mixes, dtype=np.int64).reshape(len(self.mixes), -1)
        self.cost: NDArray[np.float64] = self.counts @ np.array(each)
        self.bound: NDArray[np.float64] = np.array([self._bound(mix) for mix in self.mixes])
        self.rate: NDArray[np.float64] = np.full(len(self.mixes), -1.0)  # -1: not simulated
        self.answers: dict[int, tuple[PlanOutcome, ...]] = {}
        self._coarse: dict[int, float] = {}  # tokens/s as first simulated
        self.breach = 0.0

    def _bound(self, mix: tuple[int, ...]) -> float:
        cluster = bought(self.fleet, self.offers, mix).cluster
        rates = [work_bound(work, cluster, self.hwdb) for work in self.works]
        return rate_of(rates, [work.weight for work in self.works])

    def run(self) -> Front:
        """Simulate until no other mix can reach the front, or the deadline is over.

        Raises InfeasibleError when none has a plan.
        """
        told: list[tuple[int, ...]] = []
        while True:
            waiting = self._open()
            known = bool((self.rate > 0).any())
            if not len(waiting) or (self.deadline.over() and (known or len(self.answers) > 1)):
                break
            size = self.sweep.jobs * _BATCH if self.sweep.jobs > 1 and known else 1
            self._check_growth(self._simulate(waiting[:size], len(waiting)))
            if self.tell is None:
                continue
            front = self._front(len(self._open()))
            if told != [point.mix for point in front.points]:
                told = [point.mix for point in front.points]
                self.tell(front)
        self._plan_front_finely(len(waiting))
        front = self._front(len(waiting))
        if not front.points:
            reasons = [one.reason for one in front.simulated]
            raise InfeasibleError("no mix has a plan: " + (reasons or [self.deadline.why()])[0])
        return front

    def _plan_front_finely(self, waiting: int) -> None:
        """Plan the mixes of the front, the cheapest and the fastest first, then those that come to be on it.

        All of the first front before it is drawn again: mixes planned alike are compared. Then half as many
        that would be on it if they gained what the others did: of two mixes compared with whole islands the
        larger may have been the slower.
        """
        place = {mix: index for index, mix in enumerate(self.mixes)}
        coarse: list[int] = []
        asked = set[int]()
        more = self._most_fine // 2
        while self._most_fine and not self.deadline.over():
            left = self._most_fine - len(asked)
            coarse = [index for index in coarse if index not in asked]
            if left > 0 and not coarse:
                front = [place[one.mix] for one in self._front(waiting).points]
                coarse = [index for index in [*front[:1], *front[:0:-1]] if index not in asked]
            if left <= 0 or not coarse:
                left = self._most_fine + more - len(asked)
                coarse = self._nearly_best(asked)[:1]
            if left <= 0 or not coarse:
                break
            chosen = coarse[: min(max(self.sweep.jobs, 1), left)]
            asked |= set(chosen)
            answered = self._simulate(np.array(chosen), len(coarse), self._wishes_of_fine)
            self._fine |= answered
            self._check_growth(answered)

    def _nearly_best(self, asked: Collection[int]) -> list[int]:
        """Coarse mixes that the best gain of a fine plan would bring onto the front, the nearest first.

        A mix is as fast as the fastest that it contains: what it lacks to that is the search's.
        """
        coarse = [index for index in self.answers if index not in asked and self.rate[index] > 0]
        gain = max((self.rate[index] / self._coarse[index] for index in self._fine), default=1.0)
        gain = max(gain, _GAIN)
        near = []
        for index in coarse:
            inside = [one for one in self.answers if (self.counts[one] <= self.counts[index]).all()]
            able = min(gain * max(float(self.rate[one]) for one in inside), float(self.bound[index]))
            best = float(self._best_at(self.cost[[index]])[0])
            if able > best * (1 + 1e-12):
                near.append((-able / best, index))
        return [index for _, index in sorted(near)]

    def _share(self, mixes: int) -> Deadline:
        """A deadline for `mixes` more: a part of the time left, but no less than as many took on average."""
        left_s, passed_s = self.deadline.left_s(), time.monotonic() - self._begun_s
        return self.deadline.share(max(_PART * left_s, passed_s * mixes / max(len(self.answers), 1)))

    def _open(self) -> NDArray[np.int64]:
        """Indices of mixes not simulated that may still be among the best, the most promising first."""
        best = self._best_at(self.cost)
        most = self._upper()
        waiting = np.flatnonzero((self.rate < 0) & (most > best * (1 + 1e-12)))
        # Where nothing is known at a cost, everything is promising, the fastest first.
        known = best[waiting] > 0
        promise = np.where(known, most[waiting] / np.where(known, best[waiting], 1.0), np.inf)
        early = self._early(waiting, most)
        order = np.lexsort((waiting, -most[waiting], -promise, ~np.isin(waiting, early)))
        return waiting[order]

    def _early(self, waiting: NDArray[np.int64], most: NDArray[np.float64]) -> NDArray[np.int64]:
        """What is to be looked at now, whatever it promises: the fleet; a mix at each of a few costs."""
        own = waiting[~self.counts[waiting].any(axis=1)]
        turn = len(self.answers)
        if len(own) or not 0 < turn <= _SPREAD:
            return own
        cost = self.cost.max() * (1.0 - _bisecting(turn - 1)) * (1 + 1e-12)
        able = waiting[self.cost[waiting] <= cost]
        return able[[int(np.argmax(most[able]))]] if len(able) else own

    def _best_at(self, cost: NDArray[np.float64]) -> NDArray[np.float64]:
        """The highest throughput (tokens/s) simulated at no more than each of the costs."""
        known = np.flatnonzero(self.rate >= 0)
        if not len(known):
            return np.zeros(len(cost))
        order = known[np.argsort(self.cost[known], kind="stable")]
        best = np.concatenate([[0.0], np.maximum.accumulate(self.rate[order])])
        place = np.searchsorted(self.cost[order], cost * (1 + 1e-12) + 1e-9, side="right")
        found: NDArray[np.float64] = best[place]
        return found

    def _upper(self) -> NDArray[np.float64]:
        """An upper limit on each mix's throughput in tokens/s: the smaller of the two bounds."""
        most = self.bound.copy()
        if self.growth:
            for index in self._whole():
                inside = (self.counts <= self.counts[index]).all(axis=1)
                most[inside] = np.minimum(most[inside], self.rate[index] * (1 + self.breach))
        return most

    def _whole(self) -> list[int]:
        """Indices of simulated mixes whose searches were not ended by the deadline."""
        return [index for index, found in self.answers.items() if not any(one.cut_short for one in found)]

    def _simulate(
        self, chosen: NDArray[np.int64], waiting: int, wishes: SearchOptions | None = None
    ) -> set[int]:
        """Plan the mixes `chosen`; `waiting` is how many are still to be looked at, these included.

        Returns those whose answers were taken: not those that time ended before, nor answers that are worse
        than the ones at hand. Where no mix has a plan yet, what is chosen is answered though time is over.
        """
        pairs = [(int(index), number) for index in chosen for number in range(len(self.works))]
        cases = [
            Case(
                work.model,
                bought(self.fleet, self.offers, self.mixes[index]).cluster,
                work.job,
                wishes or self.wishes,
                overlays_of(self.hwdb),
                self._known(index, number),
            )
            for index, number in pairs
            for work in (self.works[number],)
        ]
        keys = [case.key(self.hwdb) for case in cases]
        done, most = len(self.answers) * len(self.works), (len(self.answers) + waiting) * len(self.works)
        time_left = self._share(len(chosen))
        answers = self.sweep.run(simulate_case, cases, keys, "plan", before=done, of=most, deadline=time_left)
        if not (self.rate > 0).any():
            answers = [
                one or simulate_case(case, time_left) for one, case in zip(answers, cases, strict=True)
            ]
        found: dict[int, list[PlanOutcome]] = {}
        for (index, _), answer in zip(pairs, answers, strict=True):
            if answer is not None:
                found.setdefault(index, []).append(outcome(answer))
        found = {index: outcomes for index, outcomes in found.items() if len(outcomes) == len(self.works)}
        taken = set[int]()
        for index, outcomes in found.items():
            rates = [self._tokens_per_s(self.mixes[index], one.document) for one in outcomes]
            rate = rate_of(rates, [work.weight for work in self.works])
            if rate < self.rate[index]:  # a finer search that was cut short
                continue
            self._coarse.setdefault(index, rate)
            self.answers[index], self.rate[index] = tuple(outcomes), rate
            taken.add(index)
            if self.rate[index] > self.bound[index] * (1 + 1e-9):
                raise TangramError(
                    f"the plan for {mix_name(self.offers, self.mixes[index])} beats the bound that the "
                    "search rests on; this is a fault of the program: please report it"
                )
        return taken

    def _known(self, index: int, work: int) -> tuple[Plan, ...]:
        """The fastest plan of model `work` among simulated mixes contained in mix `index`, moved to that mix.

        () if there is none.
        """
        inside = [one for one in self.answers if (self.counts[one] <= self.counts[index]).all()]
        told = [(found.step_s, one, found) for one in inside if (found := self.answers[one][work].document)]
        if not told:
            return ()
        _, small, document = min(told, key=lambda one: one[:2])
        groups, first = {number: number for number in range(len(self.fleet.cluster.groups))}, 0
        for small_count, count in zip(self.counts[small], self.counts[index], strict=True):
            if small_count:
                groups[len(groups)] = len(self.fleet.cluster.groups) + first
            first += bool(count)
        inner, cluster = (bought(self.fleet, self.offers, self.mixes[one]).cluster for one in (small, index))
        return (known_on(document, inner, cluster, groups, self.hwdb),)

    def _tokens_per_s(self, mix: tuple[int, ...], document: PlanDocument | None) -> float:
        """Throughput of a plan, computed as in a what-if; 0 without a plan."""
        if document is None:
            return 0.0
        fleet = bought(self.fleet, self.offers, mix)
        good = planned_goodput(fleet, document, self.prices) if self.failures else None
        return throughput_of(document, good).tokens_per_s

    def _check_growth(self, new: set[int]) -> None:
        """Widen the growth bound if a mix was simulated faster than a larger one that contains it."""
        known = self._whole()
        for index in new & set(known):
            for other in known:
                if (index in self._fine) != (other in self._fine):
                    continue
                for small, large in ((index, other), (other, index)):
                    inside = bool((self.counts[small] <= self.counts[large]).all())
                    if inside and self.rate[small] > self.rate[large] > 0:
                        self.breach = max(self.breach, float(self.rate[small] / self.rate[large] - 1))

    def _front(self, waiting: int) -> Front:
        simulated = [self._simulated(index) for index in sorted(self.answers)]
        left = len(self.mixes) - len(simulated) - waiting
        return Front(front_of(simulated), simulated, len(self.mixes), left, self.breach, waiting)

    def _simulated(self, index: int) -> Simulated:
        outcomes, mix = self.answers[index], self.mixes[index]
        documents = tuple(one.document for one in outcomes if one.document is not None)
        whole = Simulated(
            mix,
            mix_name(self.offers, mix),
            float(self.cost[index]),
            float(self.rate[index]),
            float(self.bound[index]),
            documents,
            cut_short=any(one.cut_short for one in outcomes),
            fine=not self._most_fine or index in self._fine,
        )
        reasons = [one.reason for one in outcomes if one.document is None]
        return replace(whole, reason=reasons[0]) if reasons else whole


def _bisecting(turn: int) -> float:
    """0, 1/2, 1/4, 3/4, 1/8, ...: every turn halves the widest gap (van der Corput)."""
    place, half = 0.0, 0.5
    while turn:
        place += half * (turn & 1)
        turn, half = turn >> 1, half / 2
    return place
