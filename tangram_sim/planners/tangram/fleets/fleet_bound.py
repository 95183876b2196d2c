"""A bound on fleets: pipelines side by side, every stage on GPUs of one island (docs/models/bound.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.layers.atoms import Slice
from tangram_sim.parallelizers.api import Constraints, Request
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.api import Counts
from tangram_sim.planners.budget import FleetBudget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound, has_equal_members
from tangram_sim.planners.tangram.enumeration.table import slice_classes
from tangram_sim.planners.tangram.fleets.patterns import FleetProblem
from tangram_sim.registry import parallelizer as parallelizer_named
from tangram_sim.training.plan import Plan

ZERO_STAGE = 1  # 0 takes as long per microbatch and more memory; 2 and 3 communicate in each: not covered
MANY = 1 << 12  # microbatches: memory of a stage is asked about for as many in flight as it may need
DEPTHS = 64  # stages behind that are told apart
GROWTH = 1.06  # of the numbers of microbatches that are looked at together
EXACT = 0.005  # width of the range of paces at which the bound is good enough
FINE = 0.015  # of the bound
ROUNDS = 4  # of prices of GPUs
STEP = 0.05  # by which the first round changes them


@dataclass(frozen=True, slots=True)
class Options:
    """What a stage may be, by class of slices: arrays over options."""

    pointers: NDArray[np.int64]  # (classes + 1)
    kinds: NDArray[np.int64]  # islands
    gpus: NDArray[np.float64]  # for one sequence in flight
    seconds: NDArray[np.float64]  # forward and backward of one microbatch
    behind: NDArray[np.int64]  # most stages behind

    def __getitem__(self, kept: NDArray[np.bool_]) -> "Options":
        pointers = np.concatenate([[0], np.cumsum(kept)])[self.pointers]
        columns = {one.name: getattr(self, one.name)[kept] for one in fields(self)[1:]}
        return Options(pointers, **columns)


def unbounded(ground: FleetProblem) -> str:
    """Why no bound on fleets is looked for; empty where one is."""
    if ground.job.schedule != "1f1b":
        return f"it covers 1f1b, not {ground.job.schedule}"
    if ground.parallelizer != "grid" or ground.constraints != Constraints():
        return "it covers all layouts of the parallelizer grid: fix nothing, and ask no other"
    if any(island.paths is not None for island in ground.islands):
        return "it knows no stated graphs of links"
    for island in ground.islands:
        if not has_equal_members(island, ground.cluster):
            return f"it covers islands of equal nodes, and {island.name} joins unequal ones"
    return ""


def fleet_bound_s(
    ground: FleetProblem, bound: WorkBound, known_s: float, counts: Counts, deadline: Deadline
) -> float:
    """No fleet that `covers` admits is played in less; at most `known_s`, the step of a plan.

    0 where time was up. `bound` and `ground` are of all islands, nothing fixed.
    """
    options = options_of(ground, known_s, counts, deadline)
    within_s, prices, last = known_s, bound.value, None
    while within_s > bound.step_s():
        for turn in range(ROUNDS):
            if deadline.over():
                return 0.0
            least_s = bound.batch * float((bound.seconds * prices[:, None]).min(axis=0).sum())
            found = _Chains(ground, options, prices, least_s).below(within_s, last)
            if found is None:
                return within_s
            last, shares = found
            # Whoever is used more than its part of the cluster is too cheap.
            wanted = shares / shares.sum() - prices * bound.gpus
            prices = prices * np.exp(STEP / (1 + turn) * wanted)
            prices = prices / (prices * bound.gpus).sum()
        within_s /= 1 + FINE
    return bound.step_s()


def covers(plan: Plan, islands: Sequence[Island], budget: FleetBudget) -> bool:
    """Whether the bound says something about a plan.

    1F1B pipelines, every stage on one island under one layout without ZeRO 2 and 3, a replica on a part of a
    node that divides it, or on up to the budget's widest nodes, with as many sequences of a microbatch as it
    names.
    """
    home = {node: island for island in islands for node in island.node_indices}
    sizes = [group.node.gpus for group in plan.cluster.groups for _ in range(group.count)]
    node_of = [node for node, size in enumerate(sizes) for _ in range(size)]
    for pipeline in plan.pipelines:
        for stage in pipeline.stages:
            part, layout = stage.parts[0], stage.layout
            kinds = {home.get(node_of[rank]) for rank in stage.ranks}
            (island,) = kinds if len(kinds) == 1 else (None,)
            if island is None or len(stage.parts) > 1 or len(part.layouts) > 1:
                return False
            if (
                layout.zero_stage > ZERO_STAGE
                or layout.pp > 1
                or layout.ep & (layout.ep - 1)
                or layout.gpus // layout.dp not in _sizes(island, budget)
                or layout.sequences_per_rank(part.sequences_per_microbatch) not in budget.sequences
            ):
                return False
    return plan.job.schedule == "1f1b"


def _sizes(island: Island, budget: FleetBudget) -> tuple[int, ...]:
    """GPUs of a replica."""
    node = island.gpus_per_node
    return (*divisors(node), *(node * nodes for nodes in range(2, budget.widest + 1)))


def options_of(ground: FleetProblem, within_s: float, counts: Counts, deadline: Deadline) -> Options:
    """Partial plans of one replica that take at most `within_s`, by class of slices."""
    firsts, _ = slice_classes(ground.model)
    parallelizer = parallelizer_named(ground.parallelizer)()
    rows: list[list[tuple[float, ...]]] = [[] for _ in firsts]
    shortest = sorted(range(len(firsts)), key=lambda group: firsts[group][1] - firsts[group][0])
    for kind, gpus, sequences, request in _requests(ground, within_s):
        if deadline.over():
            break
        length, some = 1, True  # of the slices asked about last; whether any of them had an answer
        for group in shortest:
            start, stop = firsts[group]
            if stop - start > length:
                if not some and length > 1:
                    break  # longer ones take more memory and longer
                length, some = stop - start, False
            counts.asked += 1
            for partial in parallelizer.parallelize(
                replace(request, slice=Slice(ground.model, start, stop))
            ).partials:
                some = True
                rows[group].append((kind, gpus / sequences, partial.slowest_s, partial.stages_behind))
    flat = np.array([row for group in rows for row in group], dtype=np.float64).reshape(-1, 4)
    pointers = np.concatenate([[0], np.cumsum([len(group) for group in rows])]).astype(np.int64)
    return Options(pointers, flat[:, 0].astype(np.int64), flat[:, 1], flat[:, 2], flat[:, 3].astype(np.int64))


def _requests(ground: FleetProblem, within_s: float) -> Iterator[tuple[int, int, int, Request]]:
    """(island, GPUs and sequences of one replica, a request to put slices into).

    As many replicas side by side as a cluster a power of two larger would hold: state is sharded over no
    fewer, and degrees of experts that are powers of two divide them.
    """
    first = Slice(ground.model, 0, 1)
    nodes = 1 << sum(island.nodes for island in ground.islands).bit_length()
    for kind, island in enumerate(ground.islands):
        many = replace(island.anonymous(), nodes=nodes)
        for gpus in _sizes(island, ground.budget.fleets):
            copies = many.gpus // gpus
            constraints = Constraints(
                copies=copies, fixed=(("dp", copies), ("pp", 1)), zero_stages=(ZERO_STAGE,)
            )
            for sequences in ground.budget.fleets.sequences:
                microbatch = copies * sequences
                job = replace(ground.job, global_batch=microbatch * MANY)
                request = Request(first, many, job, microbatch, MANY, ground.hwdb, constraints, within_s)
                yield kind, gpus, sequences, request


@dataclass(frozen=True, slots=True)
class Range:
    """Pipelines of so many microbatches, whose slowest stage takes so long for one."""

    fewest: int
    most: int
    low_s: float
    high_s: float

    def halves(self) -> "tuple[Range, ...]":
        """This range of paces cut into two halves; none where it is narrow."""
        if self.most == 1 or self.high_s <= self.low_s * (1 + EXACT):
            return ()
        middle_s = (self.low_s * self.high_s) ** 0.5
        return replace(self, high_s=middle_s), replace(self, low_s=middle_s)


class _Chains:
    """What chains of stages take under prices of one GPU of every island, all GPUs together costing 1."""

    def __init__(
        self, ground: FleetProblem, options: Options, prices: NDArray[np.float64], work_s: float
    ) -> None:
        from tangram_sim.planners.tangram.fleets.fleet_bound_kernels import unbeaten

        _, classes = slice_classes(ground.model)
        self.of_slice = np.array(classes, dtype=np.int64)
        self.batch, self.islands, self.work_s = ground.job.global_batch, len(prices), work_s
        price = options.gpus * prices[options.kinds]
        kept = unbeaten(options.pointers, price, options.seconds, options.behind)
        self.options, self.price = options[kept], np.ascontiguousarray(price[kept])

    def below(self, within_s: float, first: Range | None) -> tuple[Range, NDArray[np.float64]] | None:
        """Where a chain may end within so many seconds, and what it pays by island; None: nowhere.

        Looks at `first` before all others.
        """
        ranges = [first] if first else []
        if not first or self._shares(within_s, first) is None:
            ranges = [*self._all(within_s), *ranges]
        while ranges:
            some = ranges.pop()
            shares = self._shares(within_s, some)
            if shares is None:
                continue
            halves = some.halves()
            if not halves:
                return some, shares
            ranges += halves
        return None

    def _all(self, within_s: float) -> Iterator[Range]:
        yield Range(1, 1, 0.0, 0.0)
        fewest = 2
        while fewest <= self.batch:
            most = min(max(fewest, int(fewest * GROWTH)), self.batch)
            # A stage works on all microbatches; hidden forwards of the first ones are less than half of that.
            yield Range(fewest, most, 0.25 * self.work_s / most, within_s / (fewest - 1))
            fewest = most + 1

    def _shares(self, within_s: float, some: Range) -> NDArray[np.float64] | None:
        """What a chain pays that may end in time; None: none can."""
        if some.most == 1:  # no pace: every weight gives a bound
            shares: NDArray[np.float64] | None = None
            for weight in within_s * np.geomspace(0.05, 20, 12):
                value, shares = self._cheapest(within_s, float("inf"), 1, self.batch * weight, 1.0)
                if value - weight > within_s:
                    return None
            return shares
        price, _ = self._cheapest(within_s, some.high_s, some.fewest, 1.0, 0.0)
        if self.batch * price > some.most * (1 + 1e-9):
            return None
        value, shares = self._cheapest(within_s, some.high_s, some.fewest, self.batch * some.low_s, 1.0)
        return None if value - some.high_s > within_s else shares

    def _cheapest(
        self, within_s: float, pace_s: float, fewest: int, per_price: float, per_second: float
    ) -> tuple[float, NDArray[np.float64]]:
        from tangram_sim.planners.tangram.fleets.fleet_bound_kernels import cheapest

        some = self.options
        value, shares = cheapest(
            self.of_slice,
            some.pointers,
            some.kinds,
            self.price,
            some.seconds,
            some.behind,
            within_s,
            pace_s,
            fewest,
            per_price,
            per_second,
            self.islands,
            DEPTHS,
        )
        return float(value), shares
