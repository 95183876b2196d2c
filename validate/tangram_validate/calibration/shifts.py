"""Estimates two factors of a stack from a few measured steps, robust to bad rows: costs, and host time.

Both logarithms have a normal prior around 0, as wide as sources differ from one another; rows differ from
their source by a spread with long tails (Student's t), so that a row far off the others and off the
prediction hardly pulls, and the more rows agree the more they are believed. Rows that no shift makes much
more probable shift no further than all of them agree: most stacks are about where the database has them, and
a shift by chance harms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tangram_sim.opgraph import FloatArray

FREEDOM = 3.0  # of Student's t: two rows that agree beat the prior, one row 3 spreads off pulls like one at 1
DEGREES = 3.0  # measured rows that the prior spread between plans counts for
HOST_ROWS = 4  # rows from which host time is told apart from scale: with three, one odd row would pass for it
NEAR = 0.5  # of the device's time: where the host's begins to matter
HOST_STARTS = (0.0, 1.6)  # device-bound and host-bound optima can both be local ones
LIMIT = math.log(8.0)  # no stack is further off than this
EVIDENCE = 1.25  # log of how much more probable a shift must be than none: odds of 3.5
AGREEING = 3  # rows that all lie on one side by chance in one case of four
LEAST = 0.25  # of the spread from plan to plan: a row nearer to its prediction than this speaks for no shift

STEP, SMALL, MOST_STEPS = 0.05, 0.003, 8

# Log seconds of every row, [N], at (log scale, log host factor).
Logs = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class Doubt:
    """Prior log standard deviations, before any row is seen."""

    common: float  # of what a source's rows share
    host: float  # of its host's time beyond that
    plan: float  # of a row beside its source


@dataclass(frozen=True, slots=True)
class ShiftEstimate:
    """The most probable log factors, and their standard deviations given the measured rows."""

    log_scale: float
    log_host: float
    common: float  # log standard deviation of what rows share, after
    plan: float  # of a row beside it, by what was seen
    offsets: FloatArray  # log(measured / shifted prediction) of every row, [N]


def most_probable(logs: Logs, target: FloatArray, doubt: Doubt, host_load: float) -> ShiftEstimate:
    """The shift under which log measured seconds `target` [N] are most probable.

    `host_load`: the host's time over the device's in the row where it is largest; a slower host can only be
    seen where it comes near.
    """
    free = len(target) >= HOST_ROWS and doubt.host > 0
    width = np.array([doubt.common, doubt.host if free else 1e-6])
    first = logs(np.zeros(2))
    error = np.sort(target - first)
    scales = {0.0, float(error[0]), float(np.median(error)), float(error[-1])}
    starts = [np.array([scale, 0.0]) for scale in sorted(scales)]
    starts += [
        np.array([0.0, host]) for host in HOST_STARTS if host and free and host_load * math.exp(host) > NEAR
    ]
    plan = _spread(target - first, doubt.plan)
    found = [_search(logs, target, plan, width, np.clip(start, -LIMIT, LIMIT)) for start in starts]
    best, at, left, slopes = min(found, key=lambda item: item[0])
    if _loss(target - first, plan, np.zeros(2), width) - best < EVIDENCE:
        at = np.array([agreed(target - first, doubt), 0.0])
        left = target - logs(at)
    used = 2 if free and abs(at[1]) > 1e-3 else 1
    freedom = max(len(target) - used, 0)
    seen = DEGREES * doubt.plan**2
    if freedom:
        seen += float((np.minimum(np.abs(left), 4 * doubt.plan) ** 2).sum())
    spread = math.sqrt(seen / (DEGREES + freedom))
    pull = np.minimum(_pull(left, spread), 1 / spread**2)
    curvature = float((pull * slopes[:, 0] ** 2).sum()) + 1 / doubt.common**2
    return ShiftEstimate(float(at[0]), float(at[1]), 1 / math.sqrt(curvature), spread, left)


def agreed(error: FloatArray, doubt: Doubt) -> float:
    """A log scale as far as all rows [N] agree on it: the mean of their two least errors, if none is against.

    Every row but the nearest is then nearer to its prediction than before, and a single bad row says nothing.
    It goes no further than sources differ.
    """
    least = np.sort(np.abs(error))
    if len(error) < AGREEING or abs(np.sign(error).sum()) < len(error) or least[0] < LEAST * doubt.plan:
        return 0.0
    return float(np.sign(error[0]) * min((least[0] + least[1]) / 2.0, doubt.common))


def _spread(error: FloatArray, plan: float) -> float:
    """Log standard deviation of rows beside their source: as the database says, less where they agree.

    By the median distance from their median, which one bad row in three does not move. Where they disagree,
    it may be the host's doing.
    """
    freedom = len(error) - 1
    if freedom < 1:
        return plan
    own = 1.4826 * float(np.median(np.abs(error - np.median(error))))
    return math.sqrt((DEGREES * plan**2 + freedom * min(own, plan) ** 2) / (DEGREES + freedom))


def _loss(error: FloatArray, spread: float, at: FloatArray, width: FloatArray) -> float:
    far = np.append(error / spread, at[0] / width[0])
    tails = (FREEDOM + 1) / 2 * np.log1p(far**2 / FREEDOM)
    return float(tails.sum() + 0.5 * (at[1] / width[1]) ** 2)


def _pull(error: FloatArray | float, spread: float) -> FloatArray:
    """Weights that give squared errors the gradient of Student's t (iteratively reweighted least squares)."""
    answer: FloatArray = np.asarray((FREEDOM + 1) / (FREEDOM + (error / spread) ** 2) / spread**2)
    return answer


def _search(
    logs: Logs, target: FloatArray, spread: float, width: FloatArray, start: FloatArray
) -> tuple[float, FloatArray, FloatArray, FloatArray]:
    """(least loss, where, log errors left, slopes) from one start, by reweighted Gauss-Newton steps."""
    axes: Sequence[int] = (0, 1) if width[1] > 1e-3 else (0,)
    at = start.copy()
    error = target - logs(at)
    best, slopes = _loss(error, spread, at, width), np.zeros((len(target), 2))
    for _ in range(MOST_STEPS):
        for axis in axes:
            aside = at.copy()
            aside[axis] += STEP
            slopes[:, axis] = (logs(aside) - (target - error)) / STEP
        pull = _pull(error, spread)
        prior = np.array([float(_pull(float(at[0]), float(width[0]))), 1.0 / width[1] ** 2])
        normal = (slopes * pull[:, None]).T @ slopes + np.diag(prior)
        move = np.linalg.solve(normal, slopes.T @ (pull * error) - at * prior)
        improved = False
        for part in (1.0, 0.5, 0.2):
            trial = np.clip(at + part * move, -LIMIT, LIMIT)
            left = target - logs(trial)
            value = _loss(left, spread, trial, width)
            if value < best - 1e-9:
                best, at, error, improved = value, trial, left, True
                break
        if not improved or float(np.abs(move).max()) < SMALL:
            break
    return best, at, error, slopes
