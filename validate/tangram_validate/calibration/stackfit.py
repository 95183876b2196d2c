"""Fits the few parameters of software stacks to measured steps: generic, lineage, stack, GPU generation.

The loss is Cauchy's of the log error, every source the same weight, plus a prior in which each logarithm is
normal: what the runs do not determine stays where the prior has it. A stack's prior is its lineage's fit,
whose prior is the generic one, whose prior is the assumed row of the database; beside its five parameters a
stack has one factor on its time scale for each GPU generation that it was seen on, around 1. Where a stack
was seen in one source, what is special to that source's machine goes mostly there, and does not follow the
stack to other GPUs. Cauchy's loss because whole sources can be outliers, which under Huber's would drag the
generic stack along.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tangram_sim.opgraph import FloatArray
from tangram_validate.calibration.novelty import novelty
from tangram_validate.calibration.surfaces import Mixtures, StackParameters
from tangram_validate.published.stacks import DEEPSPEED, GENERIC, LINEAGES, lineage

Mask = NDArray[np.bool_]
Names = NDArray[np.str_]

WIDTH = 0.1  # log errors well above this hardly pull
ROWS = 10.0  # independent rows that a source is taken for, however many it has
# 0.35 ms for the 14 launches of a block forward, about what eager PyTorch takes.
ASSUMED = StackParameters(dispatch_s=25e-6)
# Standard deviations of the logarithms of the parameters: of generic around the assumed, of lineages around
# generic and of stacks around their lineage: less free where what was seen elsewhere is the better guess. Of
# TIGHT the half of what it was is best on sources left out whole (9.3 % in the median; the whole 10.0, three
# tenths 9.4). The factor of attention is one for all: a stack's own is worth .1 % there.
ONE = 0.01
LOOSE = StackParameters(0.15, 0.2, 0.8, 0.2, 0.3)
KIN = StackParameters(0.025, ONE, 0.4, 0.06, 0.09)
# Of DeepSpeed's engine, whose factors of communication are its own: it waits where others overlap.
WAITING = KIN._replace(tensor_exposed=LOOSE.tensor_exposed, data_exposed=LOOSE.data_exposed)
TIGHT = StackParameters(0.05, ONE, 0.2, 0.125, 0.175)
GENERATION = 0.15  # the same of a generation's factor under a stack
NO_GENERATIONS = 1e-4  # of generic and lineages: what is left of their runs' generations is the stacks'
STARTS = (5e-6, 20e-6, 60e-6)  # dispatch: host-bound and device-bound optima can both be local ones
DISPATCH_AXIS = StackParameters._fields.index("dispatch_s")
LOWEST = StackParameters(0.5, 0.3, 1e-6, 0.1, 0.1)
HIGHEST = StackParameters(2.5, 3.0, 200e-6, 4.0, 4.0)
STEP = 0.02  # of logarithms, for slopes
MOST_STEPS = 25


@dataclass(frozen=True, slots=True)
class MeasuredRuns:
    """N measured runs: what they took, where they come from, and what would be predicted of them."""

    measured: FloatArray  # seconds
    source: Names
    stack: Names
    generation: Names  # of the GPU: its architecture
    fold: NDArray[np.int64]  # the same for equal configurations
    surface: Mixtures

    def take(self, mask: Mask | NDArray[np.int64]) -> "MeasuredRuns":
        """The runs that `mask` selects: booleans [N] or indices."""
        return MeasuredRuns(
            self.measured[mask],
            self.source[mask],
            self.stack[mask],
            self.generation[mask],
            self.fold[mask],
            self.surface.take(mask),
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters of one stack, factors on its time scale by GPU generation, and their standard errors."""

    parameters: StackParameters
    generations: Mapping[str, float] = field(default_factory=dict)  # of others: 1
    sigma: StackParameters = LOOSE  # standard deviations of logarithms
    scale_sigma: Mapping[str, float] = field(default_factory=dict)  # of time scale x factor, by generation
    rows: Mapping[str, int] = field(default_factory=dict)  # runs it was fitted to, by generation

    def seconds(self, cases: MeasuredRuns) -> FloatArray:
        """Steps of all runs, [N]."""
        return cases.surface.seconds(self.parameters, self._factors(cases))

    def _factors(self, cases: MeasuredRuns) -> FloatArray:
        return np.array([self.generations.get(item, 1.0) for item in cases.generation.tolist()])

    def moved(self, log_scale: float, log_host: float) -> "Fit":
        """A copy with costs multiplied by exp(`log_scale`) and host time by exp(`log_scale + log_host`)."""
        scale, attention, dispatch, tensor, data = self.parameters
        factor, host = math.exp(log_scale), math.exp(log_scale + log_host)
        moved = StackParameters(scale * factor, attention, dispatch * host, tensor * factor, data * factor)
        return replace(self, parameters=moved)

    def error_of(self, generation: str) -> float:
        """Standard deviation of the logarithm of the time scale on GPUs of a generation."""
        return self.scale_sigma.get(generation, math.hypot(self.sigma.time_scale, GENERATION))

    def doubt(self, cases: MeasuredRuns) -> FloatArray:
        """Log standard deviation of each predicted step due to the parameters' standard errors, [N]."""
        slopes = slopes_of(cases.surface, self.parameters, self._factors(cases))
        scale = np.array([self.error_of(item) for item in cases.generation.tolist()])
        sigma = np.broadcast_to(np.asarray(self.sigma), slopes.shape).copy()
        sigma[:, 0] = scale
        total: FloatArray = np.sqrt(((slopes * sigma) ** 2).sum(axis=1))
        return total


def slopes_of(surface: Mixtures, at: StackParameters, factors: FloatArray) -> FloatArray:
    """Slopes of log seconds by the logarithm of each of the five parameters, [N, 5]."""
    logs = np.log(surface.seconds(at, factors))
    found = np.zeros((len(logs), len(at)))
    for axis, value in enumerate(at):
        aside = StackParameters(*(x if n != axis else value * math.exp(STEP) for n, x in enumerate(at)))
        found[:, axis] = (np.log(surface.seconds(aside, factors)) - logs) / STEP
    return found


def fit(
    cases: MeasuredRuns,
    prior: Fit,
    sigma: StackParameters = LOOSE,
    generation: float = GENERATION,
    starts: Sequence[StackParameters] = (),
) -> Fit:
    """The most probable parameters of one stack; the prior itself where there are no runs.

    `sigma` and `generation` are the widths of the prior. Deterministic: damped Gauss-Newton steps on
    logarithms with Cauchy's weights, from `starts`, else from the prior with three host times.
    """
    if not len(cases.measured):
        return prior
    problem = _Problem.of(cases, prior, sigma, generation)
    if not starts:
        starts = [prior.parameters._replace(dispatch_s=seconds) for seconds in STARTS]
    best = min((problem.search(np.log(start)) for start in starts), key=lambda item: item[0])
    return problem.fit(best[1])


@dataclass(frozen=True, slots=True)
class _Problem:
    """Minus the log probability of five logarithms and one more per generation, and its minimum."""

    cases: MeasuredRuns
    prior: Fit
    target: FloatArray  # log of measured seconds
    weights: FloatArray
    kinds: tuple[str, ...]  # generations with runs
    place: NDArray[np.int64]  # entry of `kinds` of each run
    centre: FloatArray  # [5 + kinds]
    width: FloatArray

    @classmethod
    def of(cls, cases: MeasuredRuns, prior: Fit, sigma: StackParameters, generation: float) -> "_Problem":
        _, at, counts = np.unique(cases.source, return_inverse=True, return_counts=True)
        kinds, place = np.unique(cases.generation, return_inverse=True)
        names = tuple(kinds.tolist())
        return cls(
            cases,
            prior,
            np.log(cases.measured),
            ROWS / counts[at],
            names,
            place,
            np.array([*np.log(prior.parameters), *([0.0] * len(names))]),
            np.array([*sigma, *([generation] * len(names))]),
        )

    def logs(self, at: FloatArray) -> FloatArray:
        """Log seconds of every run, [N]."""
        five = StackParameters(*np.exp(at[: len(LOWEST)]))
        answer: FloatArray = np.log(self.cases.surface.seconds(five, np.exp(at[len(LOWEST) :])[self.place]))
        return answer

    def loss(self, at: FloatArray, error: FloatArray) -> float:
        """Cauchy's loss of errors [N] and the prior's."""
        cauchy = np.log1p(0.5 * (error / WIDTH) ** 2)
        return float(self.weights @ cauchy + 0.5 * np.sum(((at - self.centre) / self.width) ** 2))

    def slopes(self, at: FloatArray, logs: FloatArray) -> FloatArray:
        """Slopes of the logs by every logarithm, [N, 5 + kinds]; a run answers to one generation only."""
        five, factors = len(LOWEST), np.exp(at[len(LOWEST) :])[self.place]
        found = np.zeros((len(logs), len(at)))
        found[:, :five] = slopes_of(self.cases.surface, StackParameters(*np.exp(at[:five])), factors)
        aside = at.copy()
        aside[five:] += STEP
        found[np.arange(len(logs)), five + self.place] = (self.logs(aside) - logs) / STEP
        return found

    def normal(self, slopes: FloatArray, error: FloatArray) -> FloatArray:
        """The curvature of the loss, [5 + kinds, 5 + kinds]."""
        pull = self.weights / WIDTH**2 / (1 + 0.5 * (error / WIDTH) ** 2)
        answer: FloatArray = (slopes * pull[:, None]).T @ slopes + np.diag(1 / self.width**2)
        return answer

    def search(self, start: FloatArray) -> tuple[float, FloatArray]:
        """(least loss, where) from one start of the five logarithms."""
        lowest = np.concatenate([np.log(LOWEST), np.full(len(self.kinds), -1.0)])
        highest = np.concatenate([np.log(HIGHEST), np.full(len(self.kinds), 1.0)])
        at = np.clip(np.concatenate([start, self.centre[len(LOWEST) :]]), lowest, highest)
        logs = self.logs(at)
        best, damping = self.loss(at, logs - self.target), 1e-2
        for _ in range(MOST_STEPS):
            error = logs - self.target
            slopes = self.slopes(at, logs)
            normal = self.normal(slopes, error)
            pull = self.weights / WIDTH**2 / (1 + 0.5 * (error / WIDTH) ** 2)
            downhill = slopes.T @ (pull * error) + (at - self.centre) / self.width**2
            moved = 0.0
            while damping < 1e4:
                move = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -downhill)
                trial = np.clip(at + np.clip(move, -0.5, 0.5), lowest, highest)
                trial_logs = self.logs(trial)
                value = self.loss(trial, trial_logs - self.target)
                if value < best - 1e-9:
                    moved = float(np.abs(trial - at).max())
                    at, logs, best, damping = trial, trial_logs, value, max(damping / 5, 1e-6)
                    break
                damping *= 4
            if moved < 1e-3:
                break
        return best, at

    def fit(self, at: FloatArray) -> Fit:
        """The answer at some logarithms, with its standard errors."""
        logs = self.logs(at)
        spread = np.linalg.inv(self.normal(self.slopes(at, logs), logs - self.target))
        five, scale_sigma = len(LOWEST), {}
        for number, name in enumerate(self.kinds):
            axis = five + number
            scale_sigma[name] = math.sqrt(spread[0, 0] + spread[axis, axis] + 2 * spread[0, axis])
        factors = dict(zip(self.kinds, np.exp(at[five:]).tolist(), strict=True))
        counts = np.bincount(self.place, minlength=len(self.kinds)).tolist()
        return Fit(
            StackParameters(*np.exp(at[:five]).tolist()),
            factors,
            StackParameters(*np.sqrt(np.diag(spread)[:five]).tolist()),
            scale_sigma,
            dict(zip(self.kinds, counts, strict=True)),
        )


def fit_stacks(cases: MeasuredRuns, use: Mask, near: Mapping[str, Fit] | None = None) -> dict[str, Fit]:
    """Fits of `generic`, of each lineage that has runs in use, and of each stack of theirs or with runs.

    Lineages are found under "lineage NAME". Host time per kernel is seen in few sources, all on DeepSpeed's
    engine: other lineages do not inherit it. Nor do factors of communication pass between that engine, which
    waits for it (`published.habits`), and the others, which run it beside products.

    `near`: fits of nearly the same runs, to start from.
    """

    def one(name: str, mask: Mask, prior: Fit, sigma: StackParameters, generation: float) -> Fit:
        starts = [near[name].parameters] if near and name in near else []
        return fit(cases.take(mask), prior, sigma, generation, starts)

    engine = np.isin(cases.stack, DEEPSPEED)
    everyone = one("everyone", use, Fit(ASSUMED), LOOSE, NO_GENERATIONS)
    others = one("others", use & ~engine, Fit(ASSUMED), LOOSE, NO_GENERATIONS)
    apart = others.parameters
    parameters = everyone.parameters._replace(
        dispatch_s=apart.dispatch_s, tensor_exposed=apart.tensor_exposed, data_exposed=apart.data_exposed
    )
    unseen = _wider(_wider(everyone.sigma, KIN), TIGHT)  # of a stack that is none of those seen
    generic = Fit(parameters, sigma=unseen)
    # What waits for its communication takes as long as it does: no factor is inherited.
    alone = parameters._replace(tensor_exposed=ASSUMED.tensor_exposed, data_exposed=ASSUMED.data_exposed)
    waiting = Fit(alone, sigma=unseen)
    found = {"everyone": everyone, "others": others, GENERIC: generic}
    for name, of in LINEAGES.items():
        mask = use & np.isin(cases.stack, of)
        prior, width = (waiting, WAITING) if of is DEEPSPEED else (generic, KIN)
        found[_named(name)] = one(_named(name), mask, prior, width, NO_GENERATIONS)
    members = {stack for of in LINEAGES.values() for stack in of}
    for stack in sorted({*cases.stack[use].tolist(), *members} - {GENERIC}):
        prior = found.get(_named(lineage(stack)), generic)
        inherited = Fit(prior.parameters, sigma=_wider(prior.sigma, TIGHT))
        found[stack] = one(stack, use & (cases.stack == stack), inherited, TIGHT, GENERATION)
    return found


def _wider(one: StackParameters, other: StackParameters) -> StackParameters:
    return StackParameters(*(math.hypot(a, b) for a, b in zip(one, other, strict=True)))


def _named(name: str) -> str:
    return f"lineage {name}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Predictions of N runs, each by fits that did not see its group."""

    seconds: FloatArray
    novelty: NDArray[np.int64]  # how new the run is to the rest: entry of novelty.CLASSES
    doubt: FloatArray  # log standard deviation that the errors of the parameters make
    fits: Mapping[str, Mapping[str, Fit]]  # by the group left out


def left_out(
    cases: MeasuredRuns,
    groups: NDArray[np.generic],
    near: Mapping[str, Fit] | None = None,
    held: MeasuredRuns | None = None,
) -> LeftOut:
    """Every group left out in turn; a lone group is not: it is what everything is fitted to.

    `held`: the same runs as they are predicted when their group is left out, where that is not as `cases`.
    """
    predicted = held or cases
    n = len(cases.measured)
    seconds, classes, doubt = np.zeros(n), np.zeros(n, np.int64), np.zeros(n)
    found: dict[str, Mapping[str, Fit]] = {}
    for group in np.unique(groups):
        out = groups == group
        use = out if out.all() else ~out
        fits = found[str(group)] = fit_stacks(cases, use, near)
        for stack in sorted(set(cases.stack[out].tolist())):
            mask = out & (cases.stack == stack)
            own, runs = fits.get(stack, fits[GENERIC]), predicted.take(mask)
            seconds[mask], doubt[mask] = own.seconds(runs), own.doubt(runs)
        classes[out] = novelty(cases.stack, cases.generation, use)[out]
    return LeftOut(seconds, classes, doubt, found)
