"""Simulation of op graphs: engines that compute start and end times, and analyses of timelines."""

from tangram_sim.sim.contention import play, saturated_links
from tangram_sim.sim.critical import critical_path
from tangram_sim.sim.fast import path_totals
from tangram_sim.sim.memory import memory_timeline, peak_memory
from tangram_sim.sim.perfetto import trace_events, trace_json

__all__ = [
    "critical_path",
    "memory_timeline",
    "path_totals",
    "peak_memory",
    "play",
    "saturated_links",
    "trace_events",
    "trace_json",
]
