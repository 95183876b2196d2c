"""A whole plan as one op graph: pipelines side by side, synchronised gradients, shared links.

Every pipeline keeps its own template. The rings that reduce gradients span pipelines wherever they hold the
same layers: an optimizer (and the exchange of a tied matrix) waits until every stage that shares a layer with
its own has synchronised, so the step ends with the slowest pipeline and its synchronisation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.opgraph import IntArray, OpGraph, column, op_graph
from tangram_sim.training.plan import Pipeline, Plan, holds_batch, sequences_processed
from tangram_sim.training.schedules.step import KINDS, OPTIMIZER, SYNC, TIED
from tangram_sim.training.stage.sharing import atoms_held, holders_by_atom
from tangram_sim.training.step.lowered import LoweredStep, Lowering
from tangram_sim.training.step.node_links import with_node_links


@dataclass(frozen=True)
class LoweredPlan:
    """All pipelines of a plan, ready to be simulated together."""

    steps: tuple[LoweredStep, ...]
    layers: int

    def fits(self) -> bool:
        """Whether every stage of every pipeline fits its memory."""
        return all(step.fits() for step in self.steps)

    def fullness(self) -> float:
        """Peak memory over capacity of the rank with the highest ratio."""
        return max(
            step.peak_bytes(stage) / step.capacity_bytes(stage)
            for step in self.steps
            for stage in range(len(step.prices))
        )

    @cached_property
    def step_of(self) -> IntArray:
        """Index of the pipeline of every op of `graph()`."""
        return self._order[0]

    @cached_property
    def stage_of(self) -> IntArray:
        """Stage, within its pipeline, of every op of `graph()`."""
        stages = np.concatenate([step.template.stage for step in self.steps])
        return column(stages[self._order[1]], np.int32)

    @cached_property
    def microbatch_of(self) -> IntArray:
        """The microbatch of every op of `graph()`, -1 for ops of the whole step."""
        if len(self.steps) == 1:
            return self.steps[0].template.microbatch
        microbatches = np.concatenate([step.template.microbatch for step in self.steps])
        return column(microbatches[self._order[1]], np.int32)

    def compute_stream(self, pipeline: int, stage: int) -> int:
        """Index of the compute resource of a stage in `graph()`."""
        return sum(len(step.template.graph.resources) for step in self.steps[:pipeline]) + stage

    def graph(self, links: bool = True) -> OpGraph:
        """The op graph of the step; without `links` there are no shared links (cheaper to simulate)."""
        if len(self.steps) == 1:
            return self.steps[0].graph() if links else self.steps[0].bare_graph()
        joined = self._joined()
        return with_node_links(joined, self.steps, self.step_of, self.stage_of) if links else joined

    def step_s(self) -> float:
        """Simulated seconds of the step, without shared links."""
        from tangram_sim.sim import fast  # compiled code: loaded when something is played

        return fast.makespan(self.graph(links=False))

    @cached_property
    def _order(self) -> tuple[IntArray, IntArray]:
        """(pipeline, row in the concatenation of all templates) of every op, in the joined order.

        Passes, sends and syncs come first, then tied matrices, then optimizers: ops follow those of other
        pipelines that they wait for, and each pipeline keeps its order.
        """
        kinds = np.concatenate([step.template.graph.kind for step in self.steps])
        number = np.repeat(np.arange(len(self.steps)), [len(step.template.graph) for step in self.steps])
        phase = np.select([kinds == OPTIMIZER, kinds == TIED], [2, 1], default=0)
        order = np.argsort(phase, kind="stable")
        return column(number[order], np.int32), column(order, np.int32)

    def _joined(self) -> OpGraph:
        graphs = [step.bare_graph() for step in self.steps]
        _, order = self._order
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        first = np.cumsum([0, *(len(graph) for graph in graphs)])
        waits: list[list[int]] = []
        for offset, graph in zip(first[:-1].tolist(), graphs, strict=True):
            waits += [
                [int(place[offset + other]) for other in graph.predecessors(op)] for op in range(len(graph))
            ]
        for op, others in self._across(first.tolist()):
            waits[op] = sorted({*waits[op], *(int(place[other]) for other in others)})
        rows = [waits[op] for op in order.tolist()]

        def gathered(name: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
            return np.concatenate([getattr(graph, name) for graph in graphs])[order]

        resources = np.cumsum([0, *(len(graph.resources) for graph in graphs)])
        devices = np.cumsum([0, *(len(graph.devices) for graph in graphs)])
        device = np.concatenate(
            [np.where(g.device >= 0, g.device + d, -1) for g, d in zip(graphs, devices, strict=False)]
        )
        labels = [(graph, op) for graph in graphs for op in range(len(graph))]
        return op_graph(
            kind=gathered("kind"),
            kinds=KINDS,
            resource=np.concatenate([g.resource + r for g, r in zip(graphs, resources, strict=False)])[order],
            resources=tuple(_names([graph.resources for graph in graphs])),
            pred_ptr=np.concatenate([[0], np.cumsum([len(row) for row in rows])]),
            pred=[other for row in rows for other in row],
            duration_s=gathered("duration_s"),
            device=device[order],
            devices=tuple(_names([graph.devices for graph in graphs])),
            memory_start_bytes=gathered("memory_start_bytes"),
            memory_end_bytes=gathered("memory_end_bytes"),
            memory_initial_bytes=np.concatenate([graph.memory_initial_bytes for graph in graphs]),
            label=_Labels(tuple(labels[op] for op in order.tolist())),
        )

    def _across(self, first: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """(op, ops of other pipelines that it waits for), as rows in the concatenation of all templates."""
        sync: dict[tuple[int, int], int] = {}
        after: dict[tuple[int, int], list[int]] = {}
        for number, step in enumerate(self.steps):
            template, depth = step.template, len(step.pipeline.stages)
            for op in np.flatnonzero(template.graph.kind >= SYNC).tolist():
                stage, kind = int(template.stage[op]), int(template.graph.kind[op])
                if kind == SYNC:
                    sync[number, stage] = first[number] + op
                elif kind == TIED:
                    for end in (0, depth - 1):
                        after.setdefault((number, end), []).append(first[number] + op)
                else:
                    after.setdefault((number, stage), []).append(first[number] + op)
        shares = self._peers()
        for place, ops in after.items():
            for op in ops:
                yield op, [sync[peer] for peer in shares[place]]

    def _peers(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Stages of other pipelines that hold a layer of a stage, by (pipeline, stage)."""
        holding: dict[int, list[tuple[int, int]]] = {}
        held: dict[tuple[int, int], list[int]] = {}
        for number, step in enumerate(self.steps):
            for stage, noun in enumerate(step.pipeline.stages):
                atoms = [atom for run in atoms_held(noun, self.layers) for atom in range(*run)]
                held[number, stage] = atoms
                for atom in atoms:
                    holding.setdefault(atom, []).append((number, stage))
        return {
            place: sorted({peer for atom in atoms for peer in holding[atom] if peer[0] != place[0]})
            for place, atoms in held.items()
        }


@dataclass(frozen=True, slots=True)
class _Labels:
    """Names of joined ops, computed on demand."""

    rows: tuple[tuple[OpGraph, int], ...]

    def __call__(self, index: int) -> str:
        graph, op = self.rows[index]
        return graph.label_of(op)


def _names(tables: Sequence[Sequence[str]]) -> Iterator[str]:
    """Names of all pipelines' resources: `stage 0/compute` of pipeline 1 is `stage 1.0/compute`."""
    for number, names in enumerate(tables):
        for name in names:
            own = name.removeprefix("stage ")
            yield f"stage {number}.{own}" if own != name else f"pipeline {number}, {name}"


def lower_plan(plan: Plan, lowering: Lowering) -> LoweredPlan:
    """All pipelines of a plan, lowered together.

    Raises BadInputError for inconsistent decisions: a rank used twice, pipelines that do not add up to the
    global batch, or what `Lowering.lower` refuses.
    """
    _check(plan.pipelines, plan)
    layers = plan.model.layers
    if len(plan.pipelines) == 1:
        return LoweredPlan((lowering.lower(plan.pipelines[0]),), layers)
    holders = holders_by_atom(plan.pipelines, layers)
    return LoweredPlan(tuple(lowering.lower(pipeline, holders) for pipeline in plan.pipelines), layers)


def price_plan(plan: Plan, hwdb: Hwdb, lowering: Lowering | None = None) -> LoweredPlan:
    """A plan of any shape, lowered: `.step_s()` is its step, `.fits()` its memory, `.graph()` to simulate."""
    return lower_plan(plan, lowering or Lowering.of(plan, hwdb))


def _check(pipelines: Sequence[Pipeline], plan: Plan) -> None:
    used: dict[int, int] = {}
    for number, pipeline in enumerate(pipelines):
        for rank in (rank for stage in pipeline.stages for rank in stage.ranks):
            if rank in used:
                raise BadInputError(
                    f"rank {rank} is used twice (pipelines {used[rank]} and {number}); a GPU belongs to one "
                    "stage of one pipeline"
                )
            used[rank] = number
    total = sequences_processed(pipelines)
    if not holds_batch(pipelines, plan.job.global_batch):
        raise BadInputError(
            f"the pipelines process {total} sequences, the job's global batch is {plan.job.global_batch}"
        )
