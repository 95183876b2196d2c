"""Availability histories generated from rates and a seed, and statistics of a history."""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tangram_sim.availability import Availability, NodeEvent
from tangram_sim.reliability.failures import FailureModel
from tangram_sim.units import HOUR_S


@dataclass(frozen=True, slots=True)
class SpotRates:
    """Rates at which nodes of one kind are lost and return. `burst`: mean of further nodes lost with one."""

    losses_per_node_hour: float
    return_s: float  # mean time until another node takes a lost one's place
    burst: float = 0.0
    leaf_losses_per_node_hour: float = 0.0  # at which a node's whole leaf goes with it
    leaf_nodes: int = 0  # of a kind that share a leaf, place by place; 0: all of a kind


def spot_rates(
    model: FailureModel, kind: str, return_s: float | None, burst: float, leaf_nodes: int
) -> SpotRates:
    """Loss and return rates of nodes of one kind, from failure classes; `return_s` None: mean repair time.

    A class that takes a leaf takes that of each node it strikes; one that takes all takes all of the kind.
    """
    taking = {
        takes: [class_ for class_ in model.classes if class_.takes == takes]
        for takes in ("node", "leaf", "all")
    }
    rate = {
        takes: sum(failure_class.rate_per_s({kind: 1}) for failure_class in each)
        for takes, each in taking.items()
    }
    every = [failure_class for each in taking.values() for failure_class in each]
    total = sum(rate.values())
    repair_s = (
        sum(failure_class.rate_per_s({kind: 1}) * failure_class.repair_s for failure_class in every) / total
        if total
        else 0.0
    )
    return SpotRates(
        rate["node"] * HOUR_S,
        repair_s if return_s is None else return_s,
        burst,
        (rate["leaf"] + rate["all"]) * HOUR_S,
        leaf_nodes if rate["leaf"] else 0,
    )


def generate(
    nodes: Mapping[str, int], rates: Mapping[str, SpotRates], until_s: float, seed: int
) -> Availability:
    """A random availability history: all nodes at time 0, then Poisson losses and returns after random waits.

    Waits are exponential; bursts are geometric, and within one kind and time. A node that comes takes the
    first free place. Node names are never reused. Times are whole seconds, so that equal seeds give equal
    bytes.
    """
    draw = np.random.default_rng(seed)
    events: list[NodeEvent] = []
    there: dict[str, list[str]] = {kind: [] for kind in sorted(nodes)}
    place_of: dict[str, int] = {}
    free = {kind: list(range(count)) for kind, count in nodes.items()}
    made = 0
    queue: list[tuple[float, int, str, str]] = []
    number = 0

    def come(time_s: float, kind: str) -> None:
        nonlocal made
        made += 1
        place_of[f"node{made}"] = heapq.heappop(free[kind])
        there[kind].append(f"node{made}")
        events.append(NodeEvent(time_s, "add", f"node{made}", kind))

    def next_loss(time_s: float, kind: str) -> None:
        """Queue a kind's next loss; losses are memoryless, so the time is redrawn at every change."""
        nonlocal number
        each = rates[kind].losses_per_node_hour + rates[kind].leaf_losses_per_node_hour
        rate = each * len(there[kind]) / HOUR_S
        if rate > 0:
            number += 1
            current[kind] = number
            heapq.heappush(queue, (time_s + float(draw.exponential(1 / rate)), number, "loss", kind))

    current: dict[str, int] = {}
    for kind in there:
        for _ in range(nodes[kind]):
            come(0.0, kind)
        next_loss(0.0, kind)
    while queue:
        time_s, ticket, what, kind = heapq.heappop(queue)
        at = float(round(time_s))
        if at >= until_s:
            break
        if what == "loss":
            if current[kind] != ticket or not there[kind]:
                continue
            for gone in _gone(there[kind], place_of, rates[kind], draw):
                there[kind].remove(gone)
                heapq.heappush(free[kind], place_of.pop(gone))
                events.append(NodeEvent(at, "remove", gone, kind))
                if rates[kind].return_s > 0:
                    number += 1
                    wait = max(1.0, float(draw.exponential(rates[kind].return_s)))
                    heapq.heappush(queue, (at + wait, number, "return", kind))
        else:
            come(at, kind)
        next_loss(at, kind)
    return Availability(tuple(events), until_s, "generated")


def _gone(
    there: list[str], place_of: Mapping[str, int], rates: SpotRates, draw: np.random.Generator
) -> Iterator[str]:
    """Nodes that go in one loss, drawn one by one: a node and its burst, or all nodes of its leaf."""
    both = rates.losses_per_node_hour + rates.leaf_losses_per_node_hour
    if rates.leaf_losses_per_node_hour and draw.random() * both < rates.leaf_losses_per_node_hour:
        first = place_of[there[int(draw.integers(len(there)))]]
        size = rates.leaf_nodes
        yield from [node for node in there if not size or place_of[node] // size == first // size]
        return
    count = 1 + (int(draw.geometric(1 / (1 + rates.burst))) - 1 if rates.burst > 0 else 0)
    left = list(there)
    for _ in range(min(count, len(left))):
        yield left.pop(int(draw.integers(len(left))))


def trace_text(history: Availability) -> str:
    """The text of a trace file with this history."""
    kinds = any(history.kind_of.values())
    lines = ["time_s,event,node,kind" if kinds else "time_s,event,node"]
    for event in history.events:
        cells = [f"{event.time_s:.15g}", event.event, event.node]
        lines.append(",".join([*cells, event.kind] if kinds else cells))
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Description:
    """Statistics of an availability history."""

    duration_s: float
    events: int
    added: int
    lost: int
    mean_nodes: float
    fewest_nodes: int  # after the first time
    most_nodes: int
    losses_per_node_hour: float
    changes_per_hour: float
    mean_gap_s: float  # between changes
    loss_times: int
    largest_loss: int  # nodes that went at one time
    losses_in_bursts: float  # share of losses that came with another at the same time
    kinds: Mapping[str, int]  # nodes added, by kind


def describe(history: Availability) -> Description:
    """Counts, rates and bursts of an availability history."""
    changes = [
        change
        for change in history.changes
        if change.time_s < history.until_s and (change.added or change.removed)
    ]
    counts = [count for time_s, count in history.counts() if time_s < history.until_s]
    node_s = history.node_seconds()
    sizes = [len(change.removed) for change in changes if change.removed]
    lost = sum(sizes)
    first = changes[0].time_s if changes else 0.0
    gaps = len(changes) - 1
    return Description(
        duration_s=history.until_s,
        events=len(history.events),
        added=sum(len(change.added) for change in changes),
        lost=lost,
        mean_nodes=node_s / history.until_s,
        fewest_nodes=min(counts, default=0),
        most_nodes=max(counts, default=0),
        losses_per_node_hour=lost / node_s * HOUR_S if node_s else 0.0,
        changes_per_hour=gaps / history.until_s * HOUR_S,
        mean_gap_s=(changes[-1].time_s - first) / gaps if gaps > 0 else 0.0,
        loss_times=len(sizes),
        largest_loss=max(sizes, default=0),
        losses_in_bursts=sum(size for size in sizes if size > 1) / lost if lost else 0.0,
        kinds=dict(Counter(event.kind for event in history.events if event.event == "add")),
    )
