"""Memory over time on each device, from the changes that simulated ops cause.

The rule for equal times: what ends at an instant frees before what starts at that instant allocates, as the
op before on a stream frees before the next allocates. An op of zero duration still allocates before it frees,
and among themselves ends, like starts, go in program order.
"""

from dataclasses import dataclass

import numpy as np

from tangram_sim.opgraph import FloatArray, IntArray
from tangram_sim.sim.timeline import Timeline


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """Memory in use on one device: `bytes[k]` from `times_s[k]` on; times may repeat."""

    device: str
    times_s: FloatArray
    bytes: FloatArray


def memory_timeline(timeline: Timeline) -> tuple[DeviceMemory, ...]:
    """Memory of every device over time; the first point of each is its initial memory at time 0."""
    graph = timeline.graph
    time, change, account = _changes(timeline)
    memories = []
    for index, name in enumerate(graph.devices):
        mine = account == index
        level = np.concatenate(([graph.memory_initial_bytes[index]], change[mine]))
        memories.append(DeviceMemory(name, np.concatenate(([0.0], time[mine])), np.cumsum(level)))
    return tuple(memories)


def peak_memory(timeline: Timeline) -> FloatArray:
    """Peak bytes in use on each device, [devices]."""
    return np.array([memory.bytes.max() for memory in memory_timeline(timeline)], np.float64)


def _changes(timeline: Timeline) -> tuple[FloatArray, FloatArray, IntArray]:
    """(times, bytes, devices) of every change of memory, in the order of the rule for equal times."""
    graph, start, end = timeline.graph, timeline.start_s, timeline.end_s
    n = len(graph)
    time = np.concatenate((start, end))
    change = np.concatenate((graph.memory_start_bytes, graph.memory_end_bytes))
    account = np.concatenate((graph.device, graph.device))
    op = np.concatenate((np.arange(n), np.arange(n)))
    is_end = np.repeat((False, True), n)
    # An op of zero duration ends in the phase of the starts, right after its own.
    ends_something_older = is_end & np.concatenate((np.zeros(n, bool), end > start))
    order = np.lexsort((is_end, op, ~ends_something_older, time))
    order = order[(change[order] != 0) & (account[order] >= 0)]
    return time[order], change[order], account[order]
