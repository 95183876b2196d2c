"""Predict many uniform layouts at once: all that share a pipeline depth are priced and simulated together.

The answers are those of `api.estimate`, except that transfers never contend for links (as in the planner's
search) and no document is written: a thousand layouts take about a second.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram_sim.clusters import Cluster
from tangram_sim.cost.kernels import Floats
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model, has_experts
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.layouts import Uniform, rank_order, settle, stage_ranks
from tangram_sim.studies.layout_batches import BatchStage, LayoutBatch, priced_stages
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import StageTimes, in_flight, schedule_named, step_template
from tangram_sim.training.schedules.base import Places
from tangram_sim.training.step.boundary import tied_exchange_s
from tangram_sim.training.step.factors import ClassShares, PathSeconds, StageKind, step_factors
from tangram_sim.training.step.ideal import model_flop
from tangram_sim.training.step.intervals import Z90, roads, sigmas, worst_residual


@dataclass(frozen=True, slots=True)
class Estimate:
    """Prediction for one layout."""

    layout: Uniform
    step_s: float
    step_s_low: float  # 90 % interval
    step_s_high: float
    tokens_per_s: float
    mfu: float  # of the GPUs used
    feasible: bool
    peak_memory_bytes: float  # of the fullest GPU, relative to its capacity
    peak_memory_bytes_high: float
    memory_capacity_bytes: float  # of that GPU
    gpus_used: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A layout that cannot be priced, and the law it breaks."""

    layout: Uniform
    reason: str


@dataclass(frozen=True, slots=True)
class _PlayedBatch:
    """K layouts of a batch, simulated: seconds per step, and bytes on the GPUs of each stage."""

    stages: list[BatchStage]
    slots: Floats  # seconds on the critical path by pass of a stage, (K, slots)
    seconds: Floats  # K
    peaks: Floats  # bytes, (K, stages)
    capacity: Floats  # bytes, stages

    def fits(self) -> list[bool]:
        """Whether all stages of a layout fit in memory, one value per layout [K]."""
        over: Floats = (self.peaks - self.capacity).max(axis=1)
        return [item <= 0.0 for item in over.tolist()]


@dataclass
class Estimator:
    """Estimates layouts of one model, cluster and job; keeps what later calls can use again."""

    model: Model
    cluster: Cluster
    hwdb: Hwdb

    def __post_init__(self) -> None:
        self.placement = Placement(self.cluster, self.hwdb)
        self._available: dict[tuple[str, ...], list[int]] = {}
        self._kinds = [
            group.node.gpu for group in self.cluster.groups for _ in range(group.count * group.node.gpus)
        ]

    def estimate(self, jobs: Sequence[Job], layouts: Sequence[Uniform]) -> list[Estimate | Refusal]:
        """One prediction or refusal per layout, in order; `jobs[i]` is the resolved job of `layouts[i]`."""
        batches, refused = self._batches(jobs, layouts)
        found: dict[int, Estimate | Refusal] = {
            place: Refusal(layouts[place], reason) for place, reason in refused.items()
        }
        for batch, stages in zip(batches, self._priced(batches), strict=True):
            if isinstance(stages, TangramError):
                answers: Sequence[Estimate | Refusal] = [
                    Refusal(wanted, str(stages)) for wanted in batch.wanted
                ]
            else:
                answers = self._estimates(batch, stages)
            found.update(zip(batch.place, answers, strict=True))
        return [found[place] for place in range(len(layouts))]

    def steps(self, jobs: Sequence[Job], layouts: Sequence[Uniform]) -> list[float]:
        """Seconds of each layout's step, no intervals; infinite if it does not fit or has no price."""
        batches, _ = self._batches(jobs, layouts)
        found = [float("inf")] * len(layouts)
        for batch, stages in zip(batches, self._priced(batches), strict=True):
            if isinstance(stages, TangramError):
                continue
            played = self._played(batch, stages)
            for place, seconds, fits in zip(batch.place, played.seconds.tolist(), played.fits(), strict=True):
                found[place] = seconds if fits else float("inf")
        return found

    def _batches(
        self, jobs: Sequence[Job], layouts: Sequence[Uniform]
    ) -> tuple[list[LayoutBatch], dict[int, str]]:
        """(batches of layouts with equal job, depth, chunks, ranks and cuts; refusals by position)."""
        refused: dict[int, str] = {}
        batches: dict[object, LayoutBatch] = {}
        for place, (job, wanted) in enumerate(zip(jobs, layouts, strict=True)):
            try:
                available = self._ranks(wanted.order)
                settled = settle(self.model, self.cluster, job, wanted, len(available))
                share = settled.layout.gpus
                where = wanted.order, wanted.stage_groups
                key = (job, wanted.pp, wanted.vpp, share, where, settled.bounds)
                if key not in batches:
                    batches[key] = LayoutBatch(job, stage_ranks(self.cluster, wanted, share))
                batch = batches[key]
                batch.wanted.append(wanted)
                batch.settled.append(settled)
                batch.place.append(place)
            except TangramError as error:
                refused[place] = str(error)
        return list(batches.values()), refused

    def _ranks(self, order: tuple[str, ...]) -> list[int]:
        if order not in self._available:
            self._available[order] = rank_order(self.cluster, order)
        return self._available[order]

    def _priced(self, batches: Sequence[LayoutBatch]) -> list[list[BatchStage] | TangramError]:
        """The priced stages of every batch, or the error that prevents pricing the batch."""
        return priced_stages(self.model, self.placement, self.hwdb, batches)

    def _played(self, batch: LayoutBatch, stages: list[BatchStage]) -> _PlayedBatch:
        """Simulate all layouts of a batch at once, given their priced stages."""
        from tangram_sim.sim.fast import path_totals

        job, count = batch.job, len(batch.settled)
        depth, chunks = len(stages), len(stages[0].prices)
        places = schedule_named(job.schedule).places(depth, chunks)
        tables = self._times(batch, stages, places)
        slots = np.zeros((count, 5 * depth * chunks + 4 * depth + 1))
        held = np.zeros((count, depth))
        microbatches = np.array([settled_layout.microbatches for settled_layout in batch.settled])
        for passes in np.unique(microbatches).tolist():
            rows = np.flatnonzero(microbatches == passes)
            template = step_template(job.schedule, depth, passes, chunks, tied=self.model.tied and depth > 1)
            table = np.stack([template.table(tables[row]) for row in rows])
            slots[rows] = path_totals(template.graph, template.slot, table, template.slot, template.slots)
            held[rows] = [
                in_flight(job.schedule, depth - 1 - stage, depth, chunks, passes) for stage in range(depth)
            ]
        seconds = slots.sum(axis=1)
        rates = [stage.pricer.setting.rates for stage in stages]
        peaks = np.stack(
            [
                stage.column("static_bytes").sum(axis=1)
                + (1.0 + rates[number].fragmentation)
                * (
                    held[:, number] * stage.column("activation_bytes").max(axis=1)
                    + stage.column("transient_bytes").max(axis=1)
                )
                + rates[number].workspace_bytes
                + rates[number].reserved_bytes
                for number, stage in enumerate(stages)
            ],
            axis=1,
        )
        capacity = np.array(
            [rate.usable_memory_bytes + rate.workspace_bytes + rate.reserved_bytes for rate in rates]
        )
        return _PlayedBatch(stages, slots, seconds, peaks, capacity)

    def _estimates(self, batch: LayoutBatch, priced: list[BatchStage]) -> list[Estimate]:
        """Predictions with 90 % intervals and memory peaks for all layouts of a batch."""
        job, played = batch.job, self._played(batch, priced)
        stages, seconds, peaks, capacity = played.stages, played.seconds, played.peaks, played.capacity
        spread = self._spread(batch, stages, played.slots, seconds)
        fullest, feasible = np.argmax(peaks / capacity, axis=1), played.fits()
        gpus = [rank for ranks in batch.stages for rank in ranks]
        peak_flop = sum(self._kinds[rank].peak_flop_per_s(job.precision.compute) for rank in gpus)
        flop = model_flop(self.model, job, stages[0].pricer.setting.island.gpu, self.hwdb)
        kinds = [stage.pricer.setting.island.gpu for stage in stages]
        residual = worst_residual(kinds, job, self.hwdb, has_experts(self.model))
        high = np.exp(Z90 * residual.memory)
        return [
            Estimate(
                layout=batch.wanted[row],
                step_s=float(seconds[row]),
                step_s_low=float(seconds[row] * np.exp(-Z90 * spread[row])),
                step_s_high=float(seconds[row] * np.exp(Z90 * spread[row])),
                tokens_per_s=float(job.tokens / seconds[row]),
                mfu=float(flop / (seconds[row] * peak_flop)),
                feasible=feasible[row],
                peak_memory_bytes=float(peaks[row, fullest[row]]),
                peak_memory_bytes_high=float(peaks[row, fullest[row]] * high),
                memory_capacity_bytes=float(capacity[fullest[row]]),
                gpus_used=len(gpus),
            )
            for row in range(len(seconds))
        ]

    def _times(self, batch: LayoutBatch, stages: Sequence[BatchStage], places: Places) -> list[StageTimes]:
        """Stage times of every layout of a batch, whose chunks stand at `places`."""
        depth, model, job = len(stages), self.model, batch.job
        forward, backward, weight = (
            np.stack([stage.column(name) for stage in stages], axis=1)
            for name in ("forward_s", "backward_s", "backward_weight_s")
        )
        sync, optimizer = (
            np.stack([stage.column(name).sum(axis=1) for stage in stages], axis=1)
            for name in ("gradient_sync_s", "optimizer_s")
        )
        size = np.array([settled_layout.microbatch for settled_layout in batch.settled]) * job.boundary_bytes(
            model, 1
        )
        sends = np.zeros((len(size), depth))
        for boundary in range(depth if places.wraps else depth - 1):
            rate, latency = self.placement.road(batch.stages[boundary], batch.stages[(boundary + 1) % depth])
            sends[:, boundary] = latency + size / max(rate, 1.0)
        tied = [0.0] * len(size)
        if model.tied and not places.ends_together:
            copies = [
                settled_layout.layout.gradient_copies * job.tied_bytes(model)
                for settled_layout in batch.settled
            ]
            ends = batch.stages[0], batch.stages[-1]
            tied = [tied_exchange_s(self.placement, *ends, total) for total in copies]
        made = [
            StageTimes(
                forward_s=forward[row],
                backward_input_s=backward[row] - weight[row],
                backward_weight_s=weight[row],
                send_forward_s=sends[row],
                send_backward_s=sends[row],
                sync_s=sync[row],
                optimizer_s=optimizer[row],
                tied_s=tied[row],
            )
            for row in range(len(size))
        ]
        return [times.blocking(places) for times in made] if job.code.blocks_on_sends else made

    def _spread(
        self, batch: LayoutBatch, stages: Sequence[BatchStage], slots: Floats, seconds: Floats
    ) -> Floats:
        """Standard deviation of the logarithm of the step, by layout of the batch [K]."""
        depth, chunks = len(stages), len(stages[0].prices)
        alike: dict[int, list[int]] = {}
        for number, stage in enumerate(stages):
            alike.setdefault(id(stage), []).append(number)
        kinds = [
            StageKind(stages[numbers[0]].pricer, stages[numbers[0]].runs, tuple(numbers))
            for numbers in alike.values()
        ]
        path = PathSeconds.of(slots, depth, chunks)
        totals = step_factors(path, kinds, chunks, ClassShares(), roads(batch.stages, self.placement))
        gpus = [kind.pricer.setting.island.gpu for kind in kinds]
        return sigmas(totals, seconds, worst_residual(gpus, batch.job, self.hwdb, has_experts(self.model)))
