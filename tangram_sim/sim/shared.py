"""The fast engine for shared links: an event loop with max-min fair rates, compiled.

Follows the reference engine's rules without its processes; both agree on every graph to rounding.
"""

from dataclasses import dataclass

import numpy as np

from tangram_sim.opgraph import FloatArray, IntArray, OpGraph, column
from tangram_sim.sim.timeline import Timeline


@dataclass(frozen=True, slots=True, eq=False)
class RateChanges:
    """From `time_s` [c] on, transfer `op` [c] moves `bytes_per_s` [c], times its weight on each link."""

    time_s: FloatArray
    op: IntArray
    bytes_per_s: FloatArray


def play(graph: OpGraph) -> Timeline:
    """Play every op; transfers that share a link share its capacity max-min fairly."""
    return _play(graph, 0)[0]


def play_recorded(graph: OpGraph) -> tuple[Timeline, RateChanges]:
    """Like `play`, with every change of a transfer's rate in order of time."""
    _, _, count = _play(graph, 0)
    timeline, changes, _ = _play(graph, count)
    return timeline, changes


def demands(graph: OpGraph) -> FloatArray:
    """Bytes/s [n] of each transfer at full speed; 0 for ops that load no link.

    Ops without bytes, or with a negligible duration, load no link: their rate would overflow.
    """
    flows = (np.diff(graph.link_ptr) > 0) & (graph.bytes > 0)
    flows &= graph.duration_s > graph.bytes / np.finfo(np.float64).max
    return np.divide(graph.bytes, graph.duration_s, out=np.zeros(len(graph)), where=flows)


def max_min_rates(demand: FloatArray, link_ptr: IntArray, link: IntArray, capacity: FloatArray) -> FloatArray:
    """Max-min fair rates [flows] by the compiled solver; as `fluid.max_min_rates`, routes as CSR."""
    from tangram_sim.sim.fluid_kernels import fill

    flows, links = len(link_ptr) - 1, len(capacity)
    rates = np.zeros(flows)
    fill(
        flows=np.arange(flows, dtype=np.int32),
        links=np.arange(links, dtype=np.int32),
        demand=column(demand, np.float64),
        link_ptr=column(link_ptr, np.int32),
        link=column(link, np.int32),
        weight=column(np.ones(len(link)), np.float64),
        capacity=column(capacity, np.float64),
        crossings=np.zeros(links),
        load=np.zeros(links),
        rate=rates,
    )
    return rates


def _play(graph: OpGraph, log: int) -> tuple[Timeline, RateChanges, int]:
    from tangram_sim.sim.fluid_kernels import play_shared

    n = len(graph)
    start, end = np.empty(n), np.empty(n)
    changes = RateChanges(np.empty(log), np.empty(log, np.int32), np.empty(log))
    following = np.full(n, -1, np.int32)
    has = np.flatnonzero(graph.resource_previous >= 0).astype(np.int32)
    following[graph.resource_previous[has]] = has
    waiting = np.repeat(np.arange(n, dtype=np.int32), np.diff(graph.pred_ptr))
    order = np.argsort(graph.pred, kind="stable")
    succ_ptr = np.concatenate(([0], np.cumsum(np.bincount(graph.pred, minlength=n))))
    count = play_shared(
        graph.pred_ptr,
        succ_ptr=column(succ_ptr, np.int32),
        succ=column(waiting[order], np.int32),
        previous=graph.resource_previous,
        following=column(following, np.int32),
        resource=graph.resource,
        resources=len(graph.resources),
        speed_ptr=graph.speed_ptr,
        speed_since=graph.speed_since_s,
        speed=graph.speed,
        duration=graph.duration_s,
        demand=column(demands(graph), np.float64),
        link_ptr=graph.link_ptr,
        link=graph.link,
        weight=graph.link_weight,
        capacity=column([link.bytes_per_s for link in graph.links], np.float64),
        start=start,
        end=end,
        log_time=changes.time_s,
        log_op=changes.op,
        log_rate=changes.bytes_per_s,
    )
    return Timeline(graph, start, end), changes, int(count)
