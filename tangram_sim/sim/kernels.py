"""Compiled loops of the fast engine: longest paths over an op graph in one linear pass.

Callers pass read-only contiguous int32/float64 columns and writable float64 outputs, always, so that each
function is compiled once; importing this module imports numba, hence it is imported inside functions only.
"""

from numba import njit

from tangram_sim.opgraph import FloatArray, IntArray


@njit(cache=True)
def elapsed(
    start: float, work: float, resource: int, speed_ptr: IntArray, since: FloatArray, speed: FloatArray
) -> float:
    """Seconds that `work` takes from `start` on: the one place where work becomes time, in both engines.

    Resource r runs at speed[k] from since[k] on, for k in speed_ptr[r] to speed_ptr[r + 1] - 1; the first
    piece holds from the beginning, the last one for ever. Without pieces (an empty speed_ptr) every speed
    is 1.
    """
    if speed_ptr.shape[0] == 0 or work <= 0.0:
        return work
    piece, last = speed_ptr[resource], speed_ptr[resource + 1] - 1
    if piece > last:
        return work
    while piece < last and since[piece + 1] <= start:
        piece += 1
    if piece == last:
        return float(work / speed[piece])
    now, left = start, work
    while piece < last:
        done = (since[piece + 1] - now) * speed[piece]
        if done >= left:
            break
        left -= done
        now = since[piece + 1]
        piece += 1
    return float(now - start + left / speed[piece])


@njit(cache=True)
def longest_path(
    pred_ptr: IntArray,
    pred: IntArray,
    previous: IntArray,
    resource: IntArray,
    speed_ptr: IntArray,
    since: FloatArray,
    speed: FloatArray,
    duration: FloatArray,
    start: FloatArray,
    end: FloatArray,
) -> None:
    """Fill start and end [n]: an op starts when its predecessors and `previous` (-1: none) have ended, and
    runs at the speed of its resource.
    """
    varies = speed_ptr.shape[0] > 0
    for i in range(duration.shape[0]):
        time = 0.0
        before = previous[i]
        if before >= 0:
            time = end[before]
        for k in range(pred_ptr[i], pred_ptr[i + 1]):
            time = max(time, end[pred[k]])
        start[i] = time
        took = duration[i]
        if varies:
            took = elapsed(time, duration[i], resource[i], speed_ptr, since, speed)
        end[i] = time + took


@njit(cache=True)
def longest_paths(
    pred_ptr: IntArray, pred: IntArray, previous: IntArray, durations: FloatArray, ends: FloatArray
) -> None:
    """Fill ends [K, n] for durations [K, n] of one structure, every resource at speed 1."""
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
    """Fill longest [K] with the latest end for durations [K, n], every resource at speed 1.

    The search's inner loop: end [n] is scratch that stays in cache.
    """
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


@njit(cache=True)
def path_totals(
    pred_ptr: IntArray,
    pred: IntArray,
    previous: IntArray,
    source: IntArray,
    durations: FloatArray,
    label: IntArray,
    counted: IntArray,
    end: FloatArray,
    totals: FloatArray,
) -> None:
    """Fill totals [K, labels]: seconds of each label on the critical path of each of K plays.

    The path ends with the op that ends last among those `counted` (not 0); ties as in `critical_path`.
    Op i lasts durations[:, source[i]]; end [n] is scratch.
    """
    for row in range(durations.shape[0]):
        latest = -1.0
        at = -1
        for i in range(source.shape[0]):
            time = 0.0
            before = previous[i]
            if before >= 0:
                time = end[before]
            for k in range(pred_ptr[i], pred_ptr[i + 1]):
                time = max(time, end[pred[k]])
            time += durations[row, source[i]]
            end[i] = time
            if counted[i] != 0 and time > latest:
                latest = time
                at = i
        while at >= 0:
            totals[row, label[at]] += durations[row, source[at]]
            best = -1
            when = -1.0
            for k in range(pred_ptr[at], pred_ptr[at + 1]):
                p = pred[k]
                if end[p] > when or (end[p] == when and p < best):
                    best = p
                    when = end[p]
            before = previous[at]
            if before >= 0 and end[before] > when:
                best = before
            at = best
