"""From composed pipelines to plans: assign ranks, simulate whole steps, move stage boundaries."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tangram_sim.clusters import Cluster, Island
from tangram_sim.errors import TangramError
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import Counts, Scored
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.composed import Composed, Placed
from tangram_sim.sim import contention
from tangram_sim.training.job import Job
from tangram_sim.training.plan import LayerLayout, LayoutRun, Part, Pipeline, Plan, Stage
from tangram_sim.training.step.lowered import LoweredStep, Lowering

LOWERED = 8  # steps kept ready to be played again
_FARTHEST = 2  # stages that an atom moves: from one to the next but one, with those between as full as before


@dataclass(frozen=True, slots=True)
class StageAssignment:
    """A stage before it joins a plan: atoms [start, stop) on ranks under one layout, or one per run.

    Runs may reach beyond the stage after its ends have moved; an end without a run takes the nearest. Those
    in `beside` are further parts of the stage; then `sequences` of every microbatch belong to this part.
    """

    island: str
    ranks: tuple[int, ...]
    layout: Layout
    start: int
    stop: int
    runs: tuple[LayoutRun, ...] = ()
    sequences: int = 0  # 0: the whole microbatch
    beside: tuple["StageAssignment", ...] = ()

    def between(self, start: int, stop: int) -> "StageAssignment":
        """This stage, all parts of it, with other atoms."""
        return replace(
            self,
            start=start,
            stop=stop,
            beside=tuple(stage_assignment.between(start, stop) for stage_assignment in self.beside),
        )

    def layouts(self, layers: int) -> tuple[LayerLayout, ...]:
        """Layouts of all runs of blocks; the first run includes the embedding, the last one the head."""
        start, stop = _blocks(self.start, self.stop, layers)
        found: list[LayerLayout] = []
        for number, run in enumerate(self.runs):
            low, high = _blocks(run.start, run.stop, layers)
            low = start if number == 0 else max(low, start)
            high = stop if number == len(self.runs) - 1 else min(high, stop)
            if low >= high:
                continue
            if found and found[-1].layout == run.layout:
                low = found.pop().layers[0]
            found.append(LayerLayout((low, high), run.layout))
        if not found:
            return (LayerLayout((start, stop), self.layout),)
        found[0] = LayerLayout((start, found[0].layers[1]), found[0].layout)
        return tuple(found)


Finalist: TypeAlias = tuple[tuple[StageAssignment, ...], int]  # stages and microbatch


def _blocks(start: int, stop: int, layers: int) -> tuple[int, int]:
    """Transformer blocks [start, stop) among atoms [start, stop)."""
    return min(max(start - 1, 0), layers), min(max(stop - 1, 0), layers)


def seats_of(
    composed: Composed, islands: Sequence[Island], placement: Placement
) -> tuple[StageAssignment, ...]:
    """Stages of a composed pipeline with ranks: nodes of an island are assigned in order, front to back."""
    next_node = [0] * len(islands)
    seats: list[StageAssignment] = []
    first = placement.first_rank
    for place in composed.places:
        partial = place.partial
        if partial.portions:
            seats.append(_joint_seat(place, islands, next_node, placement))
            continue
        island = islands[place.kind]
        taken = island.node_indices[next_node[place.kind] : next_node[place.kind] + partial.nodes]
        next_node[place.kind] += partial.nodes
        ranks = [first[node] + gpu for node in taken for gpu in range(island.gpus_per_node)]
        depth = len(partial.stages)
        share, shift = len(ranks) // depth, place.start - partial.start
        layout = replace(partial.layout, pp=1)
        for inner in range(depth):
            start, stop = partial.cuts[inner], partial.cuts[inner + 1]
            runs = tuple(
                LayoutRun(run.start + shift, run.stop + shift, replace(run.layout, pp=1))
                for run in partial.runs
                if run.start < stop and run.stop > start
            )
            if len({run.layout for run in runs}) == 1:
                layout, runs = runs[0].layout, ()
            elif runs:
                layout = runs[0].layout
            ranks_here = tuple(ranks[inner * share : (inner + 1) * share])
            seats.append(StageAssignment(island.name, ranks_here, layout, start + shift, stop + shift, runs))
    return tuple(seats)


def _joint_seat(
    place: Placed, islands: Sequence[Island], next_node: list[int], placement: Placement
) -> StageAssignment:
    """A stage on the next nodes of several islands: a part on each, or one part for all."""
    partial, first = place.partial, placement.first_rank
    kind_of = {island.name: kind for kind, island in enumerate(islands)}
    shift = place.start - partial.start
    parts: list[StageAssignment] = []
    for portion in partial.portions:
        kind = kind_of[portion.island]
        taken = islands[kind].node_indices[next_node[kind] : next_node[kind] + portion.nodes]
        next_node[kind] += portion.nodes
        ranks = tuple(rank for node in taken for rank in range(first[node], first[node + 1]))
        runs = tuple(LayoutRun(run.start + shift, run.stop + shift, run.layout) for run in portion.runs)
        parts.append(
            StageAssignment(
                portion.island,
                ranks,
                portion.layout,
                place.start,
                place.stop,
                runs,
                sequences=portion.sequences,
            )
        )
    if all(part.sequences for part in parts):
        return replace(parts[0], beside=tuple(parts[1:]))
    ranks = tuple(sorted(rank for part in parts for rank in part.ranks))
    return replace(parts[0], island="+".join(part.island for part in parts), ranks=ranks)


def pipeline_of(
    seats: Iterable[StageAssignment], layers: int, microbatch: int, microbatches: int
) -> Pipeline:
    """The `Pipeline` of these stages, with one chunk each."""
    stages = []
    for seat in seats:
        blocks = _blocks(seat.start, seat.stop, layers)
        parts = tuple(
            Part(
                stage_assignment.island,
                stage_assignment.ranks,
                stage_assignment.sequences or microbatch,
                stage_assignment.layouts(layers),
            )
            for stage_assignment in (seat, *seat.beside)
        )
        chunks = (blocks,) if blocks[1] > blocks[0] else ()
        stages.append(Stage(chunks, seat.start == 0, seat.stop == layers + 2, parts))
    return Pipeline(microbatches, microbatch, tuple(stages))


class PlanEvaluator:
    """Simulates pipelines of one model, cluster and job; results for equal stages are cached.

    Seconds are kept for all pipelines, lowered steps (10^5 ops for a large batch) only for the few used last.
    """

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        job: Job,
        lowering: Lowering,
        counts: Counts,
        deadline: Deadline | None = None,
    ) -> None:
        self.deadline = deadline or Deadline()
        self.model, self.cluster, self.job = model, cluster, job
        self.lowering, self.counts = lowering, counts
        self._shared: dict[Finalist, float] = {}
        self._seconds: dict[Finalist, float] = {}
        self._lowered: OrderedDict[Finalist, tuple[Pipeline, LoweredStep]] = OrderedDict()

    def step_s(self, seats: tuple[StageAssignment, ...], microbatch: int) -> float:
        """Simulated seconds of the step without shared links; inf where it does not fit memory."""
        from tangram_sim.training.schedules.step import play_steps

        key = (seats, microbatch)
        if key not in self._seconds:
            _, step = self.lowered(seats, microbatch)
            seconds = float("inf")
            if step.fits():
                seconds = float(play_steps(step.template, step.template.durations(step.times)[None, :])[0])
            self.counts.played += 1
            self._seconds[key] = seconds
        return self._seconds[key]

    def lowered(self, seats: tuple[StageAssignment, ...], microbatch: int) -> tuple[Pipeline, LoweredStep]:
        """The pipeline and its lowered step, ready to be simulated."""
        key = (seats, microbatch)
        if key not in self._lowered:
            pipeline = pipeline_of(seats, self.model.layers, microbatch, self.job.global_batch // microbatch)
            self._lowered[key] = pipeline, self.lowering.lower(pipeline)
            if len(self._lowered) > LOWERED:
                self._lowered.popitem(last=False)
        self._lowered.move_to_end(key)
        return self._lowered[key]

    def play(
        self, seats: tuple[StageAssignment, ...], microbatch: int
    ) -> tuple[float, Pipeline, LoweredStep]:
        """Simulated seconds of the step (inf where it does not fit), the pipeline and its lowered step."""
        return (self.step_s(seats, microbatch), *self.lowered(seats, microbatch))

    def ops(self, seats: tuple[StageAssignment, ...], microbatch: int) -> int:
        """Number of passes and transfers in the step, which sets the time and memory of a simulation."""
        return 4 * len(seats) * (self.job.global_batch // microbatch)

    def shared(self, seats: tuple[StageAssignment, ...], microbatch: int) -> float:
        """Simulated seconds of the step with shared links, as `forecast` plays it; inf: does not fit."""
        key = (seats, microbatch)
        if key not in self._shared:
            step = self.lowered(seats, microbatch)[1]
            fits = step.fits()
            self._shared[key] = contention.play(step.graph()).makespan_s if fits else float("inf")
        return self._shared[key]

    def in_time(self, contenders: Sequence[Finalist]) -> list[Finalist]:
        """Contenders simulated with shared links before the deadline, at least one, fastest first."""
        told: list[Finalist] = []
        for contender in contenders:
            if told and self.deadline.over():
                break
            self.shared(*contender)
            told.append(contender)
        return sorted(told, key=lambda item: self.shared(*item))

    def scored(self, seats: tuple[StageAssignment, ...], microbatch: int) -> Scored:
        """The plan simulated with shared links. Raises TangramError where it does not fit memory."""
        seconds, pipeline, step = self.play(seats, microbatch)
        if seconds == float("inf"):
            raise TangramError("a plan that does not fit its memory was to be scored")
        plan = Plan(self.model, self.cluster, self.job, (pipeline,))
        return Scored(plan, step, self.shared(seats, microbatch))

    def refine(
        self, seats: tuple[StageAssignment, ...], microbatch: int, rounds: int = 40, ops: int = 0
    ) -> tuple[StageAssignment, ...]:
        """Stages after moving single atoms to a nearby stage while that shortens the simulated step.

        `ops`: limit on simulated ops, transfers share links; 0: no limit, every transfer has its own link.
        """
        played = self.shared if ops else self.step_s
        best, reach, left = played(seats, microbatch), 1, ops // self.ops(seats, microbatch)
        for _ in range(rounds):
            improved = False
            for index in range(len(seats) - reach):
                for move in (1, -1):
                    moved = _moved(seats, index, index + reach, move)
                    if self.deadline.over() or (ops and left <= 0):
                        return seats
                    if moved is None:
                        continue
                    left -= 1
                    seconds = played(moved, microbatch)
                    if seconds < best * (1 - 1e-9):
                        best, seats, improved = seconds, moved, True
            if improved:
                reach = 1
            elif reach == _FARTHEST:
                break
            else:
                reach += 1
        return seats


def _moved(
    seats: tuple[StageAssignment, ...], first: int, last: int, move: int
) -> tuple[StageAssignment, ...] | None:
    """The stages with all boundaries between stages `first` and `last` moved by `move` atoms.

    So one atom passes from one of these two stages to the other, and the stages between keep their number of
    atoms. None when a stage would be empty.
    """
    changed = list(seats)
    for index in range(first, last + 1):
        start = seats[index].start + (move if index > first else 0)
        stop = seats[index].stop + (move if index < last else 0)
        if start >= stop:
            return None
        changed[index] = seats[index].between(start, stop)
    return tuple(changed)
