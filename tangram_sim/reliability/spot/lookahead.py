"""Look-ahead policy: the layout is chosen for forecast losses (Parcae, Duan et al., arXiv:2403.14097).

A dynamic program: its stages are intervals, its states are layouts with the remaining seconds of their
transition, its value is samples. The number of nodes is forecast, not which nodes are lost, so a running
layout is hit with the probability that not all its replicas are left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tangram_sim.availability import Availability
from tangram_sim.reliability.spot.engine import Moment, Reaction
from tangram_sim.reliability.spot.liveput import replicas_left
from tangram_sim.reliability.spot.policy_common import Living, hits, idle_nodes
from tangram_sim.reliability.spot.speeds import Fleet, Option
from tangram_sim.reliability.spot.transitions import seconds_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of the forecast: its length, its number of nodes, and nodes lost and gained at its start.

    `factors`: slowdown factors of its nodes, fastest first; empty: all run as priced.
    """

    seconds: float
    nodes: int
    lost: int
    came: int
    factors: tuple[float, ...] = ()

    def pace(self, size: int) -> float:
        """Slowdown factor of an option on `size` nodes, which are the fastest of the interval."""
        return self.factors[min(size, len(self.factors)) - 1] if self.factors and size else 1.0


class AvailabilityForecast(Protocol):
    """A forecast of the number of available nodes."""

    def ahead(self, moment: Moment, intervals: int) -> Sequence[Interval]:
        """Forecast intervals, the first of which starts now."""


@dataclass
class RecentForecast:
    """Forecast in intervals of `interval_s`: losses and arrivals continue at their mean rates so far."""

    interval_s: float = 60.0
    _lost: int = 0
    _came: int = 0
    _most: int = 0

    def ahead(self, moment: Moment, intervals: int) -> Sequence[Interval]:
        """Node counts change at the mean rates so far, within 0 and the most seen; slow nodes stay slow."""
        now = sum(count for _, count in moment.fleet)
        factors = _all_factors(moment)
        if moment.time_s > 0:
            self._lost += moment.removed
            self._came += moment.added
        self._most = max(self._most, now)
        found = [Interval(self.interval_s, now, moment.removed, moment.added, factors)]
        lost, came, before = 0.0, 0.0, now
        for _ in range(1, intervals):
            lost += self._lost / max(moment.time_s, self.interval_s) * self.interval_s
            came += self._came / max(moment.time_s, self.interval_s) * self.interval_s
            nodes = min(self._most, max(0, round(now - lost + came)))
            gone = max(0, before - nodes)
            known = (1.0,) * (nodes - now) + factors[max(0, now - nodes) :] if factors else ()
            found.append(Interval(self.interval_s, nodes, gone, max(0, nodes - before), known))
            before = nodes
        return found


@dataclass
class PerfectForecast:
    """Perfect forecast: the history itself, change by change; an upper bound on what forecasting is worth."""

    availability: Availability
    _known: list[tuple[float, Interval]] = field(default_factory=list)  # begin, and what it is like

    def ahead(self, moment: Moment, intervals: int) -> Sequence[Interval]:
        """The true intervals between changes; nodes that wait to join are counted from the next change on."""
        del intervals
        self._known = self._known or _intervals(self.availability)
        nodes = sum(count for _, count in moment.fleet)
        now = Interval(0.0, nodes, moment.removed, moment.added, _all_factors(moment))
        later = [entry for entry in self._known if entry[0] > moment.time_s]
        begins = [(moment.time_s, now), *later]
        ends = [entry[0] for entry in later] + [self.availability.until_s]
        return [
            replace(interval, seconds=end - time_s)
            for (time_s, interval), end in zip(begins, ends, strict=True)
            if end > time_s
        ]


def _all_factors(moment: Moment) -> tuple[float, ...]:
    """Slowdown factors of all nodes of a moment, of any kind, fastest first."""
    return tuple(sorted(factor for _, factors in moment.factors for factor in factors))


def _intervals(availability: Availability) -> list[tuple[float, Interval]]:
    """(time, interval from then on) for every change of a history; the intervals' seconds are left at 0."""
    there: set[str] = set()
    slow: dict[str, float] = {}
    found = []
    for change in availability.changes:
        there = (there | set(change.added)) - set(change.removed)
        slow = {node: factor for node, factor in slow.items() if node not in change.removed}
        slow |= dict(change.paced)
        paces = sorted(slow.get(node, 1.0) for node in there)
        factors = tuple(paces) if any(pace != 1.0 for pace in paces) else ()
        lost, came = len(change.removed), len(change.added)
        found.append((change.time_s, Interval(0.0, len(there), lost, came, factors)))
    return found


def _joined(ahead: Sequence[Interval]) -> list[Interval]:
    """Merge intervals at whose start nothing changes: changing there gains nothing over changing before."""
    found: list[Interval] = []
    for interval in ahead:
        if found and not interval.lost and not interval.came and interval.factors == found[-1].factors:
            found[-1] = replace(found[-1], seconds=found[-1].seconds + interval.seconds)
        else:
            found.append(interval)
    return found


@dataclass
class Hold(Living):
    """Policy that chooses the option with the most samples over the forecast; nodes are of one kind."""

    forecast: AvailabilityForecast
    intervals: int = 12
    name: str = "hold"
    checkpoints: bool = True
    _idle: Fleet = ()
    _asked: int = -1  # the most nodes whose options are known
    _options: list[Option] = field(default_factory=list)
    _costs: dict[bool, tuple[Floats, Floats]] = field(default_factory=dict)

    def react(self, moment: Moment) -> Reaction:
        """The first decision of the sequence of options with the most expected samples."""
        ahead = self.forecast.ahead(moment, self.intervals)
        self._learn(moment.fleet, max(stretch.nodes for stretch in ahead))
        old = moment.running
        now = next((i for i, option in enumerate(self._options) if option == old), -1)
        hit = old is not None and hits(moment, self._idle)
        chosen = self._first(ahead, now, moment.pending_s, hit)
        if chosen < 0:
            return self.stop(moment) if hit else Reaction(None)
        new = self._options[chosen]
        self._idle = idle_nodes(moment.fleet, new)
        if new == old and not hit:
            return Reaction(old)
        return self.from_survivors(moment, old, new, hit)

    def _learn(self, fleet: Fleet, nodes: int) -> None:
        """Collect all options on up to `nodes` nodes, and the seconds that changing to each takes."""
        if nodes <= self._asked:
            return
        self._asked = nodes
        kind = fleet[0][0] if fleet else ""
        known = set(self._options)
        more = [option for option in self.speeds.all_on(((kind, nodes),)) if option not in known]
        if not more:
            return
        self._options += more
        for joined in (False, True):
            migrate = [self.transitions.migrate(option, option, joined=joined) for option in self._options]
            restart = [
                self.transitions.restart(option, option, joined=joined, pending=False)
                for option in self._options
            ]
            self._costs[joined] = (
                np.array([seconds_of(stalls) for stalls in migrate]),
                np.array([seconds_of(stalls) for stalls in restart]),
            )

    def _first(self, ahead: Sequence[Interval], now: int, pending_s: float, hit: bool) -> int:
        """Index of the option to run now, by dynamic programming over the intervals; -1: none."""
        count = len(self._options)
        if not count:
            return -1
        priced = np.array([option.samples_per_s for option in self._options])
        sizes = np.array([option.size for option in self._options])
        single = np.array([not option.survives_one for option in self._options])
        value = np.full(count, -np.inf)
        carry = np.zeros(count)
        first = np.full(count, -1)
        stay, every = np.arange(count), np.ones(count, dtype=np.bool_)
        before = ahead[0].nodes + ahead[0].lost - ahead[0].came
        for number, stretch in enumerate(_joined(ahead)):
            migrate, restart = self._costs[stretch.came > 0]
            rates = priced / self._paces(stretch)
            feasible = sizes <= stretch.nodes
            if number == 0:
                base = restart if now < 0 or (hit and not self._options[now].survives_one) else migrate
                time = base.copy()
                if now >= 0 and not hit:
                    time[now] = pending_s
                gained = rates * np.maximum(0.0, stretch.seconds - time)
                value = np.where(feasible, gained, -np.inf)
                carry = np.maximum(0.0, time - stretch.seconds)
                first = np.arange(count)
            else:
                time, classes = carry, [(every, migrate)]
                if stretch.lost > 0:  # the only copy may be among what went
                    own = np.where(single, restart, migrate)
                    time = carry + self._hit(before, stretch.lost) * own
                    classes = [(single, restart), (~single, migrate)] if single.any() else classes
                reached, source = value + rates * np.maximum(0.0, stretch.seconds - time), stay
                for sources, cost in classes:
                    # From all options alike: the best one to come from, for itself the second best.
                    ranked = np.argsort(np.where(sources, -value, np.inf), kind="stable")[:2]
                    origin = np.where(stay == ranked[0], ranked[-1], ranked[0])
                    total = np.where(
                        sources[origin] & (origin != stay),
                        value[origin] + rates * np.maximum(0.0, stretch.seconds - cost),
                        -np.inf,
                    )
                    better = total > reached
                    reached, time = np.where(better, total, reached), np.where(better, cost, time)
                    source = np.where(better, origin, source)
                carry = np.maximum(0.0, time - stretch.seconds)
                first = first[source]
                value = np.where(feasible, reached, -np.inf)
                if not np.isfinite(value).any():  # nothing runs for a while: what was gained stays
                    break
            before = stretch.nodes
            if number == 0 and not feasible.any():
                return -1
        best = (
            int(np.argmax(value))
            if np.isfinite(value).any()
            else int(np.argmax(priced / self._paces(ahead[0]) * (sizes <= ahead[0].nodes)))
        )
        return int(first[best])

    def _paces(self, stretch: Interval) -> Floats:
        """Slowdown factor of each option on the nodes of an interval."""
        if not stretch.factors:
            return np.ones(len(self._options))
        return np.array([stretch.pace(option.size) for option in self._options])

    def _hit(self, nodes: int, lost: int) -> Floats:
        """Probability that losing `lost` of `nodes` hits each option; 1 where the option does not fit."""
        if lost <= 0:
            return np.zeros(len(self._options))
        return np.array(
            [
                1.0 - replicas_left(nodes, option.pipelines, option.stages, lost)[-1]
                if option.size <= nodes and lost <= nodes
                else 1.0
                for option in self._options
            ]
        )
