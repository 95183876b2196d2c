"""Compiled loops of the fast engine: longest paths over an op graph in one linear pass.

Callers pass read-only contiguous int32/float64 columns and writable float64 outputs, always, so that each
function is compiled once; importing this module imports numba, hence it is imported inside functions only.
"""

from numba import njit

from tangram_sim.opgraph import FloatArray, IntArray


@njit(cache=True)
def longest_path(
    pred_ptr: IntArray,
    pred: IntArray,
    previous: IntArray,
    duration: FloatArray,
    start: FloatArray,
    end: FloatArray,
) -> None:
    """Fill start and end [n]: an op starts when its predecessors and `previous` (-1: none) have ended."""
    for i in range(duration.shape[0]):
        time = 0.0
        before = previous[i]
        if before >= 0:
            time = end[before]
        for k in range(pred_ptr[i], pred_ptr[i + 1]):
            time = max(time, end[pred[k]])
        start[i] = time
        end[i] = time + duration[i]


@njit(cache=True)
def longest_paths(
    pred_ptr: IntArray, pred: IntArray, previous: IntArray, durations: FloatArray, ends: FloatArray
) -> None:
    """Fill ends [K, n] for durations [K, n] of one structure."""
    for row in range(durations.shape[0]):
        for i in range(durations.shape[1]):
            time = 0.0
            before = previous[i]
            if before >= 0:
                time = ends[row, before]
            for k in range(pred_ptr[i], pred_ptr[i + 1]):
                time = max(time, ends[row, pred[k]])
            ends[row, i] = time + durations[row, i]


@njit(cache=True)
def makespans(
    pred_ptr: IntArray,
    pred: IntArray,
    previous: IntArray,
    durations: FloatArray,
    end: FloatArray,
    longest: FloatArray,
) -> None:
    """Fill longest [K] with the latest end for durations [K, n]; end [n] is scratch that stays in cache."""
    for row in range(durations.shape[0]):
        latest = 0.0
        for i in range(durations.shape[1]):
            time = 0.0
            before = previous[i]
            if before >= 0:
                time = end[before]
            for k in range(pred_ptr[i], pred_ptr[i + 1]):
                time = max(time, end[pred[k]])
            time += durations[row, i]
            end[i] = time
            latest = max(latest, time)
        longest[row] = latest


@njit(cache=True)
def latest_ends(
    pred_ptr: IntArray,
    pred: IntArray,
    previous: IntArray,
    source: IntArray,
    durations: FloatArray,
    group: IntArray,
    marks: IntArray,
    end: FloatArray,
    latest: FloatArray,
) -> None:
    """Fill latest [K, groups, marks]: the latest end of each group among ops up to each mark.

    Op i lasts durations[:, source[i]] (durations [K, m], m distinct ops); groups below 0 are not recorded;
    end [n] is scratch that stays in cache.
    """
    groups = latest.shape[1]
    for row in range(durations.shape[0]):
        mark = 0
        for i in range(source.shape[0]):
            time = 0.0
            before = previous[i]
            if before >= 0:
                time = end[before]
            for k in range(pred_ptr[i], pred_ptr[i + 1]):
                time = max(time, end[pred[k]])
            time += durations[row, source[i]]
            end[i] = time
            if group[i] >= 0:
                latest[row, group[i], mark] = max(latest[row, group[i], mark], time)
            if i == marks[mark] and mark + 1 < marks.shape[0]:
                for g in range(groups):
                    latest[row, g, mark + 1] = latest[row, g, mark]
                mark += 1
