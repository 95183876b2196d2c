"""Many pipelines priced together: equal stages of all in one call, with exactly the times of `LayerStepCost`.

Pricing one replica means small arrays through hundreds of calls. Pipelines of one depth under one engine
share these calls: the iterations of all of them are one array, and equal stages are priced once per pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Number
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Block
from tangram_sim.serving.calibration import CalibrationTable, EngineFit
from tangram_sim.serving.costs import LayerStepCost, ranks_of, sent_s
from tangram_sim.serving.deployment import Deployment, ReplicaStage
from tangram_sim.serving.energy import Board, CappedStepCost, at_clock, board_of
from tangram_sim.serving.forward import ForwardTimes, IterationWork, Ranks, block_times, end_times
from tangram_sim.serving.kv import StageMemory, capacity_of, stage_memory
from tangram_sim.serving.stepcost import KvCapacities
from tangram_sim.serving.workload import Floats

Places = NDArray[np.int64]


@dataclass(frozen=True)
class _AlikeStages:
    """Stages at one position of several pipelines with the same GPU kind and degree, priced in one call."""

    ranks: Ranks
    pipelines: Places
    blocks: tuple[tuple[Block, Floats], ...]  # how many of each sort every one of these pipelines holds
    first: bool
    last: bool


@dataclass(frozen=True)
class PipelineBatch(LayerStepCost):
    """Step costs of many pipelines with the same depth, engine and fit, in one call.

    Arrays are pipelines x loads, flattened. `deployment` is one of the pipelines; only what all have in
    common is read from it (engine, depth, no attention data parallelism).
    """

    pipelines: tuple[Deployment, ...] = ()

    @cached_property
    def _alike(self) -> tuple[tuple[_AlikeStages, ...], ...]:
        """Groups of equal stages for each position in the pipeline."""
        found = []
        for place in range(self.deployment.pp):
            groups: dict[tuple[str, int], list[int]] = {}
            for number, pipeline in enumerate(self.pipelines):
                stage = pipeline.stages[place]
                groups.setdefault((stage.island.gpu.name, stage.tp), []).append(number)
            found.append(tuple(self._stages_alike(place, members) for members in groups.values()))
        return tuple(found)

    def _stages_alike(self, place: int, members: list[int]) -> _AlikeStages:
        stages = [self.pipelines[number].stages[place] for number in members]
        sorts = dict.fromkeys(self.deployment.model.blocks)
        layers = self.deployment.model.layers
        return _AlikeStages(
            ranks_of(self.deployment, stages[0], self.hwdb),
            np.array(members),
            tuple((block, self._held(block, stages)) for block in sorts),
            place == 0,
            stages[0].end == layers,
        )

    def _held(self, block: Block, stages: Sequence[ReplicaStage]) -> Floats:
        """Number of blocks equal to `block` in each stage."""
        alike = np.array([item == block for item in self.deployment.model.blocks], dtype=np.float64)
        before = np.concatenate([[0.0], np.cumsum(alike)])
        ends, firsts = [stage.end for stage in stages], [stage.first for stage in stages]
        return np.asarray(before[ends] - before[firsts])

    def passes(self, work: IterationWork) -> list[ForwardTimes]:
        """Seconds by part of one forward pass, for each position in the pipeline (pipelines x loads)."""
        size = len(self.pipelines)
        found = []
        for position in self._alike:
            total = {name: np.zeros(np.shape(work.tokens)) for name in ForwardTimes.__dataclass_fields__}
            for group in position:
                loads = len(work.tokens) // size
                at = (group.pipelines[:, None] * loads + np.arange(loads)).ravel()
                columns = (work.rows, work.scores, work.decodes, work.contexts)
                rows, scores, decodes, contexts = (column[at] for column in columns)
                padding = np.asarray(work.padding)[at]
                mine = IterationWork(rows, scores, decodes, contexts, work.verified, padding)
                times = end_times(group.ranks, mine, group.first, group.last)
                for block, held in group.blocks:
                    if held.any():
                        counts = np.repeat(held, loads)
                        times = times + block_times(group.ranks, block, mine).times(counts)
                for name, column in total.items():
                    column[at] = getattr(times, name)
            found.append(ForwardTimes(**total))
        return found

    def _hop_s(self, work: IterationWork, stage: int) -> Floats:
        """Seconds to send activations from each pipeline's stage to its next one."""
        size = work.tokens * self.deployment.model.hidden * self.deployment.precision.activation_bytes
        links = [self.hop_of(pipeline, stage) for pipeline in self.pipelines]
        loads = len(size) // len(self.pipelines)
        rate, latency = (np.repeat(np.array(column), loads) for column in zip(*links, strict=True))
        return sent_s(size, rate, latency)


@dataclass(frozen=True)
class CappedPipelineBatch(CappedStepCost, PipelineBatch):
    """A PipelineBatch with a power cap on every GPU."""

    def slowed(self, clock: float) -> PipelineBatch:
        """All pipelines with arithmetic at the share `clock` of the highest clock, without a cap."""
        pipelines = tuple(at_clock(pipeline, clock) for pipeline in self.pipelines)
        return PipelineBatch(pipelines[0], self.hwdb, self.fit, pipelines, bounded=self.bounded)

    def boards(self, loads: int) -> Sequence[Board]:
        """For each position in the pipeline, all pipelines' GPU boards as arrays of pipelines x loads."""
        each = loads // len(self.pipelines)
        return [
            stacked([board_of(pipeline.stages[place], self.hwdb) for pipeline in self.pipelines], each)
            for place in range(self.deployment.pp)
        ]


def stacked(boards: Sequence[Board], times: int) -> Board:
    """One board whose numbers are arrays of those of `boards`, each repeated `times` times."""

    def column(values: Sequence[Number]) -> Floats:
        return np.repeat(np.asarray(values, dtype=np.float64), times)

    powers = [board.power for board in boards]
    power = replace(
        powers[0],
        limit_w=column([gpu_power.limit_w for gpu_power in powers]),
        idle_w=column([gpu_power.idle_w for gpu_power in powers]),
        running_w=column([gpu_power.running_w for gpu_power in powers]),
        arithmetic_w=column([gpu_power.arithmetic_w for gpu_power in powers]),
        memory_w=column([gpu_power.memory_w for gpu_power in powers]),
        link_w=column([gpu_power.link_w for gpu_power in powers]),
    )
    return Board(
        power,
        column([board.vector_flop_per_s for board in boards]),
        column([board.memory_bytes_per_s for board in boards]),
        column([board.link_bytes_per_s for board in boards]),
    )


@dataclass(frozen=True)
class PricedBatch:
    """Deployments that fit, with their cost and memory; arrays of pipelines x loads have the same order."""

    cost: PipelineBatch
    numbers: Places  # among all deployments asked for
    blocks: Places  # of KV cache

    def capacity(self, loads: int) -> KvCapacities:
        """KV memory of every pipeline, repeated for `loads` loads."""
        return KvCapacities(np.repeat(self.blocks, loads), self.cost.deployment.engine.block_tokens)


def batches(
    deployments: Sequence[Deployment], hwdb: Hwdb, calibration: CalibrationTable, power_cap_w: float = 0.0
) -> tuple[list[PricedBatch], dict[int, str]]:
    """(deployments that fit, grouped by depth, engine and fit; reasons why others do not fit, by number)."""
    memories: dict[tuple[object, ...], StageMemory] = {}
    groups: dict[tuple[object, ...], list[tuple[Deployment, int, EngineFit, int]]] = {}
    refused: dict[int, str] = {}
    for number, deployment in enumerate(deployments):
        fit = calibration.fit_of(deployment)
        same = (deployment.engine, deployment.pp, tuple(sorted(fit.values.items())))
        held = []
        for stage in deployment.stages:
            key = (*same, stage.island.gpu.name, stage.tp, stage.first, stage.end)
            if key not in memories:
                memories[key] = stage_memory(deployment, stage, hwdb, fit)
            held.append(memories[key])
        try:
            blocks = capacity_of(deployment, held).blocks
        except InfeasibleError as error:
            refused[number] = str(error)
            continue
        groups.setdefault(same, []).append((deployment, blocks, fit, number))
    found = []
    for members in groups.values():
        all_of = tuple(deployment for deployment, _, _, _ in members)
        shared = (all_of[0], hwdb, members[0][2], all_of)
        cost = CappedPipelineBatch(*shared, power_cap_w) if power_cap_w else PipelineBatch(*shared)
        numbers = np.array([item for _, _, _, item in members])
        found.append(PricedBatch(cost, numbers, np.array([held for _, held, _, _ in members])))
    return found, refused
