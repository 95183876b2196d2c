"""A whole plan lowered to the op graph of one training step."""

from dataclasses import dataclass, field, replace

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.opgraph import OpGraph
from tangram_sim.placement.ranks import Placement
from tangram_sim.training.plan import Pipeline, Plan, Stage, StagePrice
from tangram_sim.training.schedules import StageTimes, StepTemplate, in_flight, step_template
from tangram_sim.training.stage import peaks
from tangram_sim.training.stage.parts import Holders, PartPrices, one_part_one_layout, stage_of_parts
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.stage.sharing import atoms_held, holders_by_atom
from tangram_sim.training.step.boundary import boundary_s, flows, tied_copies, tied_exchange_s
from tangram_sim.training.step.links import with_links
from tangram_sim.training.step.node_links import with_node_links


@dataclass(frozen=True, slots=True)
class LoweredStep:
    """One pipeline of a plan, ready for simulation."""

    pipeline: Pipeline
    placement: Placement
    template: StepTemplate
    times: StageTimes
    boundary_bytes: float  # activations of one microbatch between two stages
    prices: tuple[tuple[StagePrice, ...], ...]  # per stage, per chunk
    in_flight: tuple[int, ...]  # activation sets held at peak, per stage
    # [stage][part][chunk] of a mixed pipeline; empty in the simple case, where `prices` says it all.
    part_prices: tuple[tuple[tuple[StagePrice, ...], ...], ...] = ()
    holders: Holders = ()  # who holds each atom, in a mixed pipeline or beside others

    def allocated_bytes(self, stage: int) -> float:
        """Peak bytes of all tensors on one rank of a stage's fullest part."""
        return peaks.allocated_bytes(self.prices[stage], self.in_flight[stage])

    def reserved_bytes(self, stage: int) -> float:
        """Peak bytes that the allocator of one rank holds."""
        return peaks.reserved_bytes(self.prices[stage], self.in_flight[stage])

    def peak_bytes(self, stage: int) -> float:
        """Peak bytes of one rank of a stage as the driver reports them: what must fit."""
        return peaks.device_bytes(self.prices[stage], self.in_flight[stage])

    def of_part(self, stage: int, part: int) -> tuple[StagePrice, ...]:
        """Prices of one part of a stage, per chunk."""
        return self.part_prices[stage][part] if self.part_prices else self.prices[stage]

    def capacity_bytes(self, stage: int) -> float:
        """Total usable bytes of the GPU of one rank of a stage."""
        return peaks.capacity_bytes(self.prices[stage])

    def fits(self) -> bool:
        """Whether every stage fits its memory."""
        return all(self.peak_bytes(stage) <= self.capacity_bytes(stage) for stage in range(len(self.prices)))

    def graph(self) -> OpGraph:
        """The op graph with durations, memory and shared links, for timelines and the reference engine."""
        if self.holders:
            return with_node_links(self.bare_graph(), [self], stage_of=self.template.stage)
        graph = self.bare_graph()
        return with_links(graph, self.template, self.pipeline, self.placement, self.boundary_bytes)

    def bare_graph(self) -> OpGraph:
        """The op graph with durations and memory, without shared links."""
        static = [
            sum(chunk.static_bytes for chunk in chunks) + max(chunk.transient_bytes for chunk in chunks)
            for chunks in self.prices
        ]
        activation = [[chunk.activation_bytes for chunk in chunks] for chunks in self.prices]
        graph = self.template.with_memory(np.array(static), np.array(activation))
        return replace(graph, duration_s=self.template.with_durations(self.times).duration_s)


@dataclass
class Lowering:
    """Lowers plans of one model, cluster and job; prices of stages and links are cached."""

    placement: Placement
    prices: StagePrices
    parts: PartPrices = field(init=False)

    def __post_init__(self) -> None:
        self.parts = PartPrices(self.placement, self.prices)

    @classmethod
    def of(cls, plan: Plan, hwdb: Hwdb) -> "Lowering":
        """The lowering for plans like `plan`."""
        return cls(Placement(plan.cluster, hwdb), StagePrices.of(plan.model, plan.job, hwdb))

    def lower(self, pipeline: Pipeline, holders: Holders = ()) -> LoweredStep:
        """One pipeline as a step; `holders` gives the holders of each atom where it runs beside others.

        Raises BadInputError for inconsistent decisions (layouts and ranks, shares of a microbatch, numbers of
        chunks).
        """
        job, model = self.prices.job, self.prices.model
        stages = pipeline.stages
        depth, chunks = len(stages), max(1, *(len(stage.chunks) for stage in stages))
        if not holders and not one_part_one_layout(stages):
            holders = holders_by_atom((pipeline,), model.layers)
        template = step_template(
            job.schedule, depth, pipeline.microbatches, chunks, tied=model.tied and depth > 1
        )
        held = tuple(
            in_flight(job.schedule, depth - 1 - place, depth, chunks, pipeline.microbatches)
            for place in range(depth)
        )
        by_part: tuple[tuple[tuple[StagePrice, ...], ...], ...] = ()
        if holders:
            by_part = tuple(self.parts.stage(stage, pipeline.microbatch, holders) for stage in stages)
            splits = template.order.splits_backward
            prices = tuple(stage_of_parts(parts, held[place], splits) for place, parts in enumerate(by_part))
        else:
            prices = tuple(self._stage(stage, pipeline.microbatch, model.layers) for stage in stages)
        if any(len(row) != chunks for row in prices):
            raise BadInputError(f"stages of one pipeline need the same number of chunks, up to {chunks} here")
        size = job.boundary_bytes(model, pipeline.microbatch)
        sends = np.zeros(depth)
        for boundary in range(depth if template.order.places.wraps else depth - 1):
            after = stages[(boundary + 1) % depth]
            if after is not stages[boundary]:
                if holders:
                    sends[boundary] = boundary_s(flows(stages[boundary], after), self.placement, size)
                else:
                    sends[boundary] = self.placement.transfer_s(stages[boundary].ranks, after.ranks, size)
        times = StageTimes(
            forward_s=np.array([[chunk.forward_s for chunk in row] for row in prices]),
            backward_input_s=np.array(
                [[chunk.backward_s - chunk.backward_weight_s for chunk in row] for row in prices]
            ),
            backward_weight_s=np.array([[chunk.backward_weight_s for chunk in row] for row in prices]),
            send_forward_s=sends,
            send_backward_s=sends,
            sync_s=np.array([sum(chunk.gradient_sync_s for chunk in row) for row in prices]),
            optimizer_s=np.array([sum(chunk.optimizer_s for chunk in row) for row in prices]),
            tied_s=self._tied_s(stages[0], stages[-1]) if template.tied else 0.0,
        )
        times = times.blocking(template.order.places) if job.code.blocks_on_sends else times
        return LoweredStep(
            pipeline,
            self.placement,
            template,
            times,
            boundary_bytes=size,
            prices=prices,
            in_flight=held,
            part_prices=by_part,
            holders=holders,
        )

    def _stage(self, stage: Stage, microbatch: int, layers: int) -> tuple[StagePrice, ...]:
        island, layout = self.placement.island(stage.ranks), stage.layout
        if layout.gpus != len(stage.ranks):
            raise BadInputError(
                f"layout {layout} occupies {layout.gpus} GPUs, the stage has {len(stage.ranks)} ranks"
            )
        return self.prices.chunks(island, layout, microbatch, atoms_held(stage, layers))

    def _tied_s(self, first: Stage, last: Stage) -> float:
        size = tied_copies(first, last) * self.prices.job.tied_bytes(self.prices.model)
        return tied_exchange_s(self.placement, first.ranks, last.ranks, size)
