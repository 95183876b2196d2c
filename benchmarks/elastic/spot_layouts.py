"""Replay of measured spot events with measured speeds by layout: fastest layout, free or with restarts."""

import re
from dataclasses import replace

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from tangram_sim.availability import Availability
from tangram_sim.reliability.spot.engine import replay
from tangram_sim.reliability.spot.policies import Free, Restart
from tangram_sim.reliability.spot.speeds import read_speeds
from tangram_sim.reliability.spot.tracefile import read_trace
from tangram_sim.reliability.spot.transitions import free_transitions, read_transitions

_SETTING = re.compile(
    r"(?P<model>\S+) batch \d+, p3 spot trace \w*?_(?P<start>\d+)_(?P<stop>\d+), "
    r"restart (?:profiled|(?P<restart>[\d.]+) s), mean (?P<mean>[\d.]+) nodes"
)
_ROUNDING = 0.0051  # of the mean number of nodes, printed with two decimals


def compute(figure: Figure, data: Data) -> Answer:
    """Samples trained in the window."""
    found = _SETTING.fullmatch(figure.setting)
    if found is None:
        raise RefusedError("the setting does not name model, window, restart and mean number of nodes")
    history = read_trace(data.path("traces/spot_p3_parcae.csv"))
    window = _window(history, float(found["start"]), float(found["stop"]), float(found["mean"]))
    speeds = read_speeds(data.path("policies/parcae_throughput.csv"), found["model"])
    if figure.metric.startswith("free"):
        return Answer(replay(window, Free(speeds), free_transitions()).samples)
    if not figure.metric.startswith("restart"):
        raise RefusedError(f"no policy is called {figure.metric!r}; known: free changes, restart")
    fixed = float(found["restart"]) if found["restart"] else None
    costs, _ = read_transitions(data.path("policies/parcae_migration_costs.csv"), found["model"], fixed)
    return Answer(replay(window, Restart(speeds, costs), costs).samples)


def _window(history: Availability, start: float, stop: float, mean: float) -> Availability:
    """The window of the trace, in hours or tenths of hours: whichever has the mean that the row states."""
    for scale in (3600.0, 360.0):
        window = history.window(start * scale, stop * scale)
        if window.until_s > 0 and abs(window.node_seconds() / window.until_s - mean) <= _ROUNDING:
            return replace(window)
    raise RefusedError(f"neither {start:g} to {stop:g} h nor tenths of hours hold {mean:g} nodes in the mean")
