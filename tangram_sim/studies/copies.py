"""Plans that lose little throughput when a node fails: copies of pipelines on few nodes each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies import api
from tangram_sim.studies.forecast import seconds_of
from tangram_sim.studies.losses import without_nodes
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline, Plan, Stage
from tangram_sim.training.problem import TrainingProblem
from tangram_sim.training.schedules import chunked
from tangram_sim.training.shares import by_earliest_end

_MOST = 64  # copies of one set of nodes: more end no later, and are long to play
_SIZES = 3  # of copies on one kind of nodes: the smallest that hold the model, each twice the one before
_QUICK = "quick"  # effort of a copy's search: few nodes
# Copies that cut layers or tensors in other ways than their neighbours add up gradients slowly: all of them
# also without either.
_FIXED: tuple[tuple[tuple[str, int], ...], ...] = ((), (("pp", 1),), (("pp", 1), ("tp", 1)))


@dataclass(frozen=True, slots=True)
class NodeCell:
    """A pipeline on one set of nodes, the equal sets that can hold copies, and its microbatch times."""

    pipeline: Pipeline  # on the first set; one microbatch
    ranks: tuple[dict[int, int], ...]  # for every set: where the first one's ranks lie on it
    first_s: float
    further_s: float

    def on(self, place: int, microbatch: int, microbatches: int) -> Pipeline:
        """The copy of the pipeline on set number `place`."""
        at = self.ranks[place]
        stages = tuple(_moved(stage, at, microbatch) for stage in self.pipeline.stages)
        return Pipeline(microbatches, microbatch, stages)

    def takes(self, microbatch: int) -> bool:
        """Whether the pipeline can run with microbatches of this many sequences."""
        layouts = [run.layout for stage in self.pipeline.stages for run in stage.parts[0].layouts]
        whole = all(len(stage.parts) == 1 for stage in self.pipeline.stages)
        return microbatch == self.pipeline.microbatch or (
            whole and all(microbatch % layout.dp == 0 for layout in layouts)
        )


def copies_side_by_side(
    model: Model, cluster: Cluster, job: Job, hwdb: Hwdb, margin: float, deadline: Deadline
) -> Iterator[Plan]:
    """Plans made of copies: on few nodes of one group each, then on equal shares of all groups.

    The number format of `job` is settled. The batch is split by speed; nodes that no copy fits stay idle.
    Yields nothing where the schedule has several chunks or the interconnect is stated node by node.
    """
    if chunked(job.schedule) or cluster.wiring.full:
        return
    asked = _Asked(model, cluster, job, hwdb, margin, deadline)
    for fixed in _FIXED:
        alone = [_of_group(asked, group, fixed) for group in range(len(cluster.groups))]
        able = [sizes for sizes in alone if sizes]
        for level in range(max(map(len, able), default=0)):
            made = _together(asked, [sizes[min(level, len(sizes) - 1)] for sizes in able])
            if made is not None:
                yield made
    if len(cluster.groups) == 1:
        return
    common = gcd(*(group.count for group in cluster.groups))
    for copies in [divisor for divisor in divisors(common)[::-1] if 1 < divisor <= _MOST][:_SIZES]:
        cell = _cell(asked, [group.count // copies for group in cluster.groups], ())
        made = None if cell is None else _together(asked, [cell])
        if made is not None:
            yield made


@dataclass(frozen=True)
class _Asked(TrainingProblem):
    """The planning question that all copies answer."""

    margin: float
    deadline: Deadline


def _of_group(asked: _Asked, group: int, fixed: tuple[tuple[str, int], ...]) -> list[NodeCell]:
    """Pipelines on 1, 2, 4, ... nodes of one group: the first _SIZES that fit, at most _MOST copies."""
    groups = asked.cluster.groups
    count = groups[group].count
    found: list[NodeCell] = []
    nodes = 1
    while nodes <= count and len(found) < _SIZES and not asked.deadline.over():
        if count // nodes <= _MOST:
            cell = _cell(asked, [nodes * (other == group) for other in range(len(groups))], fixed)
            found += [cell] if cell else []
        nodes *= 2
    return found


def _cell(asked: _Asked, counts: Sequence[int], fixed: tuple[tuple[str, int], ...]) -> NodeCell | None:
    """The fastest single pipeline on `counts` nodes of each group for their share of the batch, or None."""
    if asked.deadline.over():
        return None
    model, cluster, job, hwdb = asked.model, asked.cluster, asked.job, asked.hwdb
    sets = _sets(cluster, counts)
    small, _ = without_nodes(cluster, frozenset(range(len(cluster.node_group))) - set(sets[0]))
    share = max(job.global_batch * small.gpus // cluster.gpus, 1)
    batch = max(divisor for divisor in divisors(job.global_batch) if divisor <= share)
    wishes = SearchOptions(
        effort=_QUICK,
        replicate=False,
        beside=False,
        memory_margin=asked.margin,
        constraints=Constraints(fixed=fixed),
    )
    part = replace(job, global_batch=batch)
    try:
        made = api.plan(model, small, part, wishes=wishes, hwdb=hwdb, deadline=asked.deadline).forecast.plan
    except (BadInputError, InfeasibleError):
        return None
    if len(made.pipelines) != 1:  # of many nodes copies of patterns are planned, not one pipeline
        return None
    (pipeline,) = made.pipelines
    lone, several = (
        seconds_of(_of_microbatches(made, count), hwdb) for count in (1, max(pipeline.microbatches, 2))
    )
    further_s = (several - lone) / (max(pipeline.microbatches, 2) - 1)
    ranks = [[rank for node in nodes for rank in _ranks(cluster, node)] for nodes in sets]
    at = tuple(dict(enumerate(some)) for some in ranks)
    return NodeCell(replace(pipeline, microbatches=1), at, lone, further_s)


def _sets(cluster: Cluster, counts: Sequence[int]) -> list[list[int]]:
    """As many disjoint sets as there are of `counts` nodes of each group, in node order."""
    nodes = [
        [node for node, group in enumerate(cluster.node_group) if group == number]
        for number in range(len(cluster.groups))
    ]
    copies = min(len(own) // count for own, count in zip(nodes, counts, strict=True) if count)
    return [
        [node for own, count in zip(nodes, counts, strict=True) for node in own[at * count :][:count]]
        for at in range(copies)
    ]


def _together(asked: _Asked, cells: Sequence[NodeCell]) -> Plan | None:
    """One plan with all copies of the cells, the batch split by speed; None if it cannot be split."""
    copies = [(cell, place) for cell in cells for place in range(len(cell.ranks))]

    def shared(sizes: Sequence[int]) -> tuple[int, ...]:
        return by_earliest_end(
            asked.job.global_batch,
            lambda number, turns: copies[number][0].first_s + (turns - 1) * copies[number][0].further_s,
            sizes,
        )

    sizes = [cell.pipeline.microbatch for cell, _ in copies]
    sequences = shared(sizes)
    if any(taken % size for taken, size in zip(sequences, sizes, strict=True)):
        common = gcd(*sizes)
        if not all(cell.takes(common) for cell in cells):
            return None
        sizes = [common] * len(copies)
        sequences = shared(sizes)
    pipelines = tuple(
        cell.on(place, size, taken // size)
        for (cell, place), size, taken in zip(copies, sizes, sequences, strict=True)
        if taken
    )
    return Plan(asked.model, asked.cluster, asked.job, pipelines)


def _of_microbatches(made: Plan, count: int) -> Plan:
    """A plan of one pipeline with `count` microbatches."""
    (pipeline,) = made.pipelines
    job = replace(made.job, global_batch=count * pipeline.microbatch)
    return replace(made, job=job, pipelines=(replace(pipeline, microbatches=count),))


def _moved(stage: Stage, at: dict[int, int], microbatch: int) -> Stage:
    """A stage on other ranks; a stage of one part also takes the new microbatch size."""
    parts = tuple(
        replace(
            part,
            ranks=tuple(at[rank] for rank in part.ranks),
            sequences_per_microbatch=microbatch if len(stage.parts) == 1 else part.sequences_per_microbatch,
        )
        for part in stage.parts
    )
    return replace(stage, parts=parts)


def _ranks(cluster: Cluster, node: int) -> range:
    return range(*cluster.first_rank[node : node + 2])
