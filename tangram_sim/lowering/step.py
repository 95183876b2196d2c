"""A whole plan lowered to the op graph of one training step, and what playing it forecasts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.cost.collectives import transfer_s
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.lowering.links import with_links
from tangram_sim.lowering.placement import Placement
from tangram_sim.lowering.prices import StagePrices
from tangram_sim.opgraph import OpGraph
from tangram_sim.plans import Pipeline, Plan, Stage, StagePrice
from tangram_sim.schedules import StageTimes, StepTemplate, in_flight, step_template


@dataclass(frozen=True, slots=True)
class LoweredStep:
    """One pipeline of a plan, ready to be played."""

    pipeline: Pipeline
    placement: Placement
    template: StepTemplate
    times: StageTimes
    boundary_bytes: float  # activations of one microbatch between two stages
    prices: tuple[tuple[StagePrice, ...], ...]  # per stage, per chunk
    in_flight: tuple[int, ...]  # activation sets held at peak, per stage

    def _whole(self, stage: int) -> StagePrice:
        """All chunks of a stage as one: states add up, activations and transients are the largest chunk's."""
        chunks = self.prices[stage]
        return replace(
            chunks[0],
            static_bytes=sum(chunk.static_bytes for chunk in chunks),
            activation_bytes=max(chunk.activation_bytes for chunk in chunks),
            transient_bytes=max(chunk.transient_bytes for chunk in chunks),
        )

    def allocated_bytes(self, stage: int) -> float:
        """Peak of all tensors of one rank of a stage, those of the software stack with them."""
        whole = self._whole(stage)
        return whole.tensor_bytes(self.in_flight[stage]) + whole.workspace_bytes

    def reserved_bytes(self, stage: int) -> float:
        """Peak of what the allocator of one rank holds."""
        whole = self._whole(stage)
        return whole.peak_bytes(self.in_flight[stage]) + whole.workspace_bytes

    def peak_bytes(self, stage: int) -> float:
        """Peak memory of one rank of a stage, as the driver shows it: what must fit."""
        return self.reserved_bytes(stage) + self.prices[stage][0].context_bytes

    def capacity_bytes(self, stage: int) -> float:
        """What the GPU of one rank of a stage holds in all."""
        first = self.prices[stage][0]
        return first.capacity_bytes + first.workspace_bytes + first.context_bytes

    def fits(self) -> bool:
        """Whether every stage fits its memory."""
        return all(self.peak_bytes(stage) <= self.capacity_bytes(stage) for stage in range(len(self.prices)))

    def graph(self) -> OpGraph:
        """The op graph with durations, memory and shared links, for timelines and the reference engine."""
        static = [
            sum(chunk.static_bytes for chunk in chunks) + max(chunk.transient_bytes for chunk in chunks)
            for chunks in self.prices
        ]
        activation = [[chunk.activation_bytes for chunk in chunks] for chunks in self.prices]
        graph = self.template.with_memory(np.array(static), np.array(activation))
        graph = replace(graph, duration_s=self.template.with_durations(self.times).duration_s)
        return with_links(graph, self.template, self.pipeline, self.placement, self.boundary_bytes)


@dataclass
class Lowering:
    """Lowers plans of one model, cluster and job; stages and roads seen before are not priced again."""

    placement: Placement
    prices: StagePrices

    @classmethod
    def of(cls, plan: Plan, hwdb: Hwdb) -> "Lowering":
        """The lowering for plans like `plan`."""
        return cls(Placement(plan.cluster, hwdb), StagePrices(plan.model, plan.job, hwdb))

    def lower(self, pipeline: Pipeline) -> LoweredStep:
        """One pipeline as a step.

        Raises BadInputError for what cannot be priced (several parts or layouts in one stage).
        """
        job, model = self.prices.job, self.prices.model
        stages = pipeline.stages
        depth, chunks = len(stages), max(1, *(len(stage.chunks) for stage in stages))
        prices = tuple(self._stage(stage, pipeline.microbatch, model.layers) for stage in stages)
        if any(len(row) != chunks for row in prices):
            raise BadInputError(f"stages of one pipeline need the same number of chunks, up to {chunks} here")
        size = pipeline.microbatch * job.seq * model.hidden * job.recipe.activation_bytes
        sends = np.zeros(depth)
        for boundary in range(depth if chunks > 1 else depth - 1):
            after = stages[(boundary + 1) % depth]
            if after is not stages[boundary]:
                sends[boundary] = self.placement.transfer_s(stages[boundary].ranks, after.ranks, size)
        template = step_template(
            job.schedule, depth, pipeline.microbatches, chunks, tied=model.tied and depth > 1
        )
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
            tied_s=self._tied_s(stages),
        )
        held = tuple(
            in_flight(job.schedule, depth - 1 - place, depth, chunks, pipeline.microbatches)
            for place in range(depth)
        )
        return LoweredStep(pipeline, self.placement, template, times, size, prices, held)

    def _stage(self, stage: Stage, microbatch: int, layers: int) -> tuple[StagePrice, ...]:
        if len(stage.parts) != 1 or len(stage.parts[0].layouts) > 1:
            raise BadInputError(
                "a stage with several parts or layouts cannot be priced yet; give it one of each"
            )
        island, layout = self.placement.island(stage.ranks), stage.layout
        if layout.gpus != len(stage.ranks):
            raise BadInputError(
                f"layout {layout} occupies {layout.gpus} GPUs, the stage has {len(stage.ranks)} ranks"
            )
        runs = atom_runs(stage, layers)
        return tuple(self.prices.price(island, layout, microbatch, start, stop) for start, stop in runs)

    def _tied_s(self, stages: tuple[Stage, ...]) -> float:
        """All-reduce of the gradient of a tied matrix held by the first and the last stage."""
        model, job = self.prices.model, self.prices.job
        if not model.tied or len(stages) < 2:
            return 0.0
        size = model.vocabulary_parameters * job.recipe.gradient_bytes
        rate, latency = self.placement.road(stages[0].ranks, stages[-1].ranks)
        return transfer_s(size, rate, 2 * latency)


def atom_runs(stage: Stage, layers: int) -> list[tuple[int, int]]:
    """The atoms [start, stop) of each chunk: block i is atom i + 1, the ends go to first and last."""
    return runs_of(stage.chunks, stage.embedding, stage.head, layers)


def runs_of(
    chunks: Sequence[tuple[int, int]], embedding: bool, head: bool, layers: int
) -> list[tuple[int, int]]:
    """The same of bare chunks [start, stop) of blocks."""
    runs = [(start + 1, stop + 1) for start, stop in chunks]
    if not runs:
        return [(0, 1)] if embedding else [(layers + 1, layers + 2)]
    if embedding:
        runs[0] = (0, runs[0][1])
    if head:
        runs[-1] = (runs[-1][0], layers + 2)
    return runs


def single_layout(stage: Stage) -> Layout:
    """The layout of a stage with one part and one layout."""
    return stage.parts[0].layouts[0].layout
