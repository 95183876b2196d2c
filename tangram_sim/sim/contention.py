"""When sharing matters: play fast, and only where transfers overfill a link play the fluid reference."""

import numpy as np

from tangram_sim.opgraph import OpGraph
from tangram_sim.sim import fast
from tangram_sim.sim.timeline import Timeline

# Loads within this share of a link's capacity are rounding, not contention.
_SLACK = 1e-9


# Larger steps are played without sharing of links: the reference takes some microseconds per op.
CONTENDED_OPS = 300_000


def play(graph: OpGraph, contention: bool = True) -> Timeline:
    """Play with the cheapest engine that is exact; without `contention`, links are unlimited."""
    timeline = fast.play(graph)
    if contention and saturated_links(timeline):
        from tangram_sim.sim import reference

        return reference.play(graph)
    return timeline


def saturated_links(timeline: Timeline) -> tuple[int, ...]:
    """Links, ascending, that the transfers of an uncontended timeline together ask more of than they carry.

    Empty means that sharing would change nothing: every transfer gets its average rate all the time.
    """
    graph = timeline.graph
    if not graph.links or not len(graph.link):
        return ()
    op = np.repeat(np.arange(len(graph)), np.diff(graph.link_ptr))
    least_s = graph.bytes / np.finfo(np.float64).max  # below, there is no rate to speak of
    flows = ((graph.bytes > 0) & (graph.duration_s > least_s))[op]
    op, link = op[flows], graph.link[flows]
    demand = graph.bytes[op] / graph.duration_s[op]
    # Sweep each link's load over time. At one instant what ends leaves before what starts comes, but a
    # transfer too short for the clock to see (start == end) comes before it leaves.
    time = np.concatenate((timeline.end_s[op], timeline.start_s[op]))
    change = np.concatenate((-demand, demand))
    turn = np.concatenate((np.where(timeline.end_s[op] > timeline.start_s[op], 0, 2), np.ones(len(op), int)))
    where = np.concatenate((link, link))
    full = []
    for index, shared in enumerate(graph.links):
        mine = where == index
        order = np.lexsort((turn[mine], time[mine]))
        load = np.cumsum(change[mine][order])
        if load.size and load.max() > shared.bytes_per_s * (1 + _SLACK):
            full.append(index)
    return tuple(full)
