"""Runs predicted: a row's layout lowered and played, unstated recomputation settled by what fits.

`predict_rows` is the one entry: the report and the calibration of stacks both start from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp

import numpy as np

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.layouts import uniform_plan
from tangram_sim.training.plan import StagePrice
from tangram_sim.training.schedules import StageTimes
from tangram_sim.training.schedules.step import play_steps
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.factors import ClassShares
from tangram_sim.training.step.intervals import Z90, uncertainty
from tangram_sim.training.step.lowered import LoweredStep, Lowering
from tangram_sim.validation.published.parts import Parts, parts_of
from tangram_sim.validation.published.reading import MEMORY_KINDS, Run, read_run
from tangram_sim.validation.published.table import Problem

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
    fits: bool
    recompute: str  # as settled
    measured: bool  # times rest on measurements of this GPU kind, not on its family
    parts: Parts
    step_s_low: float = 0.0
    step_s_high: float = 0.0
    sigma: float = 0.0  # log standard deviation of the step
    factors_sigma: float = 0.0  # the part of it that kernels, links and the stack's parameters explain
    stack_known: bool = False  # the stack has fitted rows of its own
    peak_factor_high: float = 1.0  # on a peak: exceeded in one case of twenty

    @property
    def memory_bytes(self) -> float:
        """The predicted peak of the kind that the row measured."""
        peaks = (self.allocated_bytes, self.reserved_bytes, self.device_bytes)
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
    """A prediction, or a problem with its reason, for every row; order kept."""
    predictor = Predictor(hwdb)
    return [predictor.predict_row(row, number) for number, row in enumerate(rows, 1)]


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
        layout = run.layout
        passes = run.job.global_batch // (layout.micro_batch * layout.dp) * layout.pp * layout.vpp
        if passes > MOST_PASSES:
            return Problem(run.id, run.source_id, f"{passes:,} passes in one step are too many to play")
        try:
            return self._predict(run)
        except TangramError as error:
            return Problem(run.id, run.source_id, str(error))

    def _predict(self, run: Run) -> Prediction:

        lowering = self._lowering(run)
        step, settled = self._settle(run, lowering)
        # The step itself never shares a link with another job, so the uncontended engine is exact enough.
        seconds = float(play_steps(step.template, step.template.durations(step.times)[None])[0])
        fullest = max(range(len(step.prices)), key=step.peak_bytes)
        gpu = run.cluster.groups[0].node.gpu
        doubt = uncertainty(step, lowering, shares=self._shares).doubting_network(run.network_sigma)
        return Prediction(
            run=run,
            step_s=seconds,
            allocated_bytes=step.allocated_bytes(fullest),
            reserved_bytes=step.reserved_bytes(fullest),
            device_bytes=step.peak_bytes(fullest),
            capacity_bytes=step.capacity_bytes(fullest),
            fits=step.fits(),
            recompute=settled,
            measured=gpu.measured,
            parts=parts_of(step, lowering, seconds),
            step_s_low=seconds * exp(-Z90 * doubt.sigma),
            step_s_high=seconds * exp(Z90 * doubt.sigma),
            sigma=doubt.sigma,
            factors_sigma=doubt.factors_sigma,
            stack_known=doubt.residual.stack_known,
            peak_factor_high=doubt.peak_high(1.0),
        )

    def _lowering(self, run: Run) -> Lowering:
        """The lowering of a run's cluster, model and job; nothing it prices depends on the global batch."""
        job = replace(run.job, global_batch=1)
        placement = self._placements.setdefault(run.cluster, Placement(run.cluster, self.hwdb))
        prices = self._prices.setdefault((run.model, job), StagePrices(run.model, job, self.hwdb))
        return Lowering(placement, prices)

    def _settle(self, run: Run, lowering: Lowering) -> tuple[LoweredStep, str]:
        """The lowered step and its recomputation; unstated: none, selective, then the fewest full layers."""

        def lowered(kind: str) -> LoweredStep:
            layout = replace(run.layout, recompute=kind)
            return lowering.lower(uniform_plan(run.model, run.cluster, run.job, layout).pipelines[0])

        per_stage = -(-run.model.layers // run.layout.pp)
        if run.recompute:
            step = lowered(run.recompute)
            if run.recompute != "full" or not 0 < run.full_layers < per_stage:
                return step, run.recompute
            return blended(lowered("none"), step, run.full_layers / per_stage), f"full x{run.full_layers}"
        light, kind = lowered("none"), "none"
        if light.fits():
            return light, kind
        if not (run.job.flash_attention and self._fused(run)):
            light, kind = lowered("selective"), "selective"
            if light.fits():
                return light, kind
        full = lowered("full")
        low, high = 1, per_stage  # every stage recomputes as many layers; `high` is tried last, fits or not
        while low < high:
            middle = (low + high) // 2
            if blended(light, full, middle / per_stage).fits():
                high = middle
            else:
                low = middle + 1
        return blended(light, full, high / per_stage), f"{kind}, full x{high}"

    def _fused(self, run: Run) -> bool:
        gpu = run.cluster.groups[0].node.gpu
        return self.hwdb.efficiency(gpu, run.job.recipe.gemm_dtype).fused_attention.value > 0.5


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
