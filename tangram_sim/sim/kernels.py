"""Compiled loops of the fast engine: longest paths over an op graph in one linear pass.

Callers pass read-only contiguous int32/float64 columns and writable float64 outputs, always, so that each
function is compiled once; importing this module imports numba, hence it is imported inside functions only.
"""

from typing import Any

import numpy as np

from tangram_sim.compiling import njit
from tangram_sim.opgraph import FloatArray, IntArray

NONE: Any = np.int64(0)  # a count that starts so: with Python's own 0 numba compiles what gets it once more


@njit(cache=True)
def elapsed(
    start: float, work: float, resource: int, speed_ptr: IntArray, since: FloatArray, speed: FloatArray
) -> float:
    """Seconds that `work` takes from `start` on; both engines convert work to time only here.

    Resource r runs at speed[k] from since[k] on, for k in speed_ptr[r] to speed_ptr[r + 1] - 1; the first
    piece holds from the beginning, the last one for ever. Without pieces (an empty speed_ptr) every speed is
    1.
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
    """Fill start and end [n]: an op starts when its predecessors and `previous` (-1: none) have ended. It
    runs at the speed of its resource."""
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


# How far ends may be off by what adding up leaves, relative to the time of the play.
ROUNDING = 1e-14


@njit(cache=True)
def steady(
    pred_ptr: IntArray,
    pred: IntArray,
    previous: IntArray,
    group: IntArray,
    begin: int,
    period: int,
    cycle: int,
    end: FloatArray,
    lane: int,
    tops: FloatArray,
    mark: int,
    play: int,
    gains: FloatArray,
) -> bool:
    """Whether each op of the period from `begin` on will repeat for ever at a constant gain per period.

    The end times [n, LANES] of three periods in one simulation, its `lane`, must differ by the same seconds;
    and each op must wait for an op with its own gain, and for none with a larger one: then by induction all
    end times of the next period are these plus the difference. At each mark of the period up to `mark` the
    latest end of every group must have grown by the largest gain of its ops (fills `gains` [LANES, groups] of
    this lane): `tops` [groups, marks, K] are those of all simulations.
    """
    near = ROUNDING * max(end[begin + period - 1, lane], tops[0, mark, play])
    for i in range(begin, begin + period):
        gain = end[i, lane] - end[i - period, lane]
        for back in range(1, 3):
            before = i - back * period
            if abs(gain - (end[before, lane] - end[before - period, lane])) > near:
                return False
    for g in range(gains.shape[1]):
        gains[lane, g] = -1.0
    for i in range(begin, begin + period):
        gain = end[i, lane] - end[i - period, lane]
        start, waits, followed = 0.0, previous[i] >= 0 or pred_ptr[i + 1] > pred_ptr[i], False
        for turn in range(2):  # when it starts; whether something of its pace ends then
            for k in range(pred_ptr[i] - 1, pred_ptr[i + 1]):
                other = previous[i] if k < pred_ptr[i] else pred[k]
                if other < 0:
                    continue
                if turn == 0:
                    start = max(start, end[other, lane])
                    continue
                latest = other
                while latest + period < begin + period:
                    latest += period
                pace = end[latest, lane] - end[latest - period, lane]
                if pace > gain + near:
                    return False
                followed = followed or (end[other, lane] >= start - near and pace >= gain - near)
        if waits and not followed:
            return False
        if group[i] >= 0:
            gains[lane, group[i]] = max(gains[lane, group[i]], gain)
    for g in range(gains.shape[1]):
        gains[lane, g] = max(gains[lane, g], 0.0)
        for at in range(mark + 1 - cycle, mark + 1):
            if abs(tops[g, at, play] - tops[g, at - cycle, play] - gains[lane, g]) > near:
                return False
    return True


# Plays that go through a graph side by side: what waits for what is read once for all, and so many ends fill
# a few registers.
LANES = 16


@njit(cache=True)
def latest_ends(
    pred_ptr: IntArray,
    pred: IntArray,
    previous: IntArray,
    source: IntArray,
    durations: FloatArray,
    group: IntArray,
    marks: IntArray,
    repeats: IntArray,
    gains: FloatArray,
    turns: IntArray,
    end: FloatArray,
    latest: FloatArray,
) -> None:
    """Fill latest [groups, marks, K]: the latest end time of each group among ops up to each mark.

    Op i lasts durations[source[i], :] in K simulations, at least LANES (durations [m, K], m distinct ops);
    groups below 0 are not recorded; end [n, LANES] is scratch that stays in cache. `repeats` is (first, last,
    marks of a period): blocks of ops after mark `first`, up to `last`, are built like those one period
    before. Once a simulation is steady, its remaining periods are extrapolated instead of simulated; others
    in the same lanes continue, so that a result does not depend on the simulations next to it. `gains`
    [LANES, groups] and `turns` [2, LANES], the marks between which is extrapolated, are scratch.

    Lane by lane, not row by row: numba takes seconds longer to compile copies of whole rows.
    """
    groups, plays = latest.shape[0], durations.shape[1]
    first, final, cycle = repeats[0], min(repeats[1], marks.shape[0] - 2), repeats[2]
    since, until = turns[0], turns[1]
    for begin_row in range(0, plays, LANES):
        row = min(begin_row, plays - LANES)  # the last ones may be played twice
        for lane in range(LANES):
            until[lane] = -1
            for g in range(groups):
                latest[g, 0, row + lane] = 0.0
        mark, looks = NONE, first + 3 * cycle
        i = 0
        while i < source.shape[0]:
            mine, before = end[i], previous[i]
            if before >= 0:
                other = end[before]
                for lane in range(LANES):
                    mine[lane] = other[lane]
            else:
                for lane in range(LANES):
                    mine[lane] = 0.0
            for k in range(pred_ptr[i], pred_ptr[i + 1]):
                other = end[pred[k]]
                for lane in range(LANES):
                    mine[lane] = other[lane] if other[lane] > mine[lane] else mine[lane]
            lasts = durations[source[i], row : row + LANES]
            for lane in range(LANES):
                mine[lane] += lasts[lane]
            if group[i] >= 0:
                top = latest[group[i], mark, row : row + LANES]
                for lane in range(LANES):
                    top[lane] = mine[lane] if mine[lane] > top[lane] else top[lane]
            if i == marks[mark] and mark + 1 < marks.shape[0]:
                if mark == looks and mark + 2 * cycle < final:
                    looks = mark + 1 + (mark - first) // 3
                    period = marks[mark] - marks[mark - cycle]
                    for lane in range(LANES):
                        if until[lane] < 0 and steady(
                            pred_ptr,
                            pred,
                            previous,
                            group,
                            begin=i + 1 - period,
                            period=period,
                            cycle=cycle,
                            end=end,
                            lane=lane,
                            tops=latest,
                            mark=mark,
                            play=row + lane,
                            gains=gains,
                        ):
                            since[lane] = mark
                            until[lane] = mark + (final - mark) // cycle * cycle
                    soonest = until[0]
                    for lane in range(1, LANES):
                        soonest = min(soonest, until[lane])
                    if soonest > 0:  # nobody plays on
                        mark = soonest
                        i = marks[mark]
                for lane in range(LANES):
                    if until[lane] != mark:
                        continue
                    steady_at, periods = marks[since[lane]], (mark - since[lane]) // cycle
                    period = steady_at - marks[since[lane] - cycle]
                    for g in range(groups):
                        for later in range(since[lane] + 1, mark + 1):
                            latest[g, later, row + lane] = (
                                latest[g, later - cycle, row + lane] + gains[lane, g]
                            )
                    # What comes behind waits for the last two of them.
                    for op in range(steady_at, steady_at - period, -1):
                        gain = end[op, lane] - end[op - period, lane]
                        end[op + periods * period, lane] = end[op, lane] + periods * gain
                        end[op + (periods - 1) * period, lane] = end[op, lane] + (periods - 1) * gain
                for g in range(groups):
                    for lane in range(LANES):
                        latest[g, mark + 1, row + lane] = latest[g, mark, row + lane]
                mark += 1
            i += 1


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
    """Fill totals [K, labels]: seconds of each label on the critical path of each of K simulations.

    The path ends with the op that ends last among those `counted` (not 0); ties as in `critical_path`. Op i
    lasts durations[:, source[i]]; end [n] is scratch.
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
