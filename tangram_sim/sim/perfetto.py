"""A timeline as a Chrome trace, for https://ui.perfetto.dev or chrome://tracing.

One process per device or stage, one track per resource, one counter per device for its memory. The format is
Google's "Trace Event Format": complete events ("X"), counters ("C"), names ("M"), times in microseconds.
"""

import json
from typing import Any

import numpy as np

from tangram_sim.sim.memory import memory_timeline
from tangram_sim.sim.timeline import Timeline

Event = dict[str, Any]

# Of resources that are not named "process/track".
_PROCESS = "resources"


def trace_events(timeline: Timeline) -> list[Event]:
    """The trace's events: names first, then ops in index order, then memory by device.

    A resource named "stage 0/compute" is track "compute" of process "stage 0"; a device of the same name as a
    process puts its counter there. Times are whole nanoseconds, so that tracks do not overlap by rounding.
    """
    graph = timeline.graph
    pids: dict[str, int] = {}
    tracks = []
    for resource in graph.resources:
        process, slash, track = resource.partition("/")
        if not slash:
            process, track = _PROCESS, resource
        tracks.append((pids.setdefault(process, len(pids) + 1), track))
    accounts = [pids.setdefault(device, len(pids) + 1) for device in graph.devices]

    events: list[Event] = []
    for process, pid in pids.items():
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}})
    for tid, (pid, track) in enumerate(tracks, start=1):
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": track}})
        events.append(
            {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
        )

    starts, ends = _nanoseconds(timeline.start_s), _nanoseconds(timeline.end_s)
    for index, (start, end, resource) in enumerate(zip(starts, ends, graph.resource.tolist(), strict=True)):
        event = {"ph": "X", "name": graph.label_of(index), "cat": graph.kinds[graph.kind[index]]}
        event |= {
            "pid": tracks[resource][0],
            "tid": resource + 1,
            "ts": start / 1000,
            "dur": (end - start) / 1000,
        }
        events.append(event | {"args": _details(timeline, index)})
    for pid, memory in zip(accounts, memory_timeline(timeline), strict=True):
        for time, level in zip(_nanoseconds(memory.times_s), memory.bytes.tolist(), strict=True):
            name = f"memory {memory.device}"
            events.append({"ph": "C", "name": name, "pid": pid, "ts": time / 1000, "args": {"bytes": level}})
    return events


def trace_json(timeline: Timeline) -> str:
    """The trace as JSON text: the same bytes for the same timeline."""
    trace = {"displayTimeUnit": "ms", "traceEvents": trace_events(timeline)}
    return json.dumps(trace, separators=(",", ":"), allow_nan=False) + "\n"


def _nanoseconds(seconds: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[int]:
    return [int(value) for value in np.rint(seconds * 1e9).tolist()]


def _details(timeline: Timeline, index: int) -> dict[str, Any]:
    op = timeline.graph.op(index)
    details: dict[str, Any] = {"op": index, "uncontended_s": op.duration_s}
    if op.factor:
        details["factor"] = op.factor
    if op.bytes:
        details["bytes"] = op.bytes
    if op.links:
        details["links"] = list(op.links)
    return details
