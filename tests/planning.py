"""Small planning instances and their brute force: shared by the tests of the planner."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from operator import gt, sub
from typing import Any
from unittest.mock import patch

import numpy as np

from tangram_sim.clusters import Cluster, GroupLimit, Island, Network, Node, NodeGroup
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.placement.islands import find_islands
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import POLICIES, Counts, Found, SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.search_memory import SearchMemory
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition import exact
from tangram_sim.planners.tangram.composition.composed import Composed, Placed
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator, seats_of
from tangram_sim.planners.tangram.composition.labels import LinkBounds, Look, PipelineTable, roads
from tangram_sim.planners.tangram.composition.search import hop_seconds, microbatch_sizes
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.enumeration.enumerate import Enumeration
from tangram_sim.planners.tangram.enumeration.table import PartialPlanTable
from tangram_sim.training.job import Job
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.lowered import Lowering

HWDB = Hwdb.load()
GPUS = ("T4", "RTX-3090", "V100-PCIe-16GB", "V100-SXM2-32GB", "A100-PCIe-80GB", "H100-NVL-94GB")  # by speed


@dataclass(frozen=True)
class Instance:
    """A problem small enough for brute force."""

    model: Model
    cluster: Cluster
    job: Job
    constraints: Constraints


def random_instance(seed: int, most_nodes: int = 2, hwdb: Hwdb = HWDB) -> Instance:
    """Two or three GPU kinds, one or two nodes each, a model of four to six layers, memory often tight."""
    rng = random.Random(seed)
    # Neighbours in speed: with very unequal kinds the fastest alone is best and any habit finds it.
    size, first = rng.choice((2, 2, 3)), rng.randrange(len(GPUS) - 2)
    kinds = rng.sample(GPUS[first : first + size], size)
    groups = []
    for index, name in enumerate(kinds):
        gpu = hwdb.gpu(name)
        shrunk = replace(gpu, memory_bytes=gpu.memory_bytes * rng.choice((1.0, 0.6, 0.4)))
        node = Node(
            shrunk,
            rng.choice((1, 2)),
            hwdb.link(rng.choice(("PCIe3x16", "PCIe4x16"))),
            rng.choice((6e9, 12.5e9, 25e9)),
        )
        groups.append(NodeGroup(f"g{index}", rng.randint(1, most_nodes if len(kinds) == 2 else 1), node))
    between = (GroupLimit((0, 1), rng.choice((1.25e9, 3e9)), 50e-6),) if rng.random() < 0.3 else ()
    hidden = rng.choice((2048, 2048, 4096))
    width = FeedForward(4 * hidden, gated=False, bias=True)
    block = Block(Attention(16, 16, hidden // 16, hidden // 16), width, norm_bias=True)
    wide = Block(block.attention, FeedForward(8 * hidden, gated=True))
    blocks = [wide if rng.random() < 0.25 else block for _ in range(rng.randint(4, 6))]
    model = Model("random", "gpt2", hidden, rng.choice((8192, 51200)), tuple(blocks), tied=rng.random() < 0.5)
    job = Job(rng.choice((16, 32)), 1024, "fp16", "adamw", "1f1b")
    constraints = Constraints(
        fixed=(("cp", 1), ("zero_stage", 1)), recompute=("none", "full"), sequence_parallel=False
    )
    if rng.random() < 0.5:
        constraints = Constraints(
            fixed=(("cp", 1), ("zero_stage", 0)), recompute=("none", "full"), sequence_parallel=False
        )
    return Instance(model, Cluster(f"random-{seed}", tuple(groups), Network(1.0, between)), job, constraints)


class Workshop:
    """What the planner builds for an instance, opened up for tests."""

    def __init__(self, instance: Instance, hwdb: Hwdb = HWDB) -> None:
        model, cluster, job = instance.model, instance.cluster, instance.job
        self.instance, self.hwdb = instance, hwdb
        self.islands: tuple[Island, ...] = find_islands(cluster, "fp16", hwdb=hwdb)
        self.bound = WorkBound(model, job, self.islands, hwdb)
        self.work = np.concatenate([[0.0], np.cumsum(self.bound.seconds.min(axis=0))])
        lowering = Lowering(Placement(cluster, hwdb), StagePrices(model, job, hwdb))
        self.referee = PlanEvaluator(model, cluster, job, lowering, Counts())
        self.grid = Grid()
        self.tables: dict[int, PartialPlanTable] = {}
        self.counts = [island.nodes for island in self.islands]

    def enumeration(
        self, parallelizer: Grid | None = None, policies: Sequence[str] = POLICIES
    ) -> Enumeration:
        instance = self.instance
        return Enumeration(
            instance.model,
            instance.job,
            self.islands,
            parallelizer or self.grid,
            instance.constraints,
            self.hwdb,
            self.bound,
            Counts(),
            policies=policies,
        )

    def table(self, microbatch: int) -> PartialPlanTable:
        """Of every partial plan of the grid, however slow; made once."""
        if microbatch not in self.tables:
            made = self.enumeration().table(microbatch, float("inf"), [1] * len(self.islands))
            self.tables[microbatch] = made
        return self.tables[microbatch]

    def hops(self, microbatch: int) -> np.ndarray:
        model, job = self.instance.model, self.instance.job
        size = job.boundary_bytes(model, microbatch)
        return hop_seconds(self.islands, self.instance.cluster, self.hwdb, size, ())

    def played(self, composed: Composed) -> float:
        seats = seats_of(composed, self.islands, self.referee.lowering.placement)
        return self.referee.step_s(seats, composed.microbatch)


def pipelines(table: PartialPlanTable, counts: list[int]) -> Iterator[tuple[tuple[int, int, int], ...]]:
    """Every complete pipeline: (option, start, stop) front to back, memory and node counts respected."""
    atoms, islands = table.slice_class.shape[0] - 1, [*np.eye(len(counts), dtype=int), *table.joint]

    def needed(option: int) -> tuple[int, ...]:
        """Nodes of every island."""
        kind, nodes = int(table.ints[option, 0]), int(table.ints[option, 1])
        return tuple(nodes * int(island) for island in islands[kind])

    def fits(pipeline: tuple[tuple[int, int, int], ...]) -> bool:
        """Where stages hold the whole depth, each must fit at the depth of the complete pipeline."""
        depth = sum(int(table.ints[option, 2]) for option, _, _ in pipeline)
        return not table.whole_depth or all(
            depth - int(table.ints[option, 2]) <= int(table.ints[option, 3]) for option, _, _ in pipeline
        )

    choices: dict[tuple[int, int], list[tuple[int, tuple[int, ...], int, int]]] = {}
    for start, stop in combinations(range(atoms + 1), 2):
        group = int(table.slice_class[start, stop])
        choices[start, stop] = [
            (option, needed(option), int(table.ints[option, 2]), int(table.ints[option, 3]))
            for option in range(int(table.option_ptr[group]), int(table.option_ptr[group + 1]))
        ]

    def extend(stop: int, left: tuple[int, ...], behind: int) -> Iterator[tuple[tuple[int, int, int], ...]]:
        if stop == 0:
            yield ()
            return
        for start in range(stop):
            for option, nodes, depth, most in choices[start, stop]:
                if behind > most or any(map(gt, nodes, left)):
                    continue
                for front in extend(start, tuple(map(sub, left, nodes)), behind + depth):
                    yield (*front, (option, start, stop))

    yield from filter(fits, extend(atoms, tuple(counts), 0))


def objective_s(
    table: PartialPlanTable, pipeline: tuple[tuple[int, int, int], ...], hops: np.ndarray
) -> float:
    """The objective from first principles: the latest end of any stage's tail, plus the repeats."""
    stages = []  # (forward, total, tail, hop to the next stage), front to back
    for position, (option, _, _) in enumerate(pipeline):
        partial = table.partials[option]
        kind = int(table.ints[option, 0])
        for place, stage in enumerate(partial.stages):
            if place + 1 < len(partial.stages):
                hop = partial.hop_s
            elif position + 1 < len(pipeline):
                hop = float(hops[kind, int(table.ints[pipeline[position + 1][0], 0])])
            else:
                hop = 0.0
            stages.append(
                (
                    stage.forward_s,
                    stage.forward_s + stage.backward_s,
                    stage.gradient_sync_s + stage.optimizer_s,
                    hop,
                )
            )
    ends = []
    for number, (_, _, tail, _) in enumerate(stages):
        before = sum(forward + hop for forward, _, _, hop in stages[:number])
        behind = sum(total + 2 * hop for _, total, _, hop in stages[number:])
        ends.append(before + behind + tail)
    slowest = max(total for _, total, _, _ in stages)
    return max(ends) + (table.microbatches - 1) * slowest


def composed_of(
    table: PartialPlanTable, pipeline: tuple[tuple[int, int, int], ...], value: float
) -> Composed:
    places = tuple(
        Placed(int(table.ints[option, 0]), start, stop, table.partials[option])
        for option, start, stop in pipeline
    )
    return Composed(value, places, table.microbatch, table.microbatches)


def ways_of(workshop: Workshop, table: PartialPlanTable, hops: np.ndarray, kinds: list[Island]) -> LinkBounds:
    """Roads between stages on these islands, as the search makes them."""
    size = workshop.instance.job.boundary_bytes(workshop.instance.model, table.microbatch)
    return roads(kinds, workshop.instance.cluster, workshop.hwdb, size, hops)


def problem_of(workshop: Workshop, table: PartialPlanTable, one_by_one: bool = False) -> PipelineTable:
    """A table over single islands, ready for looks."""
    ways = ways_of(workshop, table, workshop.hops(table.microbatch), list(workshop.islands))
    instance = workshop.instance
    return PipelineTable(table, workshop.counts, ways, instance.model, instance.job, one_by_one)


def least_s(problem: PipelineTable, limit_s: float = float("inf")) -> float:
    """The least value of the recursion below a limit, inf: none; of labels, nothing left out but what others
    beat."""
    found = problem.below(Look(limit_s, 1 << 40, 1 << 22), Deadline())
    assert found is not None
    return float(found.bounds.min(initial=float("inf")))


def recursion_s(problem: PipelineTable, pipeline: tuple[tuple[int, int, int], ...]) -> float:
    """The recursion of docs/models/composition.md for one pipeline, stage by stage from the back."""
    times = problem.floats[[option for option, _, _ in pipeline]]
    kinds = [int(problem.ints[option, 0]) for option, _, _ in pipeline]
    latency = arrives = ends = 0.0
    depth, repeats = 0, problem.table.microbatches - 1
    for place in range(len(pipeline) - 1, -1, -1):
        once, forward, own, again, loss, tail, inner_hop, rate, longer, _ = times[place]
        hop = 0.0
        if place + 1 < len(pipeline):
            lag, limit = problem.between[:, kinds[place], kinds[place + 1]]
            hop = lag + problem.ways.size / min(rate, times[place + 1][7], limit)
        depth += int(problem.ints[pipeline[place][0], 2])
        latency += once + 2 * hop
        ahead = round_trips = 0.0
        if problem.lost == 1:
            ahead = min(depth - 1, repeats)
            rounds, rest = divmod(repeats, depth)
            round_trips = rounds * latency + rest * longer
        elif problem.lost == 2 and depth > 1:
            ahead = repeats
        slow = max(again - ahead * loss, repeats * max(hop, inner_hop), round_trips)
        arrives = max(arrives + once + 2 * hop, own, latency + slow)
        ends = max(ends + forward + hop, arrives + tail)
    value = max(ends, arrives)
    inner = int(problem.ints[pipeline[0][0], 2])
    if problem.tied_bytes and depth > inner:
        lag, limit = problem.between[:, kinds[0], kinds[-1]]
        value = max(value, arrives + problem.tied_bytes / min(times[0][9], times[-1][9], limit) + 2 * lag)
    return float(value)


def passes_s(composed: Composed) -> float:
    """Seconds that no play of a pipeline goes below, whichever stage is looked at.

    All of a stage's passes one after another, and before and behind these one microbatch's through the
    stages in front.
    """
    least = in_front = 0.0
    for place in composed.places:
        for stage in place.partial.stages:
            once = stage.forward_s + stage.backward_s
            least = max(least, in_front + composed.microbatches * once)
            in_front += once
    return least


def exhaustive_s(workshop: Workshop, every: bool = False) -> float:
    """The fastest of all pipelines of all partial plans, played whole.

    Unless `every` one is to be played, those are left out whose passes alone take as long as the best step.
    """
    found: list[tuple[float, Composed]] = []
    for microbatch in microbatch_sizes(workshop.instance.job):
        table, hops = workshop.table(microbatch), workshop.hops(microbatch)
        for pipeline in pipelines(table, workshop.counts):
            composed = composed_of(table, pipeline, objective_s(table, pipeline, hops))
            found.append((passes_s(composed), composed))
    best = float("inf")
    for least, composed in sorted(found, key=lambda item: item[0]):
        if least >= best and not every:
            break
        seconds = workshop.played(composed)
        assert seconds >= least * (1 - 1e-9)
        best = min(best, seconds)
    return best


def planned(workshop: Workshop) -> Found:
    """The planner's answer; slices that the referee has priced are not priced again."""
    instance = workshop.instance
    wishes = SearchOptions(
        constraints=instance.constraints, replicate=False
    )  # the referee sees single pipelines
    with SearchMemory(parallelizers={wishes.parallelizer: workshop.grid}).in_use():
        return tangram(instance.model, instance.cluster, instance.job, workshop.hwdb, wishes)


def second_looks(few_labels: int = 1 << 10, some_labels: int = 1 << 14, proven: float = 1e-3) -> Any:
    """Within it, second looks at what a proof left are made up to so many labels and down to such a gap."""
    return patch.multiple(exact, _FEW_LABELS=few_labels, _SOME_LABELS=some_labels, _PROVEN=proven)
