"""Ops, resources, time: engines that play an op graph, and what a played timeline tells."""

from tangram_sim.sim.contention import play, saturated_links
from tangram_sim.sim.critical import CriticalPath, critical_path
from tangram_sim.sim.fast import makespan, makespans, path_totals, play_many
from tangram_sim.sim.memory import DeviceMemory, memory_timeline, peak_memory
from tangram_sim.sim.perfetto import trace_events, trace_json
from tangram_sim.sim.timeline import Timeline

__all__ = [
    "CriticalPath",
    "DeviceMemory",
    "Timeline",
    "critical_path",
    "makespan",
    "makespans",
    "memory_timeline",
    "path_totals",
    "peak_memory",
    "play",
    "play_many",
    "saturated_links",
    "trace_events",
    "trace_json",
]
