"""Runs predicted: a row's layout lowered and played, silent rows as mixtures of what they may have done.

`predict_rows` is the one entry: the report and the calibration of stacks both start from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from typing import TypeVar

import numpy as np

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.opgraph import FloatArray
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.layouts import uniform_plan
from tangram_sim.training.plan import StagePrice
from tangram_sim.training.schedules import StageTimes
from tangram_sim.training.schedules.step import play_steps
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.factors import ClassShares
from tangram_sim.training.step.intervals import Z90, uncertainty
from tangram_sim.training.step.lowered import LoweredStep, Lowering
from tangram_validate.published.habits import masks_sent, with_masks
from tangram_validate.published.parts import StepParts, parts_of
from tangram_validate.published.reading import MEMORY_KINDS, Run, read_run
from tangram_validate.published.silent import Variant, habits, variants
from tangram_validate.published.table import Problem

Answer = TypeVar("Answer")

# What an allocator that is not short of memory keeps beyond what a run needs: as BLOOM's and Sailor's peaks
# show beyond their tensors (hwdb/efficiency/memory.csv). It is given back before a run fails.
CACHED = 4.7e9
MOST_PASSES = 4_000_000  # of one step that are still played: ten times the largest run published


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is predicted of one run, with its 90 % interval."""

    run: Run
    step_s: float
    allocated_bytes: float  # tensors, on the fullest rank
    reserved_bytes: float  # what the allocator holds for them
    device_bytes: float  # and what driver, libraries and communication hold beside it
    capacity_bytes: float
    cached_bytes: float  # a figure of allocator or driver is likely to be higher by, of memory that is free
    fits: bool  # in one of the ways at least that the run may have been laid out
    recompute: str  # as stated, or the likeliest kind
    measured: bool  # times rest on measurements of this GPU kind or chip, not on its family
    parts: StepParts
    step_s_low: float = 0.0
    step_s_high: float = 0.0
    sigma: float = 0.0  # log standard deviation of the step
    factors_sigma: float = 0.0  # the part of it that kernels, links and the stack's parameters explain
    stack_known: bool = False  # the stack has fitted rows of its own
    peak_factor_high: float = 1.0  # on a peak: exceeded in one case of twenty
    spread: float = 0.0  # log standard deviation of what a silent run may have done; part of `sigma`
    variants: tuple[tuple[Run, float], ...] = ()  # runs that state what this one leaves open, with weights

    @property
    def memory_bytes(self) -> float:
        """The predicted peak of the kind that the row measured; what ran stayed within what the GPU has."""
        outside = self.device_bytes - self.reserved_bytes
        device = max(min(self.device_bytes + self.cached_bytes, self.capacity_bytes), outside)
        peaks = (self.allocated_bytes, device - outside, device)
        return peaks[MEMORY_KINDS.index(self.run.measured.memory)]

    @property
    def error(self) -> float | None:
        """Signed relative error of the step time; None where nothing was measured."""
        return self.step_s / self.run.measured.step_s - 1 if self.run.measured.step_s else None

    @property
    def memory_error(self) -> float | None:
        """Signed relative error of the peak; None where nothing was measured."""
        peak = self.run.measured.peak_bytes
        return self.memory_bytes / peak - 1 if peak > 0 else None


def predict_rows(rows: Sequence[Mapping[str, str]], hwdb: Hwdb) -> list[Prediction | Problem]:
    """A prediction, or a problem with its reason, for every row; order kept.

    Rows of a sweep that do not state what they recompute all did alike.
    """
    predictor = Predictor(hwdb)
    found = [predictor.predict_row(row, number) for number, row in enumerate(rows, 1)]
    return predictor.beside_each_other(found)


@dataclass
class Predictor:
    """Predicts runs one after another; prices of equal stages of equal jobs are found once."""

    hwdb: Hwdb
    _placements: dict[object, Placement] = field(default_factory=dict)
    _prices: dict[object, StagePrices] = field(default_factory=dict)
    _shares: ClassShares = field(default_factory=ClassShares)

    def predict_row(self, row: Mapping[str, str], number: int = 1) -> Prediction | Problem:
        """One row; `number` names it where its id is blank."""
        read = read_run(row, self.hwdb, number)
        return read if isinstance(read, Problem) else self.predict(read)

    def predict(self, run: Run) -> Prediction | Problem:
        """One run, or the law of layouts that it breaks."""
        return self._unless_broken(run, self._predict)

    def predicted_s(self, run: Run) -> float | Problem:
        """Seconds of the step that `predict` tells of, without the rest, for fits of many looks."""

        def seconds(run: Run) -> float:
            found = self._variants(run, self._lowering(run))
            return float(np.exp(_middle(found)[0]))

        return self._unless_broken(run, seconds)

    def _unless_broken(self, run: Run, found: Callable[[Run], Answer]) -> Answer | Problem:
        layout = run.layout
        passes = run.job.global_batch // (layout.micro_batch * layout.dp) * layout.pp * layout.vpp
        if passes > MOST_PASSES:
            return Problem(run.id, run.source_id, f"{passes:,} passes in one step are too many to play")
        try:
            return found(run)
        except TangramError as error:
            return Problem(run.id, run.source_id, str(error))

    def beside_each_other(self, found: Sequence[Prediction | Problem]) -> list[Prediction | Problem]:
        """The results, silent runs predicted again by what runs of their sweep may have recomputed."""
        sweeps: dict[tuple[str, ...], list[Prediction]] = {}
        for item in found:
            if isinstance(item, Prediction) and not item.run.recompute:
                run = item.run
                key = (run.source_id, run.table, run.gpu, run.model_name, run.software.name)
                sweeps.setdefault(key, []).append(item)
        again: dict[int, Prediction | Problem] = {}
        for sweep in sweeps.values():
            if (
                len(
                    {
                        tuple((run.recompute, run.full_layers) for run, _ in prediction.variants)
                        for prediction in sweep
                    }
                )
                > 1
            ):
                alike = habits([prediction.variants for prediction in sweep])
                again |= {
                    id(prediction): self.predict(replace(prediction.run, habits=alike))
                    for prediction in sweep
                }
        return [again.get(id(item), item) for item in found]

    def step_s(self, run: Run) -> float:
        """Seconds of the step of a run that states its recomputation and nothing else, for fits."""
        return _played_s(self._stated(run, self._lowering(run)))

    def _predict(self, run: Run) -> Prediction:
        lowering = self._lowering(run)
        found = self._variants(run, lowering)
        likeliest = found[0]
        middle, spread, logs = _middle(found)
        seconds, step = float(np.exp(middle)), likeliest.step
        fullest = max(range(len(step.prices)), key=step.peak_bytes)
        doubt = uncertainty(step, lowering, shares=self._shares).doubting_network(run.network_sigma)
        spread = float(np.hypot(spread, run.doubt))
        sigma = float(np.hypot(doubt.sigma, spread))
        return Prediction(
            run=run,
            step_s=seconds,
            allocated_bytes=step.allocated_bytes(fullest),
            reserved_bytes=step.reserved_bytes(fullest),
            device_bytes=step.peak_bytes(fullest),
            capacity_bytes=step.capacity_bytes(fullest),
            cached_bytes=max(CACHED - step.prices[fullest][0].workspace_bytes, 0.0),
            fits=any(variant.step.fits() for variant in found) or self._fits_recomputed(run, lowering),
            recompute=likeliest.name,
            measured=doubt.residual.gpu_measured,
            parts=parts_of(step, lowering, float(np.exp(logs[0]))),
            step_s_low=seconds * exp(-Z90 * sigma),
            step_s_high=seconds * exp(Z90 * sigma),
            sigma=sigma,
            factors_sigma=doubt.factors_sigma,
            stack_known=doubt.residual.stack_known,
            peak_factor_high=doubt.peak_high(1.0),
            spread=spread,
            variants=tuple((variant.run, variant.weight) for variant in found),
        )

    def _fits_recomputed(self, run: Run, lowering: Lowering) -> bool:
        """Whether a run that does not say what it recomputes fits if that is everything."""
        return not run.recompute and self._stated(replace(run, recompute="full"), lowering).fits()

    def _lowering(self, run: Run) -> Lowering:
        """The lowering of a run's cluster, model and job; nothing it prices depends on the global batch."""
        job = replace(run.job, global_batch=1)
        placement = self._placements.setdefault(run.cluster, Placement(run.cluster, self.hwdb))
        prices = self._prices.setdefault((run.model, job), StagePrices(run.model, job, self.hwdb))
        return Lowering(placement, prices)

    def _variants(self, run: Run, lowering: Lowering) -> list[Variant]:
        """What the run may have done, likeliest first: itself alone where it states its recomputation."""
        if run.recompute:
            name = f"full x{run.full_layers}" if run.full_layers else run.recompute
            return [Variant(run, self._stated(run, lowering), 1.0, name)]
        gpu = run.cluster.groups[0].node.gpu
        fused = self.hwdb.efficiency(gpu, run.job.precision.compute).fused_attention.value > 0.5
        unfused = not (run.job.flash_attention and fused)
        return variants(run, lambda item: self._stated(item, lowering), unfused)

    def _stated(self, run: Run, lowering: Lowering) -> LoweredStep:
        """The lowered step of a run that states its recomputation."""

        def lowered(kind: str) -> LoweredStep:
            layout = replace(run.layout, recompute=kind)
            plan = uniform_plan(run.model, run.cluster, run.job, layout)
            step = lowering.lower(plan.pipelines[0])
            return with_masks(step, lowering) if masks_sent(run.software) else step

        per_stage = -(-run.model.layers // run.layout.pp)
        step = lowered(run.recompute)
        if run.recompute != "full" or not 0 < run.full_layers < per_stage:
            return step
        return blended(lowered(run.rest), step, run.full_layers / per_stage)


def _middle(found: Sequence[Variant]) -> tuple[float, float, FloatArray]:
    """(mean, standard deviation) of log seconds over what a run may have done, and those of each, [N]."""
    logs = np.log([_played_s(variant.step) for variant in found])
    weights = np.array([variant.weight for variant in found])
    middle = float(weights @ logs)
    return middle, float(np.sqrt(weights @ (logs - middle) ** 2)), logs


def _played_s(step: LoweredStep) -> float:
    # The step itself never shares a link with another job, so the uncontended engine is exact enough.
    return float(play_steps(step.template, step.template.durations(step.times)[None])[0])


def blended(light: LoweredStep, full: LoweredStep, share: float) -> LoweredStep:
    """A step in which `share` of every stage's layers recompute fully and the rest as in `light`.

    Seconds and bytes are linear in the layers of each kind; what a layer needs while it runs is the larger.
    """

    def mean(a: float, b: float) -> float:
        return a + share * (b - a)

    def price(a: StagePrice, b: StagePrice) -> StagePrice:
        names = ("forward_s", "backward_s", "backward_weight_s", "gradient_sync_s", "optimizer_s")
        values = {name: mean(getattr(a, name), getattr(b, name)) for name in names}
        return replace(
            a,
            **values,
            activation_bytes=mean(a.activation_bytes, b.activation_bytes),
            transient_bytes=max(a.transient_bytes, b.transient_bytes) if share > 0 else a.transient_bytes,
        )

    prices = tuple(
        tuple(price(a, b) for a, b in zip(left, right, strict=True))
        for left, right in zip(light.prices, full.prices, strict=True)
    )
    names = ("forward_s", "backward_input_s", "backward_weight_s", "sync_s", "optimizer_s")
    arrays = {
        name: np.asarray(getattr(light.times, name))
        + share * (getattr(full.times, name) - getattr(light.times, name))
        for name in names
    }
    times: StageTimes = replace(light.times, **arrays)
    return replace(light, prices=prices, times=times)
