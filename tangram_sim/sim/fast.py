"""The fast engine: longest paths over the op graph, compiled. Ignores contention on shared links."""

import numpy as np
from numpy.typing import NDArray

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import FloatArray, IntArray, OpGraph, column
from tangram_sim.sim.timeline import Timeline

LEAST_PERIODS = 6  # fewer are played to their end: it takes four to see that they are steady
MANY_PLAYS = 128  # from which on those that are alike are looked for
LONGEST_PERIOD = 8  # marks: every so many layers of a model attend to all tokens, or hold experts


def play(graph: OpGraph) -> Timeline:
    """Simulate every op at its uncontended duration. Exact where no shared link is saturated."""
    start, end = _played(graph, graph.duration_s)
    return Timeline(graph, start, end)


def makespan(graph: OpGraph) -> float:
    """Seconds from 0 to the end of the last op, without keeping the timeline."""
    return float(makespans(graph, graph.duration_s.reshape(1, -1))[0])


def play_many(graph: OpGraph, durations: FloatArray) -> FloatArray:
    """End times [K, n] of the ops for K duration vectors [K, n] on one structure. At speed 1 the start times
    are ends - durations."""
    from tangram_sim.sim.kernels import longest_paths

    rows = _rows(graph, durations)
    if len(graph.speed_ptr):
        return np.array([_played(graph, row)[1] for row in rows]).reshape(rows.shape)
    ends = np.empty(rows.shape)
    longest_paths(graph.pred_ptr, graph.pred, graph.resource_previous, rows, ends)
    return ends


def makespans(graph: OpGraph, durations: FloatArray) -> FloatArray:
    """Makespans [K] for K duration vectors [K, n] on one structure; values are not validated (hot path)."""
    from tangram_sim.sim import kernels

    if len(graph.speed_ptr):
        return np.asarray(play_many(graph, durations).max(axis=1, initial=0.0), dtype=np.float64)
    rows = _rows(graph, durations)
    longest = np.empty(len(rows))
    kernels.makespans(
        graph.pred_ptr, graph.pred, graph.resource_previous, rows, np.empty(len(graph)), longest
    )
    return longest


def _played(graph: OpGraph, duration_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(start times, end times) [n] of the ops, each at its resource's speed."""
    from tangram_sim.sim.kernels import longest_path

    start, end = np.empty(len(graph)), np.empty(len(graph))
    longest_path(
        graph.pred_ptr,
        graph.pred,
        previous=graph.resource_previous,
        resource=graph.resource,
        speed_ptr=graph.speed_ptr,
        since=graph.speed_since_s,
        speed=graph.speed,
        duration=duration_s,
        start=start,
        end=end,
    )
    return start, end


def latest_ends(
    graph: OpGraph,
    source: IntArray,
    durations: FloatArray,
    group: IntArray,
    groups: int,
    marks: IntArray,
    repeats: IntArray | None = None,
) -> FloatArray:
    """Latest end times [groups, marks, K] of each group of ops among the ops up to each mark.

    For K simulations of a graph that repeats a few ops many times: op i lasts durations[source[i]], with
    durations [m, K] of the m distinct ops. Ops of group -1 are simulated but not recorded.
    """
    from tangram_sim.sim import kernels

    columns, which = _different(column(durations, np.float64))
    plays = columns.shape[1]
    if 0 < plays < kernels.LANES:  # too few to go side by side: the last one several times
        columns = np.concatenate([columns, np.repeat(columns[:, -1:], kernels.LANES - plays, axis=1)], axis=1)
    latest = np.empty((groups, len(marks), columns.shape[1]))
    kernels.latest_ends(
        graph.pred_ptr,
        graph.pred,
        previous=graph.resource_previous,
        source=column(source, np.int32),
        durations=column(columns, np.float64),
        group=column(group, np.int32),
        marks=column(marks, np.int32),
        repeats=column(np.zeros(3) if repeats is None else repeats, np.int32),
        gains=np.empty((kernels.LANES, groups)),
        turns=np.empty((2, kernels.LANES), np.int64),
        end=np.empty((len(graph), kernels.LANES)),
        latest=latest,
    )
    return latest[:, :, :plays] if which is None else latest[:, :, which]


def _different(columns: FloatArray) -> tuple[FloatArray, NDArray[np.int64] | None]:
    """(distinct columns, index of each column among them); (columns, None) where few are equal.

    Many layouts share a forward pass, which does not depend on sharded state or recomputation. Columns are
    compared by a weighted sum; if two columns of one sum differ, all are kept.
    """
    if columns.shape[1] < MANY_PLAYS:
        return columns, None
    sums = np.sin(np.arange(1.0, len(columns) + 1.0)) @ columns
    _, first, which = np.unique(sums, return_index=True, return_inverse=True)
    if 2 * len(first) > columns.shape[1]:
        return columns, None
    different = np.ascontiguousarray(columns[:, first])
    return (different, which) if np.array_equal(different[:, which], columns) else (columns, None)


def repeating(graph: OpGraph, source: IntArray, group: IntArray, marks: IntArray) -> IntArray:
    """(first, last, period) in marks: after the first mark, each block of ops equals one period before.

    Equal blocks have as many ops, with the same sources and groups, that wait for the same ops by relative
    index. The shortest period with a long enough run is taken; without one all three are 0.
    """
    counts, own = np.diff(graph.pred_ptr), np.arange(len(graph))
    waits = np.full((len(graph), int(counts.max(initial=1))), -1, np.int64)
    within = np.arange(len(graph.pred)) - np.repeat(graph.pred_ptr[:-1], counts)
    waits[np.repeat(own, counts), within] = np.repeat(own, counts) - graph.pred
    follows = np.where(graph.resource_previous >= 0, own - graph.resource_previous, -1)
    facts = np.column_stack([source, group, counts, follows, waits])
    for cycle in range(1, min(LONGEST_PERIOD, len(marks) // LEAST_PERIODS) + 1):
        sizes = marks[cycle:] - marks[:-cycle]  # of the period in front of each mark
        period = int(np.bincount(sizes).argmax())
        unlike = np.ones(len(graph), np.int64)
        unlike[period:] = (facts[period:] != facts[:-period]).any(axis=1)
        before = np.concatenate([[0], np.cumsum(unlike)])
        # Marks whose own ops, behind the mark before, are like those a period before.
        same = (sizes == period) & (before[marks[cycle:] + 1] == before[marks[cycle - 1 : -1] + 1])
        edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
        if len(edges):
            longest = int(np.argmax(edges[1::2] - edges[::2]))
            first, last = edges[2 * longest] + cycle - 1, edges[2 * longest + 1] + cycle - 1
            if last - first >= LEAST_PERIODS * cycle:
                return column(np.array([first, last, cycle]), np.int32)
    return column(np.zeros(3), np.int32)


def path_totals(
    graph: OpGraph,
    source: IntArray,
    durations: FloatArray,
    label: IntArray,
    labels: int,
    counted: IntArray | None = None,
) -> FloatArray:
    """Seconds [K, labels] that ops of each label have on the critical path of K simulations.

    Like `critical_path`, without a walk in Python: op i lasts durations[:, source[i]], durations [K, m]. The
    path leads to the op that ends last among those `counted` [n] (not 0; default all).
    """
    from tangram_sim.sim import kernels

    rows = column(durations, np.float64)
    totals = np.zeros((len(rows), labels))
    if len(graph):
        kernels.path_totals(
            graph.pred_ptr,
            graph.pred,
            previous=graph.resource_previous,
            source=column(source, np.int32),
            durations=rows,
            label=column(label, np.int32),
            counted=column(np.ones(len(graph)) if counted is None else counted, np.int32),
            end=np.empty(len(graph)),
            totals=totals,
        )
    return totals


def _rows(graph: OpGraph, durations: FloatArray) -> FloatArray:
    rows = column(durations, np.float64)
    # The compiled loops do not check bounds.
    if rows.ndim != 2 or rows.shape[1] != len(graph):
        raise BadInputError(f"durations have shape {rows.shape}; give (K, {len(graph)}), one row per play.")
    return rows
