"""Fits the few parameters of software stacks to measured steps, and says how well they do on runs left out.

The loss is Cauchy's of the log error, every source the same weight, plus a prior in which each logarithm is
normal: what the runs do not determine stays where the prior has it. A stack's prior is the generic fit,
whose own prior is the assumed row of the database. Cauchy's loss because whole sources can be outliers, which
under Huber's would drag the generic stack along.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.opgraph import FloatArray
from tangram_sim.validation.calibration.surfaces import Parameters, Surface
from tangram_sim.validation.published.stacks import DEEPSPEED, GENERIC

Mask = NDArray[np.bool_]
Names = NDArray[np.str_]

WIDTH = 0.1  # log errors well above this hardly pull
ROWS = 10.0  # independent rows that a source is taken for, however many it has
# 0.35 ms for the 14 launches of a block forward, about what eager PyTorch takes.
ASSUMED = Parameters(dispatch_s=25e-6)
# Standard deviations of the logarithms of the parameters: of generic around the assumed, and of
# stacks around generic: less free where what was seen elsewhere is the better guess.
LOOSE = Parameters(0.15, 0.2, 0.8, 0.2, 0.3)
TIGHT = Parameters(0.3, 0.3, 0.4, 0.35, 0.5)
STARTS = (5e-6, 20e-6, 60e-6)  # dispatch: host-bound and device-bound optima can both be local ones
DISPATCH_AXIS = Parameters._fields.index("dispatch_s")
LOWEST = Parameters(0.5, 0.3, 1e-6, 0.1, 0.1)
HIGHEST = Parameters(2.5, 3.0, 200e-6, 4.0, 4.0)


@dataclass(frozen=True, slots=True)
class Cases:
    """N measured runs: what they took, where they come from, and what would be predicted of them."""

    measured: FloatArray  # seconds
    source: Names
    stack: Names
    fold: NDArray[np.int64]  # the same for equal configurations
    surface: Surface


def fit(
    surface: Surface,
    measured: FloatArray,
    source: Names,
    prior: Parameters = ASSUMED,
    sigma: Parameters = LOOSE,
) -> Parameters:
    """The most probable parameters of one stack; `prior` itself where there are no runs.

    Deterministic: a compass search on logarithms from three starts.
    """
    if not len(measured):
        return prior
    loss, found = _loss(surface, measured, source, prior, sigma), []
    for dispatch in STARTS:
        start = np.log(prior)
        start[DISPATCH_AXIS] = math.log(dispatch)
        found.append(_compass(loss, start))
    return Parameters(*np.exp(min(found, key=lambda one: one[0])[1]).tolist())


def _loss(
    surface: Surface, measured: FloatArray, source: Names, prior: Parameters, sigma: Parameters
) -> Callable[[FloatArray], float]:
    """Minus the log of the probability of logarithms of parameters, [5] -> float."""
    _, place, counts = np.unique(source, return_inverse=True, return_counts=True)
    weights = ROWS / counts[place]
    centre, width, target = np.log(prior), np.asarray(sigma), np.log(measured)

    def loss(at: FloatArray) -> float:
        error = (np.log(surface.seconds(Parameters(*np.exp(at)))) - target) / WIDTH
        cauchy = np.log1p(0.5 * error * error)
        return float(weights @ cauchy + 0.5 * np.sum(((at - centre) / width) ** 2))

    return loss


def deviations(
    surface: Surface,
    measured: FloatArray,
    source: Names,
    prior: Parameters,
    sigma: Parameters,
    fitted: Parameters,
) -> Parameters:
    """Standard deviations of the logarithms of fitted parameters: how fast the loss rises beside each."""
    loss, at = _loss(surface, measured, source, prior, sigma), np.log(fitted)
    found = []
    for axis, (reach, widest) in enumerate(zip((0.03, 0.1, 0.3, 0.2, 0.2), sigma, strict=True)):
        aside = np.zeros(len(at))
        aside[axis] = reach
        curvature = (loss(at + aside) + loss(at - aside) - 2 * loss(at)) / reach**2
        found.append(min(1 / math.sqrt(curvature), widest) if curvature > 0 else widest)
    return Parameters(*found)


def _compass(loss: Callable[[FloatArray], float], start: FloatArray) -> tuple[float, FloatArray]:
    """(least loss, where): steps along axes and the last direction that helped, halved when none does."""
    lowest, highest = np.log(LOWEST), np.log(HIGHEST)
    at, best, step = np.clip(start, lowest, highest), math.inf, 0.4
    best = loss(at)
    while step > 0.002:
        before, moved = best, at
        for axis in range(len(at)):
            for sign in (1.0, -1.0):
                trial = at.copy()
                trial[axis] = np.clip(trial[axis] + sign * step, lowest[axis], highest[axis])
                value = loss(trial)
                if value < best - 1e-12:
                    best, at = value, trial
                    break
        trial = np.clip(2 * at - moved, lowest, highest)
        if best < before and (value := loss(trial)) < best:
            best, at = value, trial
        if best >= before:
            step /= 2
    return best, at


def priors(cases: Cases, use: Mask) -> dict[str, Parameters]:
    """Where the fit of each stack starts: `generic`, which is every run's, and what the host needs by engine.

    Host time per kernel is seen in few sources, all on DeepSpeed's engine: other stacks do not inherit it.
    """

    def one(mask: Mask, prior: Parameters, sigma: Parameters) -> Parameters:
        return fit(cases.surface.take(mask), cases.measured[mask], cases.source[mask], prior, sigma)

    engine = np.isin(cases.stack, DEEPSPEED)
    everyone = one(use, ASSUMED, LOOSE)
    generic = everyone._replace(dispatch_s=one(use & ~engine, ASSUMED, LOOSE).dispatch_s)
    kin = everyone._replace(dispatch_s=one(use & engine, everyone, TIGHT).dispatch_s)
    found = {GENERIC: generic} | dict.fromkeys(DEEPSPEED, kin)
    return {stack: found.get(stack, generic) for stack in (*found, *sorted(set(cases.stack[use].tolist())))}


def fit_stacks(cases: Cases, use: Mask) -> dict[str, Parameters]:
    """Parameters of `generic`, of each stack that has runs in use, and of DeepSpeed's kin."""
    fits = {}
    for stack, prior in priors(cases, use).items():
        mask = use & (cases.stack == stack) & (stack != GENERIC)
        fits[stack] = fit(cases.surface.take(mask), cases.measured[mask], cases.source[mask], prior, TIGHT)
    return fits


def predict(cases: Cases, fits: Mapping[str, Parameters]) -> FloatArray:
    """Seconds of every run under the fit of its stack, or under `generic`, [N]."""
    seconds = np.zeros(len(cases.measured))
    for stack in sorted(set(cases.stack.tolist())):
        mask = cases.stack == stack
        seconds[mask] = cases.surface.take(mask).seconds(fits.get(stack, fits[GENERIC]))
    return seconds


def left_out(cases: Cases, groups: NDArray[np.generic]) -> tuple[FloatArray, Mask]:
    """(seconds, whether the run's stack had other runs to be fitted to), each group left out in turn."""
    seconds, known = np.zeros(len(cases.measured)), np.zeros(len(cases.measured), bool)
    for group in np.unique(groups):
        out = groups == group
        fits = fit_stacks(cases, ~out)
        seconds[out] = predict(cases, fits)[out]
        known[out] = np.isin(cases.stack[out], cases.stack[~out]) & (cases.stack[out] != GENERIC)
    return seconds, known


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Figures of a set of predictions, as fractions, every source the same weight."""

    macro_median: float  # mean of the sources' medians
    median_of_medians: float
    macro_p90: float
    bias: float  # mean of the sources' median signed errors
    by_source: Mapping[str, tuple[int, float, float, float]]  # rows, median, p90, bias


def accuracy(cases: Cases, seconds: FloatArray) -> Accuracy:
    """How far `seconds` are from what was measured."""
    by_source = {}
    for source in sorted(set(cases.source.tolist())):
        mask = cases.source == source
        error = seconds[mask] / cases.measured[mask] - 1
        by_source[source] = (
            int(mask.sum()),
            float(np.median(np.abs(error))),
            float(np.percentile(np.abs(error), 90)),
            float(np.median(error)),
        )
    medians, ninetieths, biases = np.array([figures[1:] for figures in by_source.values()]).T
    return Accuracy(
        float(medians.mean()),
        float(np.median(medians)),
        float(ninetieths.mean()),
        float(biases.mean()),
        by_source,
    )
