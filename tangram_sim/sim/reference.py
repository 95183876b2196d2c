"""The reference engine: SimPy, written for readability; the fast engine is tested against it."""

import sys
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import simpy

from tangram_sim.opgraph import IntArray, OpGraph
from tangram_sim.sim.fluid import max_min_rates
from tangram_sim.sim.timeline import Timeline


@dataclass(frozen=True, slots=True)
class RateChange:
    """From `time_s` on, transfer `op` moves `bytes_per_s`, times its weight, over each of its links."""

    time_s: float
    op: int
    bytes_per_s: float


def play(graph: OpGraph, contention: bool = True) -> Timeline:
    """Simulate the graph event by event; with `contention`, transfers share the capacity of links."""
    return play_recorded(graph, contention)[0]


def play_recorded(graph: OpGraph, contention: bool = True) -> tuple[Timeline, list[RateChange]]:
    """Like `play`, with every change of a transfer's rate in order of time."""
    env = simpy.Environment()
    network = _Network(env, graph)
    start, end = np.zeros(len(graph)), np.zeros(len(graph))
    done = [env.event() for _ in range(len(graph))]

    def stream(ops: IntArray) -> Generator[simpy.Event, None, None]:
        """Issue the ops of one resource in program order."""
        for op in ops.tolist():
            for predecessor in _predecessors(graph, op):
                yield done[predecessor]
            start[op] = env.now
            yield (
                network.transfer(op)
                if contention and _is_flow(graph, op)
                else env.timeout(_elapsed_s(graph, op, env.now))
            )
            end[op] = env.now
            done[op].succeed()

    for resource in range(len(graph.resources)):
        env.process(stream(_program(graph, resource)))
    env.run()
    return Timeline(graph, start, end), network.changes


def _elapsed_s(graph: OpGraph, op: int, now: float) -> float:
    """Seconds that the work of `op` takes from `now` on, at the speed of its resource."""
    from tangram_sim.sim.kernels import elapsed

    work, resource = float(graph.duration_s[op]), int(graph.resource[op])
    return float(elapsed(now, work, resource, graph.speed_ptr, graph.speed_since_s, graph.speed))


def _program(graph: OpGraph, resource: int) -> IntArray:
    return np.flatnonzero(graph.resource == resource).astype(np.int32)


def _predecessors(graph: OpGraph, op: int) -> list[int]:
    return list(graph.predecessors(op).tolist())


def _is_flow(graph: OpGraph, op: int) -> bool:
    """Whether an op loads a link: it must have links, bytes, and a duration that is not negligible."""
    size, duration = float(graph.bytes[op]), float(graph.duration_s[op])
    # Below 1 / max of the floats there is no rate to speak of.
    return len(graph.links_of(op)) > 0 and size > 0 and duration > size / sys.float_info.max


@dataclass(slots=True)
class _Flow:
    """A transfer in progress. Work is in seconds at full speed: an undisturbed flow ends exactly on time."""

    op: int
    demand: float  # bytes/s at full speed
    links: list[int]
    weights: list[float]
    work_s: float  # left at `since`
    since: float
    rate: float  # bytes/s since then; 0 until first set
    ends: simpy.Event
    plan: int = 0  # number of the newest planned end; older ones are void


class _Network:
    """All transfers under way, and their rates: recomputed whenever one starts or ends."""

    def __init__(self, env: simpy.Environment, graph: OpGraph) -> None:
        self._env = env
        self._graph = graph
        self._capacities = [link.bytes_per_s for link in graph.links]
        self._flows: dict[int, _Flow] = {}
        self.changes: list[RateChange] = []

    def transfer(self, op: int) -> simpy.Event:
        """Start transfer `op`; the event fires when its last byte has arrived."""
        duration = float(self._graph.duration_s[op])
        demand = float(self._graph.bytes[op]) / duration
        links = self._graph.links_of(op).tolist()
        weights = self._graph.weights_of(op).tolist()
        flow = _Flow(
            op, demand, links, weights, work_s=duration, since=self._env.now, rate=0.0, ends=self._env.event()
        )
        self._flows[op] = flow
        self._share()
        return flow.ends

    def _share(self) -> None:
        flows = [self._flows[op] for op in sorted(self._flows)]
        rates = max_min_rates(
            [flow.demand for flow in flows],
            [flow.links for flow in flows],
            self._capacities,
            [flow.weights for flow in flows],
        )
        for flow, rate in zip(flows, rates, strict=True):
            if rate != flow.rate:
                self._set_rate(flow, rate)

    def _set_rate(self, flow: _Flow, rate: float) -> None:
        now = self._env.now
        flow.work_s = max(0.0, flow.work_s - (now - flow.since) * (flow.rate / flow.demand))
        flow.since, flow.rate = now, rate
        flow.plan += 1
        self.changes.append(RateChange(now, flow.op, rate))
        self._env.process(self._finish(flow, flow.plan))

    def _finish(self, flow: _Flow, plan: int) -> Generator[simpy.Event, None, None]:
        full_speed = flow.rate == flow.demand
        yield self._env.timeout(flow.work_s if full_speed else flow.work_s * flow.demand / flow.rate)
        if plan != flow.plan:
            return  # the rate changed on the way; a newer plan holds
        del self._flows[flow.op]
        self.changes.append(RateChange(self._env.now, flow.op, 0.0))
        self._share()
        flow.ends.succeed()
