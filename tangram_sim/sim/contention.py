"""Choice of engine: uncontended first; with shared links only where transfers exceed a link's rate."""

import numpy as np

from tangram_sim.opgraph import OpGraph, column
from tangram_sim.sim import fast, shared
from tangram_sim.sim.timeline import Timeline

# Loads within this share of a link's capacity are rounding, not contention.
_SLACK = 1e-9
_LARGEST_RATE = 1e300  # bytes/s: sums of these are finite


def play(graph: OpGraph, contention: bool = True) -> Timeline:
    """Simulate with the fastest exact compiled engine; without `contention`, links are unlimited."""
    timeline = fast.play(graph)
    if contention and saturated_links(timeline):
        return shared.play(graph)
    return timeline


def saturated_links(timeline: Timeline) -> tuple[int, ...]:
    """Links, ascending, whose capacity the transfers of an uncontended timeline together exceed.

    Empty means that sharing changes nothing: every transfer gets its full rate all the time.
    """
    from tangram_sim.sim.fluid_kernels import overfull

    graph = timeline.graph
    if not graph.links or not len(graph.link):
        return ()
    op = np.repeat(np.arange(len(graph)), np.diff(graph.link_ptr))
    rates = shared.demands(graph)[op]
    flows = rates > 0
    # A transfer of bytes in next to no time asks for more than floats hold: any such rate is beyond a link.
    with np.errstate(over="ignore"):
        demand = np.minimum((rates * graph.link_weight)[flows], _LARGEST_RATE)
    op, link = op[flows], graph.link[flows]
    # Sweep each link's load over time. At one instant what ends leaves before what starts comes, but a
    # transfer too short for the clock to see (start == end) comes before it leaves.
    time = np.concatenate((timeline.end_s[op], timeline.start_s[op]))
    change = np.concatenate((-demand, demand))
    turn = np.concatenate((np.where(timeline.end_s[op] > timeline.start_s[op], 0, 2), np.ones(len(op), int)))
    where = np.concatenate((link, link))
    order = np.lexsort((turn, time, where))
    full = np.zeros(len(graph.links), np.int32)
    overfull(
        column(where[order], np.int32),
        column(change[order], np.float64),
        column([link.bytes_per_s * (1 + _SLACK) for link in graph.links], np.float64),
        full,
    )
    return tuple(np.flatnonzero(full).tolist())
