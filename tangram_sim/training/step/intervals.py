"""Prediction errors: 90 % intervals of step and peak, and whether two plans are statistically tied.

Errors of factors are from the simulated critical path (`training/step/factors.py`), further errors from the
residual rows of hwdb/efficiency; docs/models/uncertainty.md has the equations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.clusters import Gpu
from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.efficiency import Residuals
from tangram_sim.models import has_experts
from tangram_sim.placement.ranks import Placement
from tangram_sim.sim.fast import path_totals
from tangram_sim.sim.timeline import Timeline
from tangram_sim.training.job import Job
from tangram_sim.training.stage.sharing import atoms_held
from tangram_sim.training.step.factors import (
    NETWORK,
    ClassShares,
    PathSeconds,
    StageKind,
    Totals,
    difference_variance,
    log_sigma,
    step_factors,
    variance,
)
from tangram_sim.training.step.lowered import LoweredStep, Lowering

Z90 = 1.6448536269514722  # standard normal quantile at 95 %: both tails together 10 %


@dataclass(frozen=True)
class Uncertainty:
    """Errors of one predicted step."""

    step_s: float
    factor_s: Mapping[str, float]  # seconds of the critical path per factor; classes and stacks overlap
    factor_sigma: Mapping[str, float]  # log standard deviation of each
    residual: Residuals  # of the least known GPU kind

    @property
    def factors_sigma(self) -> float:
        """Log standard deviation of the step from its factors."""
        shares = {name: seconds / self.step_s for name, seconds in self.factor_s.items()}
        own = math.sqrt(difference_variance(shares, {}, self.factor_sigma))
        return own * self.residual.prior_share

    @property
    def sigma(self) -> float:
        """Log standard deviation of the step, residual included."""
        return math.hypot(self.factors_sigma, self.residual.step)

    @property
    def step_s_low(self) -> float:
        """Lower end of the 90 % interval."""
        return self.step_s * math.exp(-Z90 * self.sigma)

    @property
    def step_s_high(self) -> float:
        """Upper end of the 90 % interval."""
        return self.step_s * math.exp(Z90 * self.sigma)

    def stretched(self, step_s: float) -> "Uncertainty":
        """The same relative errors for a step of `step_s` seconds."""
        factor = step_s / self.step_s
        return replace(
            self,
            step_s=step_s,
            factor_s={name: seconds * factor for name, seconds in self.factor_s.items()},
        )

    def doubting_network(self, sigma: float) -> "Uncertainty":
        """This uncertainty with a further error of the network's rate: `sigma`, a log standard deviation."""
        name = f"link {NETWORK.name}"
        widened = math.hypot(self.factor_sigma.get(name, 0.0), sigma)
        return replace(self, factor_sigma={**self.factor_sigma, name: widened})

    def peak_high(self, peak_bytes: float) -> float:
        """Bytes that the true peak exceeds with 5 % probability, given a predicted peak."""
        return peak_bytes * math.exp(Z90 * self.residual.memory)


def uncertainty(
    step: LoweredStep,
    lowering: Lowering,
    timeline: Timeline | None = None,
    shares: ClassShares | None = None,
) -> Uncertainty:
    """Errors of a lowered step; `timeline` if it was simulated with shared links."""
    template, stages = step.template, step.pipeline.stages
    if timeline is None:
        durations, source = template.table(step.times)[None, :], template.slot
    else:  # each op as long as it was stretched to
        durations, source = (
            (timeline.end_s - timeline.start_s)[None, :],
            np.arange(len(template.slot), dtype=np.int32),
        )
    slots = path_totals(template.graph, source, durations, template.slot, template.slots)
    path = PathSeconds.of(slots, template.stages, template.order.chunks)
    kinds = [_kind(step, number, lowering) for number in range(len(stages))]
    totals = step_factors(
        path,
        kinds,
        template.order.chunks,
        shares or ClassShares(),
        roads([stage.ranks for stage in stages], lowering.placement),
    )
    job, hwdb = lowering.prices.job, lowering.prices.hwdb
    gpus = [kind.pricer.setting.island.gpu for kind in kinds]
    residual = worst_residual(gpus, job, hwdb, has_experts(lowering.prices.model))
    seconds = float(slots.sum())
    return Uncertainty(
        seconds, {name: float(value[0]) for name, value in totals.seconds.items()}, totals.sigma, residual
    )


def _kind(step: LoweredStep, number: int, lowering: Lowering) -> StageKind:
    """Pricer and slices behind a stage's times; if mixed, those of the slowest part's longest runs."""
    stage = step.pipeline.stages[number]
    if not step.holders:
        held = atoms_held(stage, lowering.prices.model.layers)
        island = lowering.placement.island(stage.ranks)
        pricer = lowering.prices.pricer(island, stage.layout, step.pipeline.microbatch)
        return StageKind(pricer, tuple(held), (number,))
    seconds = [
        sum(chunk.forward_s + chunk.backward_s for chunk in step.of_part(number, part))
        for part in range(len(stage.parts))
    ]
    part = stage.parts[seconds.index(max(seconds))]
    runs = [
        max(runs, key=lambda run: run.stop - run.start)
        for runs in lowering.parts.runs(stage, part, step.holders)
    ]
    return StageKind(runs[0].pricer, tuple((run.start, run.stop) for run in runs), (number,))


def roads(stages: Sequence[tuple[int, ...]], placement: Placement) -> dict[int, tuple[str, float]]:
    """(factor, sigma) of the link after each stage, and of tied embeddings under key -1.

    Stages are given by their ranks.
    """
    found = {}
    for boundary in range(-1, len(stages)):
        before = stages[max(boundary, 0)]
        after = stages[-1] if boundary < 0 else stages[(boundary + 1) % len(stages)]
        near = placement.same_domain(before, after)
        link = placement.island(before).intra if near else NETWORK
        found[boundary] = f"link {link.name}", log_sigma(placement.hwdb.link_efficiency(link))
    return found


def worst_residual(gpus: Sequence[Gpu], job: Job, hwdb: Hwdb, mixture: bool = False) -> Residuals:
    """Residual errors of a job on several GPU kinds: those of the kind with the largest.

    `mixture`: the model has experts, whose steps (not peaks) are less certain.
    """
    kinds = dict.fromkeys(gpus)
    found = [hwdb.residuals(gpu, job.precision.compute, job.stack).of(mixture) for gpu in kinds]
    return max(found, key=lambda residuals: (residuals.step, residuals.memory))


def sigmas(totals: Totals, step_s: Floats, residual: Residuals) -> Floats:
    """Log standard deviations of K steps, [K]."""
    spread: Floats = np.sqrt(variance(totals, step_s) * residual.prior_share**2 + residual.step**2)
    return spread


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ratio of one step's time to another's, with its 90 % interval."""

    ratio: float
    ratio_low: float
    ratio_high: float

    @property
    def told_apart(self) -> bool:
        """Whether the interval excludes 1, so that it is clear which step is faster."""
        return not self.ratio_low <= 1.0 <= self.ratio_high


def compare(one: Uncertainty, best: Uncertainty, same: bool = False) -> Comparison:
    """Ratio of `one` to `best`: errors that both share cancel, each plan keeps its own residual.

    `same`: they are the same plan, whose errors cancel completely.
    """
    ratio = one.step_s / best.step_s
    shares = [{name: s / each.step_s for name, s in each.factor_s.items()} for each in (one, best)]
    known = max(one.residual.prior_share, best.residual.prior_share)
    factors = difference_variance(shares[0], shares[1], {**one.factor_sigma, **best.factor_sigma})
    own = 0.0 if same else math.hypot(one.residual.plan, best.residual.plan)
    width = math.exp(Z90 * math.hypot(math.sqrt(factors) * known, own))
    return Comparison(ratio, ratio / width, ratio * width)
