"""How wide intervals must be to hold what was left out: residuals, shares of the errors of factors, peaks.

Split conformal prediction with scaled scores (Lei et al., JASA 2018), every source the same weight.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tangram_sim.opgraph import FloatArray
from tangram_sim.training.step.intervals import Z90
from tangram_validate.calibration.novelty import CLASSES

COVERED = 0.90
ROWS = 10  # independent rows that a source is taken for, however many it has
FEWEST_SOURCES = 3  # of a stratum that speaks for itself
FEWEST_ROWS = 20
# What a mixture adds to the error of a dense model under a stack whose mixtures nobody ran (balance of
# experts, exchanges, a kernel for each expert): a log standard deviation, and the sources it counts for.
MIXTURE, MIXTURE_SOURCES = 0.2, 2.0
SISTERS = CLASSES.index("sister stack")
SLIPPED = 0.25  # log error of a peak


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


def _weights(source: NDArray[np.str_]) -> tuple[FloatArray, float]:
    """(weights by which every source counts the same, rows they are worth)."""
    _, place, counts = np.unique(source, return_inverse=True, return_counts=True)
    return 1.0 / counts[place], float(np.minimum(counts, ROWS).sum())


def conformal_residual(log_error: FloatArray, factors_sigma: FloatArray, source: NDArray[np.str_]) -> float:
    """The least residual under which 90 % of the rows lie inside, every source the same weight.

    Split conformal prediction with a scaled score (Lei et al., JASA 2018): the share asked for is
    ceil(0.9 (n + 1)) / n of n effective rows, so that a row not seen is inside in 90 % of the cases.
    """
    highest = float(np.abs(log_error).max()) / Z90
    return _least(lambda one: np.hypot(factors_sigma, one), highest, log_error, source)


def conformal_share(
    log_error: FloatArray, factors_sigma: FloatArray, residual: float, source: NDArray[np.str_]
) -> float:
    """The least multiple, at most 1, of the factors' standard deviations that holds 90 % of the rows inside.

    Errors of the parameters of stacks are priors' as much as fits': a class of runs may show that they are
    too wide.
    """
    return _least(lambda one: np.hypot(one * factors_sigma, residual), 1.0, log_error, source)


def _least(
    sigma_at: Callable[[float], FloatArray], highest: float, log_error: FloatArray, source: NDArray[np.str_]
) -> float:
    """The least number up to `highest` at which the sigmas [N] hold the share of rows asked for inside."""
    weights, n = _weights(source)
    share = min(math.ceil(COVERED * (n + 1)) / n, 1.0)

    def holds(number: float) -> bool:
        within = np.abs(log_error) <= Z90 * sigma_at(number) * (1 + 1e-12)
        return float(weights[within].sum() / weights.sum()) >= share - 1e-12

    low, high = 0.0, highest
    if holds(low):
        return low
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


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


def beside_dense(errors: Errors) -> float:
    """Log standard deviation of what mixtures of an unseen stack add, shrunk to `MIXTURE`.

    Each source's median error of mixtures beside that of its dense models, if it has any.
    """
    squares = MIXTURE_SOURCES * MIXTURE**2
    found = np.unique(errors.source[errors.mixture])
    for name in found:
        own = errors.source == name
        mixed, dense = errors.log_error[own & errors.mixture], errors.log_error[own & ~errors.mixture]
        squares += float(np.median(mixed) - (np.median(dense) if len(dense) else 0.0)) ** 2
    return math.sqrt(squares / (MIXTURE_SOURCES + len(found)))


def memory_residual(log_error: FloatArray, source: NDArray[np.str_]) -> float:
    """Log standard deviation of peaks whose upper 95 % point covers what was measured.

    At least the root mean square of the errors, every source the same weight: with few sources, what the next
    one is off by is better told by the size of all errors than by the upper ones alone. Errors beyond
    `SLIPPED` are taken for a slip of the table.
    """
    if not len(log_error):
        return 0.0
    weights, _ = _weights(source)
    kept = np.clip(log_error, -SLIPPED, SLIPPED)
    order = np.argsort(kept, kind="stable")
    heap = np.cumsum(weights[order])
    at = min(int(np.searchsorted(heap, 0.5 * (1 + COVERED) * heap[-1] - 1e-9)), len(order) - 1)
    size = float(np.sqrt(weights @ kept**2 / weights.sum()))
    return max(float(kept[order[at]]) / Z90, size)


def calibrate(errors: Errors) -> Widths:
    """Residuals by novelty, of dense models on measured GPU kinds; then what other kinds and mixtures add.

    A class seen in fewer than three sources, or in few rows, borrows those of the classes that know less (of
    the last: all), and no residual is less than that of a class that knows more. Where enough whole sources
    were left out of a class, they must be held by themselves, too: stacks left out are seen in other rows of
    the same machine. Mixtures of sister and new stacks are a class of their own.
    """
    plain = errors.measured & ~errors.mixture
    whole = np.ones(len(plain), bool) if errors.whole is None else errors.whole

    def residual(use: NDArray[np.bool_], sigma: FloatArray) -> float:
        return conformal_residual(errors.log_error[use], sigma[use], errors.source[use])

    def enough(use: NDArray[np.bool_]) -> bool:
        return len(np.unique(errors.source[use])) >= FEWEST_SOURCES and int(use.sum()) >= FEWEST_ROWS

    def share(use: NDArray[np.bool_], beside: float) -> float:
        """Of the errors of factors; k sources are believed k / (k + 1) against them."""
        error, sigma, source = errors.log_error[use], errors.factors_sigma[use], errors.source[use]
        believed = 1.0 - 1.0 / (1.0 + len(np.unique(source)))
        return 1.0 - believed * (1.0 - conformal_share(error, sigma, beside, source))

    def between(use: NDArray[np.bool_]) -> float:
        return between_sources(errors.log_error[use], errors.source[use])

    found: list[float] = []
    shares: list[float] = []
    shared: list[float] = []
    for number in range(len(CLASSES)):
        own = plain & (errors.novelty == number)
        if not enough(own):
            own = plain & (errors.novelty >= number)
        if not enough(own):
            own = np.ones(len(plain), bool)
        of = [own, own & whole] if enough(own & whole) else [own]
        found.append(max(*(residual(one, errors.factors_sigma) for one in of), *found[-1:], 0.0))
        shares.append(max(share(one, found[-1]) for one in of))
        shared.append(max(*(between(one) for one in of), *shared[-1:], 0.0))
    none = (0.0,) * len(CLASSES)
    widths = Widths(tuple(found), tuple(shares), tuple(shared), 0.0, none, 0.0, 0.0, 0.0)
    dense = ~errors.measured & ~errors.mixture
    unmeasured = residual(dense, widths.sigma(errors)) if dense.any() else 0.0
    widths = replace(widths, unmeasured=unmeasured)
    mixture = residual(errors.mixture, widths.sigma(errors)) if errors.mixture.any() else 0.0
    unseen = max(mixture, beside_dense(errors))
    return replace(
        widths,
        mixture=tuple(unseen if number >= SISTERS else mixture for number in range(len(CLASSES))),
        plan=plan_spread(errors.log_error, errors.source),
        memory=memory_residual(errors.memory, errors.memory_source),
        memory_unfitted=memory_residual(errors.unfitted, errors.memory_source),
    )
