"""Replay of node losses with measured speeds by number of nodes, under three policies.

Nodes can be used 45 s after they come and are taken at the next loss, as in the published simulator. Its
artefacts are not imitated: steps that run on during a restart, standing still after losses at one time.
The average is over the time from the first usable node to the end of the last whole step.
"""

import re
from dataclasses import replace

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from tangram_sim.reliability.spot.engine import Policy, replay
from tangram_sim.reliability.spot.policies import Redundancy, Restart, Templates
from tangram_sim.reliability.spot.speeds import read_speeds
from tangram_sim.reliability.spot.tracefile import read_trace
from tangram_sim.reliability.spot.transitions import read_transitions, seconds_of

_BOOT_S = 45.0
_EVERY = re.compile(r"every (\d+)(m|h)\b")
_SECONDS = {"m": 60.0, "h": 3600.0}
_WORTH_CHASING = 40  # restarts that an interval must hold where the published simulator lets steps run on


def compute(figure: Figure, data: Data) -> Answer:
    """Samples per second of the row's policy; its verdict where the tolerance hangs on policy or interval."""
    rate, restart_s = average(figure.setting.split(",")[0], figure.inputs.split()[-1], figure.metric, data)
    return Answer(rate, tolerance=_tolerance(figure, restart_s))


def _tolerance(figure: Figure, restart_s: float) -> str:
    """What of the row's tolerance applies: `5 % templates, restart order only`, `5 % where ...`."""
    interval = _EVERY.search(figure.setting)
    if "where the interval" in figure.tolerance:
        seconds = int(interval[1]) * _SECONDS[interval[2]] if interval else 0.0
        return figure.tolerance if seconds >= _WORTH_CHASING * restart_s > 0 else "order only"
    for part in figure.tolerance.split(","):
        if figure.metric in part:
            return "order only" if "order" in part else part
    return figure.tolerance


def average(model: str, trace: str, metric: str, data: Data) -> tuple[float, float]:
    """(samples per second, seconds of a restart) of a model on a named trace under a policy."""
    history = read_trace(data.path("traces/node_events_oobleck.csv"), trace)
    history = replace(history, until_s=history.events[-1].time_s).delayed(_BOOT_S)
    costs, samples = read_transitions(data.path("policies/oobleck_policy_parameters.csv"), model)
    speeds = read_speeds(data.path("policies/oobleck_node_throughput.csv"), model, samples)
    policies: dict[str, Policy] = {
        "restart": Restart(speeds, costs),
        "templates": Templates(speeds, costs),
        "redundancy": Redundancy(speeds, costs),
    }
    if metric not in policies:
        raise RefusedError(f"no policy is called {metric!r}; known: {', '.join(policies)}")
    found = replay(history, policies[metric], costs, join="next-loss")
    best = speeds.best((("", max(count for _, count in history.counts())),))
    first = history.changes[0].time_s
    span = found.last_step_s - first
    return (found.whole_samples / span if span > 0 else 0.0), seconds_of(
        costs.restart(None, best, joined=False, pending=False)
    ) if best else 0.0
