"""How wide intervals must be to hold what was left out: residuals, a share of the errors of factors, peaks.

Six numbers, those of the least mean interval score (Gneiting & Raftery, JASA 2007, section 6.2), every source
the same weight; then one factor, the least with which 90 % of sources left out of these numbers lie inside.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tangram_sim.opgraph import FloatArray
from tangram_sim.training.step.intervals import Z90
from tangram_validate.calibration.novelty import CLASSES

SISTERS = CLASSES.index("sister stack")
COVERED = 0.90
FEWEST_SOURCES = 3  # from which on leaving one out says how wide the others' widths must be
SLIPPED = 0.6  # log error of a peak
# What the score is charged for a width that is added for some runs only, per log standard deviation: of two
# ways to hold the same sources the one that tells fewer classes apart.
CHARGE = 0.002
SHARE, OWN, NEW_GPU, NEW_STACK, MIXTURE, UNMEASURED = range(6)
START = (0.5, 0.1, 0.05, 0.05, 0.15, 0.05)
LOWEST, HIGHEST = 1e-3, 2.0


@dataclass(frozen=True, slots=True)
class Errors:
    """N predictions left out: log(measured / predicted), what explains it, where it comes from."""

    log_error: FloatArray
    factors_sigma: FloatArray
    source: NDArray[np.str_]
    novelty: NDArray[np.int64]  # into novelty.CLASSES
    measured: NDArray[np.bool_]  # the GPU kind has kernel tables
    mixture: NDArray[np.bool_]  # of experts
    memory: FloatArray  # log(measured / predicted) of the peaks there are, any length
    memory_source: NDArray[np.str_]
    unfitted: FloatArray  # the same of those peaks under the assumed overheads, as of a stack never fitted
    whole: NDArray[np.bool_] | None = (
        None  # the whole source was left out, kernels and all; None: of all rows
    )

    def take(self, mask: NDArray[np.bool_], memory: NDArray[np.bool_]) -> "Errors":
        """The steps that `mask` selects, [N], and the peaks that `memory` selects, which count apart."""
        return Errors(
            self.log_error[mask],
            self.factors_sigma[mask],
            self.source[mask],
            self.novelty[mask],
            self.measured[mask],
            self.mixture[mask],
            self.memory[memory],
            self.memory_source[memory],
            self.unfitted[memory],
            None if self.whole is None else self.whole[mask],
        )

    def without(self, source: str) -> "Errors":
        """These errors without those of one source."""
        return self.take(self.source != source, self.memory_source != source)


@dataclass(frozen=True, slots=True)
class Widths:
    """Log standard deviations: of a step beyond its factors, from plan to plan, of a peak.

    What a GPU kind without tables and a mixture of experts add is independent of the rest: variances add up.
    """

    residual: tuple[float, ...]  # as novelty.CLASSES
    share: tuple[float, ...]  # the same: of what factors are said to err by, 1 at most
    source: tuple[float, ...]  # the same: what the rows of one source share
    unmeasured: float
    mixture: tuple[float, ...]  # as novelty.CLASSES
    plan: float
    memory: float
    memory_unfitted: float  # of a stack whose peaks were never measured

    def sigma(self, errors: Errors) -> FloatArray:
        """Log standard deviation of every step of `errors`, [N]: factors, stack, what nobody measured."""
        of_mixture = np.array(self.mixture)[errors.novelty]
        added = np.where(errors.measured, 0.0, self.unmeasured**2)
        added = added + np.where(errors.mixture, of_mixture**2, 0.0)
        own, share = np.array(self.residual)[errors.novelty], np.array(self.share)[errors.novelty]
        total: FloatArray = np.sqrt((share * errors.factors_sigma) ** 2 + own**2 + added)
        return total


def _weights(source: NDArray[np.str_]) -> FloatArray:
    """Weights by which every source counts the same, [N]."""
    _, place, counts = np.unique(source, return_inverse=True, return_counts=True)
    weights: FloatArray = 1.0 / counts[place]
    return weights


def interval_score(log_error: FloatArray, half_width: FloatArray) -> FloatArray:
    """Scores of 90 % intervals of logarithms, [N]: the width, and 20 times what an error is beyond."""
    beyond = np.maximum(np.abs(log_error) - half_width, 0.0)
    scores: FloatArray = 2.0 * half_width + 2.0 / (1.0 - COVERED) * beyond
    return scores


def _sigma(at: FloatArray, errors: Errors) -> FloatArray:
    """Log standard deviations [N] under the six numbers `at`."""
    own = at[OWN] ** 2 + np.where(errors.novelty >= 1, at[NEW_GPU] ** 2, 0.0)
    own = own + np.where(errors.novelty >= SISTERS, at[NEW_STACK] ** 2, 0.0)
    own = own + np.where(errors.mixture, at[MIXTURE] ** 2, 0.0)
    own = own + np.where(errors.measured, 0.0, at[UNMEASURED] ** 2)
    total: FloatArray = np.sqrt((min(at[SHARE], 1.0) * errors.factors_sigma) ** 2 + own)
    return total


def sharpest(errors: Errors) -> FloatArray:
    """The six numbers of the least mean interval score: share of factors, then log standard deviations.

    Of a known stack, and what is added for a new GPU under it, for a stack never fitted, for a mixture, for a
    GPU kind without kernel tables. Nelder-Mead on logarithms from one start: the same on every machine.
    """
    weights = _weights(errors.source)
    weights = weights / weights.sum()
    bounds = [(math.log(LOWEST), math.log(HIGHEST))] * len(START)

    def loss(logs: FloatArray) -> float:
        at = np.exp(logs)
        score = float(weights @ interval_score(errors.log_error, Z90 * _sigma(at, errors)))
        return score + CHARGE * float(at[NEW_GPU:].sum())

    options = {"maxiter": 1000, "xatol": 1e-3, "fatol": 1e-6}
    found = minimize(loss, np.log(START), method="Nelder-Mead", bounds=bounds, options=options)
    answer: FloatArray = np.exp(found.x)
    return answer


def factor_needed(errors: Errors) -> float:
    """The least factor, at least 1, on widths made without a source with which 90 % of its rows lie inside.

    Conformal prediction with scaled scores (Lei et al., JASA 2018), every source left out once. Without the
    correction for few sources, which asks for the widest of all: its intervals score worse than those of
    twice as many misses.
    """
    names = np.unique(errors.source)
    if len(names) < FEWEST_SOURCES:
        return 1.0
    score = np.zeros(len(errors.source))
    for name in names.tolist():
        own = errors.source == name
        mine = errors.take(own, errors.memory_source == name)
        score[own] = np.abs(mine.log_error) / (Z90 * _sigma(sharpest(errors.without(name)), mine))
    weights = _weights(errors.source)
    order = np.argsort(score, kind="stable")
    heap = np.cumsum(weights[order]) / weights.sum()
    place = min(int(np.searchsorted(heap, COVERED - 1e-9)), len(score) - 1)
    return max(float(score[order[place]]), 1.0)


def plan_spread(log_error: FloatArray, source: NDArray[np.str_]) -> float:
    """Log standard deviation of rows around their source's median, the median over sources of three rows."""
    found = [
        1.4826 * float(np.median(np.abs(own - np.median(own))))
        for name in np.unique(source)
        if len(own := log_error[source == name]) >= 3
    ]
    return float(np.median(found)) if found else 0.0


def between_sources(log_error: FloatArray, source: NDArray[np.str_]) -> float:
    """Log standard deviation of the sources' medians around 0: root mean square, the worst fifth clipped."""
    medians = np.sort([abs(float(np.median(log_error[source == name]))) for name in np.unique(source)])
    if not len(medians):
        return 0.0
    clipped = np.minimum(medians, medians[int(0.8 * (len(medians) - 1))])
    return float(np.sqrt((clipped**2).mean()))


def memory_residual(log_error: FloatArray, source: NDArray[np.str_]) -> float:
    """Log standard deviation of peaks whose upper 95 % point covers what was measured.

    At least the root mean square of the errors, every source the same weight: with few sources, what the next
    one is off by is better told by the size of all errors than by the upper ones alone. Errors beyond
    `SLIPPED` are taken for a slip of the table.
    """
    if not len(log_error):
        return 0.0
    weights = _weights(source)
    kept = np.clip(log_error, -SLIPPED, SLIPPED)
    order = np.argsort(kept, kind="stable")
    heap = np.cumsum(weights[order])
    at = min(int(np.searchsorted(heap, 0.5 * (1 + COVERED) * heap[-1] - 1e-9)), len(order) - 1)
    size = float(np.sqrt(weights @ kept**2 / weights.sum()))
    return max(float(kept[order[at]]) / Z90, size)


def calibrate(errors: Errors) -> Widths:
    """Widths from errors of sources that nothing was fitted to.

    The factor needed widens residuals and the share of factors alike, which is at most 1.
    """
    at = sharpest(errors) * factor_needed(errors)
    residual = np.sqrt(np.cumsum([at[OWN] ** 2, at[NEW_GPU] ** 2, at[NEW_STACK] ** 2, 0.0]))
    shared = [between_sources(errors.log_error, errors.source)] * len(CLASSES)
    return Widths(
        residual=tuple(residual.tolist()),
        share=(min(float(at[SHARE]), 1.0),) * len(CLASSES),
        source=tuple(min(item, own) for item, own in zip(shared, residual.tolist(), strict=True)),
        unmeasured=float(at[UNMEASURED]),
        mixture=(float(at[MIXTURE]),) * len(CLASSES),
        plan=plan_spread(errors.log_error, errors.source),
        memory=memory_residual(errors.memory, errors.memory_source),
        memory_unfitted=memory_residual(errors.unfitted, errors.memory_source),
    )
