"""Histories made from rates and a seed, and what a history is like in numbers."""

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tangram_sim.availability import SECONDS_PER_HOUR, Availability, NodeEvent


@dataclass(frozen=True, slots=True)
class SpotRates:
    """How nodes of one kind come and go. `burst`: further nodes that go with a lost one, in the mean."""

    losses_per_node_hour: float
    return_s: float  # mean time until another node takes a lost one's place
    burst: float = 0.0


def generate(
    nodes: Mapping[str, int], rates: Mapping[str, SpotRates], until_s: float, seed: int
) -> Availability:
    """A history: all nodes at 0, then losses as Poisson processes and returns after random waits.

    Waits are exponential, bursts geometric, of the same kind and time. Node names are never used again. Times
    are whole seconds, so that equal seeds give equal bytes.
    """
    draw = np.random.default_rng(seed)
    events: list[NodeEvent] = []
    there: dict[str, list[str]] = {kind: [] for kind in sorted(nodes)}
    made = 0
    queue: list[tuple[float, int, str, str]] = []
    number = 0

    def come(time_s: float, kind: str) -> None:
        nonlocal made
        made += 1
        there[kind].append(f"node{made}")
        events.append(NodeEvent(time_s, "add", f"node{made}", kind))

    def next_loss(time_s: float, kind: str) -> None:
        """The next loss among the nodes of a kind; memoryless, so drawn anew at every change."""
        nonlocal number
        rate = rates[kind].losses_per_node_hour * len(there[kind]) / SECONDS_PER_HOUR
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
            burst = rates[kind].burst
            count = 1 + (int(draw.geometric(1 / (1 + burst))) - 1 if burst > 0 else 0)
            for _ in range(min(count, len(there[kind]))):
                gone = there[kind].pop(int(draw.integers(len(there[kind]))))
                events.append(NodeEvent(at, "remove", gone, kind))
                if rates[kind].return_s > 0:
                    number += 1
                    wait = max(1.0, float(draw.exponential(rates[kind].return_s)))
                    heapq.heappush(queue, (at + wait, number, "return", kind))
        else:
            come(at, kind)
        next_loss(at, kind)
    return Availability(tuple(events), until_s, "generated")


def trace_text(history: Availability) -> str:
    """A history as the text of a trace file."""
    kinds = any(history.kind_of.values())
    lines = ["time_s,event,node,kind" if kinds else "time_s,event,node"]
    for event in history.events:
        cells = [f"{event.time_s:g}", event.event, event.node]
        lines.append(",".join([*cells, event.kind] if kinds else cells))
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Description:
    """What a history is like."""

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
    """Counts, rates and bursts of a history."""
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
        losses_per_node_hour=lost / node_s * SECONDS_PER_HOUR if node_s else 0.0,
        changes_per_hour=gaps / history.until_s * SECONDS_PER_HOUR,
        mean_gap_s=(changes[-1].time_s - first) / gaps if gaps > 0 else 0.0,
        loss_times=len(sizes),
        largest_loss=max(sizes, default=0),
        losses_in_bursts=sum(size for size in sizes if size > 1) / lost if lost else 0.0,
        kinds=dict(Counter(event.kind for event in history.events if event.event == "add")),
    )
