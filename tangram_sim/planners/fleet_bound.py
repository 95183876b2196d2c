"""A bound on fleets: pipelines side by side, every stage on GPUs of one island (docs/models/bound.md)."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from tangram_sim.lowering.atoms import Slice
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.api import Counts, FleetBound
from tangram_sim.planners.bound import WorkBound
from tangram_sim.planners.enumerate import slice_classes
from tangram_sim.planners.patterns import SEQUENCES, WIDEST, Ground
from tangram_sim.plans import PartialPlan, Plan
from tangram_sim.registry import parallelizer as parallelizer_named

ZERO_STAGE = 1  # 0 takes as long and more memory; 2 and 3 gather or reduce in every microbatch: not covered
ASKED = (128, 256, 512, 1024)  # atoms of a slice up to which all, every 2nd, 4th, 8th length is asked about
REPLICAS, NODES = 8, 4  # of every stage, side by side: no bound is looked for on fleets with fewer
HALF = 2  # fleets are covered with this part of the plan's own replicas and nodes
MARGIN = (
    0.05  # of the synchronisation among very many replicas: rings of few differ in more than their length
)
MANY = 1 << 12  # microbatches: memory of a stage is asked about for as many in flight as it may need
DEPTHS = 64  # stages behind that are told apart
GROWTH = 1.06  # of the numbers of microbatches that are looked at together
EXACT = 0.005  # width of the range of paces at which the bound is good enough
FINE = 0.01  # of the bound
ROUNDS = 6  # of prices of GPUs
STEP = 0.05  # by which the first round changes them


@dataclass(frozen=True, slots=True)
class Options:
    """What a stage may be, by class of slices: arrays over options."""

    pointers: NDArray[np.int64]  # (classes + 1)
    kinds: NDArray[np.int64]  # islands
    gpus: NDArray[np.float64]  # for one sequence in flight
    seconds: NDArray[np.float64]  # forward and backward of one microbatch
    forward_s: NDArray[np.float64]
    behind: NDArray[np.int64]  # most stages behind
    tails_s: NDArray[np.float64]  # gradient synchronisation after the last backward, at least

    def __getitem__(self, kept: NDArray[np.bool_]) -> "Options":
        pointers = np.concatenate([[0], np.cumsum(kept)])[self.pointers]
        columns = {one.name: getattr(self, one.name)[kept] for one in fields(self)[1:]}
        return Options(pointers, **columns)


def fleet_bound(ground: Ground, bound: WorkBound, plan: Plan, known_s: float, counts: Counts) -> FleetBound:
    """What no fleet is played below, at most `known_s`, the step of `plan`.

    Of 1F1B pipelines, stages on one island each without ZeRO 2 and 3, a replica on `WIDEST` nodes at most and
    with `SEQUENCES` of a microbatch, at least half as many replicas of every stage as the plan has. The work
    bound for other schedules and where ZeRO 0 and 1 are ruled out.
    """
    replicas, nodes = spread(plan)
    fewest = FleetBound(0.0, max(REPLICAS, replicas // HALF), max(NODES, nodes // HALF))
    zero = dict(ground.constraints.fixed).get("zero_stage", ZERO_STAGE)
    if ground.job.schedule != "1f1b" or zero > ZERO_STAGE or ZERO_STAGE not in ground.constraints.zero_stages:
        return replace(fewest, step_s=bound.step_s())
    # A ring of n sends (n - 1) / n of what it reduces, among replicas as among nodes.
    synced = 1 - 1 / min(fewest.replicas, fewest.nodes) - MARGIN
    options = options_of(ground, known_s, synced, counts)
    within_s, prices, last = known_s, bound.value, None
    while within_s > bound.step_s():
        for turn in range(ROUNDS):
            found = _Chains(ground, options, prices, bound.step_s()).below(within_s, last)
            if found is None:
                return replace(fewest, step_s=within_s)
            last, shares = found
            # Whoever is used more than its part of the cluster is too cheap.
            wanted = shares / shares.sum() - prices * bound.gpus
            prices = prices * np.exp(STEP / (1 + turn) * wanted)
            prices = prices / (prices * bound.gpus).sum()
        within_s /= 1 + FINE
    return replace(fewest, step_s=bound.step_s())


def covers(bound: FleetBound, plan: Plan) -> bool:
    """Whether a bound says something about a plan."""
    replicas, nodes = spread(plan)
    return replicas >= bound.replicas and nodes >= bound.nodes


def spread(plan: Plan) -> tuple[int, int]:
    """Replicas of every stage, and nodes that hold them, at least; (0, 0) for plans no bound covers."""
    sizes = [group.node.gpus for group in plan.cluster.groups for _ in range(group.count)]
    node_of = [node for node, size in enumerate(sizes) for _ in range(size)]
    replicas = nodes = 0
    for pipeline in plan.pipelines:
        fewest, least = [], []
        for stage in pipeline.stages:
            if len(stage.parts) > 1 or len(stage.parts[0].layouts) > 1:
                return 0, 0
            layout, ranks = stage.layout, stage.ranks
            wide = layout.gpus // layout.dp > WIDEST * sizes[node_of[ranks[0]]]
            if layout.zero_stage > ZERO_STAGE or wide:
                return 0, 0
            fewest.append(layout.dp)
            least.append(len({node_of[rank] for rank in ranks}))
        replicas, nodes = replicas + min(fewest), nodes + min(least)
    return (replicas, nodes) if plan.job.schedule == "1f1b" else (0, 0)


def options_of(ground: Ground, within_s: float, synced: float, counts: Counts) -> Options:
    """Partial plans of one replica within `within_s`, as many replicas side by side as an island holds."""
    firsts, classes = slice_classes(ground.model)
    lengths = sorted({stop - start for start, stop in firsts})
    asked = [length for length in lengths if length in lengths[:1] or length % _every(length) == 0]
    parallelizer = parallelizer_named(ground.parallelizer)()
    rows: list[list[tuple[float, ...]]] = [[] for _ in firsts]
    for kind, gpus, sequences, request in _requests(ground, within_s):
        full = False
        for length in asked:
            if full:
                break
            full = length > 1
            for group, (start, stop) in enumerate(firsts):
                if stop - start != length:
                    continue
                counts.asked += 1
                question = replace(request, slice=Slice(ground.model, start, stop))
                for partial in parallelizer.parallelize(question).partials:
                    full = False
                    rows[group].append(_row(kind, gpus / sequences, partial, synced))
    for group, (start, stop) in enumerate(firsts):  # no faster and no smaller than what they contain
        if stop - start not in asked:
            shorter = max(length for length in asked if length < stop - start)
            part = (0, shorter) if start == 0 else (stop - shorter, stop)
            rows[group] = rows[classes[part[0]][part[1]]]
    flat = np.array([row for group in rows for row in group], dtype=np.float64).reshape(-1, 6)
    pointers = np.concatenate([[0], np.cumsum([len(group) for group in rows])]).astype(np.int64)
    kinds, behind = flat[:, 0].astype(np.int64), flat[:, 4].astype(np.int64)
    return Options(pointers, kinds, flat[:, 1], flat[:, 2], flat[:, 3], behind, flat[:, 5])


def _row(kind: int, gpus: float, partial: PartialPlan, synced: float) -> tuple[float, ...]:
    """What `Options` holds of a partial plan of one stage.

    Among the fewest replicas synchronisation takes `synced` of its time, and a backward hides as much of it.
    """
    (stage,) = partial.stages
    tail_s = max(synced * stage.gradient_sync_s - (1 - synced) * stage.backward_s, 0.0)
    return kind, gpus, partial.slowest_s, stage.forward_s, partial.stages_behind, tail_s


def _every(length: int) -> int:
    """One of how many lengths of slices is asked about."""
    return 1 << sum(length > most for most in ASKED)


def _requests(ground: Ground, within_s: float) -> Iterator[tuple[int, int, int, Request]]:
    """(island, GPUs and sequences of one replica, a request to put slices into)."""
    first = Slice(ground.model, 0, 1)
    for kind, island in enumerate(ground.islands):
        node = island.gpus_per_node
        for gpus in (*divisors(node), *(node * nodes for nodes in range(2, WIDEST + 1))):
            wide, shared = max(gpus // node, 1), max(node // gpus, 1)
            copies = island.nodes // wide * shared
            if not copies:
                continue
            part = replace(
                island.part(copies * gpus // node),
                name=island.gpu.name,
                groups=(),
                node_indices=(),
                reason="",
            )
            constraints = replace(
                ground.constraints,
                copies=copies,
                fixed=(*ground.constraints.fixed, ("dp", copies)),
                zero_stages=(ZERO_STAGE,),
            )
            for sequences in SEQUENCES:
                microbatch = copies * sequences
                job = replace(ground.job, global_batch=microbatch * MANY)
                request = Request(first, part, job, microbatch, MANY, ground.hwdb, constraints, within_s)
                yield kind, gpus, sequences, request


@dataclass(frozen=True, slots=True)
class Range:
    """Pipelines of so many microbatches, whose slowest stage takes so long for one."""

    fewest: int
    most: int
    low_s: float
    high_s: float

    def halves(self) -> "tuple[Range, ...]":
        """The same in two halves; none where it is narrow."""
        if self.most == 1 or self.high_s <= self.low_s * (1 + EXACT):
            return ()
        middle_s = (self.low_s * self.high_s) ** 0.5
        return replace(self, high_s=middle_s), replace(self, low_s=middle_s)


class _Chains:
    """What chains of stages take under prices of one GPU of every island, all GPUs together costing 1."""

    def __init__(self, ground: Ground, options: Options, prices: NDArray[np.float64], work_s: float) -> None:
        from tangram_sim.planners.fleet_bound_kernels import unbeaten

        _, classes = slice_classes(ground.model)
        self.of_slice = np.array(classes, dtype=np.int64)
        self.batch, self.islands, self.work_s = ground.job.global_batch, len(prices), work_s
        price = options.gpus * prices[options.kinds]
        kept = unbeaten(
            options.pointers, price, options.seconds, options.forward_s, options.behind, options.tails_s
        )
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
        from tangram_sim.planners.fleet_bound_kernels import cheapest

        some = self.options
        value, shares = cheapest(
            self.of_slice,
            some.pointers,
            some.kinds,
            self.price,
            some.seconds,
            some.forward_s,
            some.behind,
            some.tails_s,
            within_s,
            pace_s,
            fewest,
            per_price,
            per_second,
            self.islands,
            DEPTHS,
        )
        return float(value), shares
