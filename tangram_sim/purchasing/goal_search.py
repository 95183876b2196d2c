"""Search for the mix that reaches a goal best: the cheapest in time, or the fastest for the money.

Mixes are planned in the order of their expected cost, from the work bound and the share of it that plans of
the same kinds reached. Three rules leave mixes unplanned. A mix whose bound misses the goal cannot reach it.
A mix that costs a quarter more than the best known even at its bound is not listed as a runner-up. And among
mixes of the same kinds, more nodes than reach the goal are assumed to cost more, and fewer than miss it to
miss it too: this last rule is not proven, and a bound on what it may hide is reported (`least_usd`). Where a
plan leaves nodes of its mix idle, the mix without them is always planned.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangram_sim.purchasing.billing import bill, idle_w
from tangram_sim.purchasing.catalogue import Offer, bought
from tangram_sim.purchasing.goal import Goal
from tangram_sim.purchasing.search import MixSearch
from tangram_sim.studies.training_run import ranks_of
from tangram_sim.units import HOUR_S

_SHARE = 0.85  # of its bound that a plan is taken to reach before one of its kinds is known
_LEVEL = 0.02  # of the score, as a logarithm: mixes nearer than that are equals
_LOWER = 0.99  # times a rent: what is no lower than that is no reason to look at a larger mix
_NEAR = 1.25  # times the best known: dearer mixes are no runner-ups


@dataclass(frozen=True, slots=True)
class Terminals:
    """Progress of the search: numbers of mixes planned, ruled out, and not reached."""

    planned: int
    left_out: int
    waiting: int
    least_usd: float  # no mix that was not planned can cost less; inf: all were planned or cannot reach


class GoalSearch(MixSearch):
    """A MixSearch for the best mix for one goal instead of the whole front."""

    def __init__(
        self,
        *args: Any,
        goal: Goal,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.goal, members = goal, self.fleet.members
        prices, terms = self.billing.prices, self.billing.terms
        standing = bill(members, [0] * len(members), prices, terms, idle_w(members, prices))
        electricity = standing.usd_per_hour_of("power", bought=False)
        self.base = standing.usd_per_hour - electricity  # what it costs in any case
        self.fleet_electricity += electricity
        hosting = self.counts @ np.array([offer.hosting_usd_per_hour for offer in self.offers])
        self.paid: NDArray[np.float64] = hosting + self.base  # an hour, beside outlay and new rents
        self.outlay: NDArray[np.float64] = self.counts @ np.array([offer.outlay_usd for offer in self.offers])
        self._place = {mix: place for place, mix in enumerate(self.mixes)}
        self.kinds = [tuple(bool(count) for count in mix) for mix in self.mixes]

    def usd(self, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """USD of the run of every mix at these throughputs, amortised capital and power included.

        The least that it can cost where a mix is not planned and the throughput is its bound.
        """
        in_any_case = self.base + self.fleet_electricity
        return (self.usd_per_hour(self.days(rate)) + in_any_case) * self._hours(rate)

    def spent_usd(self, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """USD spent by every mix until the goal at these throughputs, as `goal.spent_usd` of a row."""
        return self.outlay + (self.rents(self.days(rate)) + self.paid) * self._hours(rate)

    def _hours(self, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """Hours of training of every mix at these throughputs; very large where a throughput is 0."""
        return np.asarray(self.goal.tokens / np.maximum(rate, 1e-30) / HOUR_S)

    def _reaching(self, rate: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which mixes reach the goal at these throughputs."""
        fast = (rate > 0) & (rate >= self.goal.least_tokens_per_s * (1 - 1e-12))
        return np.asarray(fast & (self.spent_usd(rate) <= self.goal.budget_usd * (1 + 1e-12)))

    def _score(self, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """Objective to minimise, by mix: hours if the fastest run is wanted, else USD of the run."""
        return self._hours(rate) if self.goal.wants_speed else self.usd(rate)

    def _open(self) -> NDArray[np.int64]:
        """Indices of unplanned mixes that may still be recommended, the most promising first."""
        able = (self.rate < 0) & self._reaching(self.bound)
        done = np.flatnonzero(self.rate > 0)
        reached = self._reaching(self.rate) & (self.rate > 0) & self.allowed
        if reached.any():
            best = float(self._score(self.rate)[reached].min())
            least = self._hours(self.bound) if self.goal.wants_speed else self.usd(self.bound)
            able &= least <= best * _NEAR
        expected = self.bound * self._shares(done)
        leader = -1
        if reached.any():
            leader = int(np.where(reached, self._score(self.rate), math.inf).argmin())
        for index in np.flatnonzero(self.rate >= 0):
            settled = self._settled(int(index), bool(reached[index]), expected)
            if leader >= 0 and self.kinds[index] == self.kinds[leader] and not self.goal.wants_speed:
                # Of the best kinds also the cheapest mix that is in time at the slow end of its interval.
                settled &= ~self._surely_in_time(int(index), expected)
            able &= ~settled
        for mix in {self.trimmed(int(index)) for index in done}:
            able[self._place[mix]] = self.rate[self._place[mix]] < 0
        waiting = np.flatnonzero(able)
        late = ~self._reaching(expected)
        score = np.round(
            np.log(np.maximum(self._score(expected), 1e-30)) / _LEVEL
        )  # among equals the smaller first
        order = np.lexsort((waiting, self.cost[waiting], score[waiting], late[waiting]))
        return waiting[order]

    def trimmed(self, index: int) -> tuple[int, ...]:
        """The planned mix `index` without the nodes that none of its plans uses."""
        mix, standing = self.mixes[index], len(self.fleet.members)
        fleet = bought(self.fleet, self.offers, mix)
        documents = [outcome.document for outcome in self.answers[index]]
        ranks = [rank for document in documents if document is not None for rank in ranks_of(document)]
        used = iter(nodes for _, nodes in fleet.used(ranks)[standing:])
        return tuple(next(used) if count else 0 for count in mix)

    def _surely_in_time(self, index: int, expected: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Mixes expected to finish in time at the slow end of the interval, if `index` does not."""
        document, least = self.answers[index][0].document, self.goal.least_tokens_per_s
        if document is None or not document.step_s_high:
            return np.zeros(len(self.mixes), dtype=bool)
        slow = document.step_s / document.step_s_high
        return (expected * slow >= least) & (float(self.rate[index]) * slow < least)

    def _settled(self, index: int, reached: bool, expected: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Mixes of the same kinds as planned mix `index` that need no plan: larger ones, or smaller ones.

        Larger mixes still need one if their nodes rent for less in a run as short as `expected` for them.
        """
        alike = np.array([kinds == self.kinds[index] for kinds in self.kinds])
        more = (self.counts >= self.counts[index]).all(axis=1)
        fewer = (self.counts <= self.counts[index]).all(axis=1)
        rate = float(self.rate[index])
        slow = rate < self.goal.least_tokens_per_s * (1 - 1e-12) or rate <= 0
        if slow or (reached and self.goal.wants_speed):
            more, as_it_is = fewer, np.zeros(len(self.mixes))
        else:
            as_it_is = self.rents(self.days(self.rate[index]))
        return np.asarray(alike & more & (self.rents(self.days(expected)) >= _LOWER * as_it_is))

    def _shares(self, done: NDArray[np.int64]) -> NDArray[np.float64]:
        """For every mix, the share of its bound that its plan is expected to reach."""
        if not len(done):
            return np.full(len(self.mixes), _SHARE)
        shares = self.rate[done] / self.bound[done]
        known: dict[tuple[bool, ...], tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        for kinds in {self.kinds[index] for index in done}:
            at = np.array([self.kinds[index] == kinds for index in done])
            known[kinds] = done[at], shares[at]
        found = np.full(len(self.mixes), float(np.median(shares)))
        sizes = self.counts.sum(axis=1)
        for index, kinds in enumerate(self.kinds):
            if kinds in known:
                nearest, values = known[kinds]
                found[index] = values[int(np.argmin(np.abs(sizes[nearest] - sizes[index])))]
        return found

    def may_reach(self) -> bool:
        """Whether the bound of any mix reaches the goal."""
        return bool(self._reaching(self.bound).any())

    def terminals(self) -> Terminals:
        """Progress of the search, and a lower bound on the cost of the unplanned mixes."""
        unplanned = (self.rate < 0) & self._reaching(self.bound)
        least = float(self.usd(self.bound)[unplanned].min()) if unplanned.any() else math.inf
        waiting = len(self._open())
        return Terminals(len(self.answers), len(self.mixes) - len(self.answers) - waiting, waiting, least)


def cloud_mixes(offers: Sequence[Offer]) -> list[tuple[int, ...]]:
    """Mixes of one offer each, in every number of nodes: machines of two clouds do not work together."""
    found = [(0,) * len(offers)]
    for place, offer in enumerate(offers):
        for count in range(1, offer.most + 1):
            found.append(tuple(count if at == place else 0 for at in range(len(offers))))
    return found
