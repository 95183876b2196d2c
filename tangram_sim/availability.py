"""Availability of nodes: which nodes are there when, what each costs, and events merged by time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

from tangram_sim.units import HOUR_S

EVENTS = ("add", "remove", "notice", "price", "slow", "recover")
PACES = ("slow", "recover")


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One event of a trace. `value`: USD/h for `price`, times slower for `slow`, seconds for `notice`."""

    time_s: float
    event: str
    node: str = ""
    kind: str = ""
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetChange:
    """All changes of one time: nodes added, nodes removed, and slowdown factors from then on (1: full
    speed)."""

    time_s: float
    added: tuple[str, ...]
    removed: tuple[str, ...]
    paced: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Availability:
    """Events in order of time, and when the history ends; nodes named once are there until removed."""

    events: tuple[NodeEvent, ...]
    until_s: float
    name: str = ""

    @cached_property
    def kind_of(self) -> Mapping[str, str]:
        """The kind of every node that ever comes; empty text where the trace does not say."""
        return {event.node: event.kind for event in self.events if event.event == "add"}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """All kinds, in order."""
        return tuple(sorted(set(self.kind_of.values())))

    @cached_property
    def changes(self) -> tuple[FleetChange, ...]:
        """Changes to nodes, merged by time; a node added and removed at the same time is left out."""
        found: list[FleetChange] = []
        for time_s, events in _by_time(self.events):
            added = [event.node for event in events if event.event == "add"]
            removed = [event.node for event in events if event.event == "remove"]
            passing = set(added) & set(removed)
            come = tuple(node for node in added if node not in passing)
            gone = tuple(node for node in removed if node not in passing)
            paced = {e.node: e.value if e.event == "slow" else 1.0 for e in events if e.event in PACES}
            left = tuple((node, factor) for node, factor in paced.items() if node not in removed)
            if come or gone or left:
                found.append(FleetChange(time_s, come, gone, left))
        return tuple(found)

    @cached_property
    def losses(self) -> int:
        """Number of node removals."""
        return sum(len(change.removed) for change in self.changes)

    def counts(self) -> list[tuple[float, int]]:
        """(time, nodes from then on) at every coming and going."""
        found, count = [], 0
        for change in self.changes:
            if not (change.added or change.removed):
                continue
            count += len(change.added) - len(change.removed)
            found.append((change.time_s, count))
        return found

    def node_seconds(self) -> float:
        """Node-seconds of availability up to the end of the history."""
        total, count, before = 0.0, 0, 0.0
        for time_s, after in self.counts():
            at = min(time_s, self.until_s)
            total += count * (at - before)
            count, before = after, at
        return total + count * (self.until_s - before)

    def window(self, start_s: float, stop_s: float) -> "Availability":
        """The history between two times, counted from `start_s`; nodes already there are added at 0."""
        there: dict[str, NodeEvent] = {}
        prices: dict[str, NodeEvent] = {}
        slow: dict[str, NodeEvent] = {}
        inside: list[NodeEvent] = []
        for event in self.events:
            if event.time_s > start_s:
                if event.time_s < stop_s:
                    inside.append(_at(event, event.time_s - start_s))
            elif event.event == "add":
                there[event.node] = event
            elif event.event == "remove":
                there.pop(event.node)
                slow.pop(event.node, None)
            elif event.event in PACES:
                slow[event.node] = event
            elif event.event == "price":
                # A price of every kind takes the place of all before it.
                prices = {**(prices if event.kind else {}), event.kind: event}
        standing = [_at(event, 0.0) for event in (*prices.values(), *there.values(), *slow.values())]
        stop = min(stop_s, self.until_s)
        return Availability((*standing, *inside), max(0.0, stop - start_s), self.name)

    def of_kind(self, kind: str) -> "Availability":
        """The nodes of one kind alone, with their prices: others are not rented."""
        return Availability(
            tuple(
                event
                for event in self.events
                if event.kind == kind or (event.event == "price" and not event.kind)
            ),
            self.until_s,
            self.name,
        )

    def delayed(self, boot_s: float) -> "Availability":
        """This history with every node usable `boot_s` after it came; one gone before is never seen.

        What happens to a node that boots is seen when it has booted.
        """
        if boot_s <= 0:
            return self
        came: dict[str, float] = {}
        short: set[tuple[str, float]] = set()
        lives: list[tuple[NodeEvent, float]] = []  # with the time at which the event's node came
        for event in self.events:
            if event.event == "add":
                came[event.node] = event.time_s
            start_s = came.get(event.node, -inf)
            lives.append((event, start_s))
            if event.event == "remove" and event.time_s <= start_s + boot_s:
                short.add((event.node, start_s))
        kept = [
            _at(event, max(event.time_s, start_s + boot_s))
            for event, start_s in lives
            if (event.node, start_s) not in short
        ]
        return Availability(tuple(sorted(kept, key=lambda event: event.time_s)), self.until_s, self.name)

    def usd(self, prices: Mapping[str, float]) -> float:
        """USD of all nodes while present, at the trace's prices or `prices` (USD per node-hour by kind).

        Nodes that no plan uses are paid, too.
        """
        now, count, total, before = dict(prices), Counter[str](), 0.0, 0.0
        for time_s, events in _by_time(self.events):
            at = min(time_s, self.until_s)
            total += _rate(count, now) * (at - before)
            before = at
            for event in events:
                if event.event == "price":
                    now |= dict.fromkeys([event.kind] if event.kind else self.kinds, event.value)
                elif event.event == "add":
                    count[event.kind] += 1
                elif event.event == "remove":
                    count[self.kind_of[event.node]] -= 1
        return (total + _rate(count, now) * (self.until_s - before)) / HOUR_S


def _rate(count: Mapping[str, int], prices: Mapping[str, float]) -> float:
    """USD per hour of a fleet."""
    return sum(number * prices.get(kind, 0.0) for kind, number in count.items())


def _at(event: NodeEvent, time_s: float) -> NodeEvent:
    return NodeEvent(time_s, event.event, event.node, event.kind, event.value)


def _by_time(events: Iterable[NodeEvent]) -> Iterator[tuple[float, list[NodeEvent]]]:
    """Events of one time together."""
    group: list[NodeEvent] = []
    for event in events:
        if group and event.time_s != group[0].time_s:
            yield group[0].time_s, group
            group = []
        group.append(event)
    if group:
        yield group[0].time_s, group
