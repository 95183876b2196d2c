"""Lower bound on fleets: pipelines side by side, every replica on one kind of node (docs/models/bound.md)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from tangram_sim.clusters import Cluster, Node
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.enumeration.table import slice_classes
from tangram_sim.planners.tangram.fleets.stage_rows import (
    Floats,
    StageRows,
    node_kinds,
    plain,
    replica_sizes,
    sequences_of,
    stage_rows,
)
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Part, Plan
from tangram_sim.training.step.ideal import ideal_seconds

_EXACT = 1.01  # steps this near are not told apart
# Where the next step that is tried lies between one that is excluded and one that is not: nearer to the
# first, since excluding is quick far below what holds, and takes longest next to it.
_CUT = 0.35
_NARROW = 1.01  # range of paces that is not cut further
_ROUNDS = 4  # of prices of GPUs, for one step
_STEP = 0.3  # by which the first round changes them
# Weights of what a chain of one microbatch pays beside its seconds, in steps.
_WEIGHTS = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 6.0, 15.0)

SCHEDULES = ("1f1b", "gpipe")
EACH = 2000  # rows that take as long as a look at none
DEPTHS = 64  # stages behind that are told apart


@dataclass(frozen=True, slots=True)
class BoundBudget:
    """Limits on the work of the lower bound on fleets."""

    # Atoms x kinds of nodes x degrees of experts, beyond which none is looked for: 0.2 ms each.
    most: int = 2000
    # Rows of stages looked at in all, some 50 ns each: one to two seconds at most.
    work: int = 25_000_000

    @property
    def asked(self) -> "BoundBudget":
        """The larger limits for when the user asks for the bound."""
        return replace(self, work=10 * self.work, most=1 << 62)


BOUNDS = {"quick": BoundBudget(), "normal": BoundBudget(), "exhaustive": BoundBudget().asked}


def uncovered(plan: Plan) -> str:
    """Reason why the bound does not apply to a plan; empty where it does.

    It covers 1F1B and GPipe, every replica on one kind of node under one layout, on whole nodes or a fraction
    of one, with numbers of GPUs and of sequences per microbatch for which there are rows.
    """
    job = plan.job
    if job.schedule not in SCHEDULES:
        return f"it covers {' and '.join(SCHEDULES)}, not {job.schedule}"
    if plan.cluster.wiring.full:
        return "it knows no stated graphs of links"
    if job.shard_ranks:
        return "it knows no hybrid sharding"
    node_of = [
        plain(group.node)
        for group in plan.cluster.groups
        for _ in range(group.count)
        for _ in range(group.node.gpus)
    ]
    covered = all(_is_row(part, {node_of[rank] for rank in part.ranks}) for part in plan.parts)
    return "" if covered else "the plan has a stage, or shares of a microbatch, that it does not cover"


def _is_row(part: Part, kinds: set[Node]) -> bool:
    """Whether `stage_rows` has rows for the replicas of this part of a stage."""
    layout, (kind, *others) = part.layouts[0].layout, kinds
    gpus = layout.gpus // layout.dp
    return not (
        others
        or len(part.layouts) > 1
        or layout.pp > 1
        or layout.fsep
        or layout.slices > 1
        or layout.ep & (layout.ep - 1)
        or gpus not in replica_sizes(kind)
        or layout.sequences_per_rank(part.sequences_per_microbatch) not in sequences_of(kind, gpus)
    )


@dataclass(frozen=True, slots=True)
class Range:
    """Ranges of the number of microbatches, and of the slowest stage's seconds per microbatch."""

    fewest: int
    most: int
    low_s: float
    high_s: float

    def halves(self, narrow: float) -> "tuple[Range, ...]":
        """This range halved along its wider dimension; empty where both are narrow."""
        if self.most > self.fewest and self.most * self.low_s > self.fewest * self.high_s * 0.999:
            middle = int((self.fewest * self.most) ** 0.5)
            return replace(self, most=middle), replace(self, fewest=middle + 1)
        if self.most == 1 or self.high_s <= self.low_s * narrow:
            return ()
        middle_s = (self.low_s * self.high_s) ** 0.5
        return replace(self, high_s=middle_s), replace(self, low_s=middle_s)


class FleetBound:
    """Excludes step times for all fleets, by chains of stages under prices of GPUs that total 1."""

    def __init__(
        self, model: Model, cluster: Cluster, job: Job, hwdb: Hwdb, budget: BoundBudget, sharded: bool
    ) -> None:
        self.budget, self.batch = budget, job.global_batch
        self.all_forward_first = job.schedule == "gpipe"
        nodes = node_kinds(cluster)
        self.rows = stage_rows(model, job, hwdb, cluster, sharded)
        self.of_slice = np.array(slice_classes(model)[1], dtype=np.int64)
        self.gpus = np.array([node.gpus * count for node, count in nodes.items()], dtype=np.float64)
        able = [bool(node.gpu.peak_flop_per_s(job.precision.compute)) for node in nodes]
        self.seconds = np.array(  # (kinds, atoms), GPU-seconds
            [
                ideal_seconds(model, node.gpu, job, hwdb) if fit else [inf] * (len(self.of_slice) - 1)
                for node, fit in zip(nodes, able, strict=True)
            ]
        )
        speed = 1.0 / self.seconds.sum(axis=1)
        self.prices: Floats = speed / (speed * self.gpus).sum()
        self.left = budget.work
        self.last: Range | None = None
        self.deadline = Deadline()

    def between(self, low_s: float, high_s: float, deadline: Deadline) -> float:
        """Lower bound in seconds on all covered fleets, between `low_s` and `high_s`, the step of a plan.

        `low_s` must be a valid bound; it is improved as far as budget and time allow.
        """
        self.deadline = deadline
        while high_s > low_s * _EXACT and self.left > 0 and not deadline.over():
            middle_s = low_s * (high_s / low_s) ** _CUT
            if self.excludes(middle_s):
                low_s = middle_s
            else:
                high_s = middle_s
        return low_s

    def excludes(self, within_s: float) -> bool:
        """Whether for some prices, adjusted over several rounds, no chain ends within `within_s`."""
        prices = self.prices
        for turn in range(_ROUNDS):
            found = _Chains(self, prices, within_s).first(self.last)
            if found is None:
                self.prices = prices
                return True
            self.last, shares = found
            if self.left <= 0:
                return False
            # Whoever is used more than its part of the cluster is too cheap.
            wanted = shares / shares.sum() - prices * self.gpus
            prices = prices * np.exp(_STEP / (1 + turn) * wanted)
            prices = prices / (prices * self.gpus).sum()
        return False


class _Chains:
    """Chains of stages that may end within `within_s` seconds under given prices."""

    def __init__(self, bound: FleetBound, prices: Floats, within_s: float) -> None:
        from tangram_sim.planners.tangram.fleets.fleet_bound_kernels import passages

        self.bound, self.within_s = bound, within_s
        rows = bound.rows
        price = rows.gpus * prices[rows.kinds]
        self.front, self.back = passages(bound.of_slice, rows.pointers, rows.seconds)
        classes = np.arange(len(rows.pointers), dtype=np.int64)
        self.ahead = passages(bound.of_slice, classes, rows.ahead_s)[0]
        # A chain pays for its microbatches, each of which takes every stage its seconds.
        work = bound.batch * price * rows.seconds
        before, behind = passages(bound.of_slice, rows.pointers, work)
        rest = np.full(len(rows.pointers) - 1, inf)
        starts, stops = np.nonzero(bound.of_slice >= 0)
        np.minimum.at(rest, bound.of_slice[starts, stops], before[starts] + behind[stops])
        kept = work + np.repeat(rest, np.diff(rows.pointers)) <= within_s
        self.work_s = float(behind[0])
        self.paid = passages(bound.of_slice, rows.pointers, price)[0]
        # Rows that another kind's beat under these prices stay: to find the few takes longer than they do.
        self.rows: StageRows = rows[kept]
        self.price = price[kept]

    def first(self, last: Range | None) -> tuple[Range, Floats] | None:
        """(range where a chain may end in time, its cost by kind) or None. Checks `last` first."""
        if self.work_s > self.within_s:
            return None
        if last is not None:
            shares = self._shares(replace(last, high_s=min(last.high_s, self._slowest_s(last.fewest))))
            if shares is not None:
                return last, shares
        ranges = list(self._all())
        while ranges:
            some = ranges.pop()
            shares = self._shares(some)
            if shares is None:
                continue
            halves = some.halves(_NARROW)
            if not halves or self.bound.left <= 0:
                return some, shares
            ranges += halves
        return None

    def _slowest_s(self, fewest: int) -> float:
        return inf if fewest == 1 else self.within_s / (fewest - 1)

    def _all(self) -> Iterator[Range]:
        yield Range(1, 1, 0.0, inf)
        fewest = 2
        while fewest <= self.bound.batch:
            most = min(4 * fewest - 1, self.bound.batch)
            # A chain pays for its work, so some stage takes its share of it; half of that may be hidden.
            yield Range(fewest, most, 0.25 * self.work_s / most, self._slowest_s(fewest))
            fewest = most + 1

    def _shares(self, some: Range) -> Floats | None:
        """Cost by kind of a chain in this range that may end in time; None where none can."""
        batch, shares = self.bound.batch, None
        if some.most == 1:  # no pace: every weight gives a bound
            for weight in self.within_s * np.array(_WEIGHTS):
                value, shares = self._cheapest(some, batch * weight, 1.0, self.within_s + weight)
                if value - weight > self.within_s:
                    return None
            return shares
        if some.low_s > some.high_s:
            return None
        value, shares = self._cheapest(some, batch * some.low_s, 1.0, self.within_s + some.low_s)
        if value - some.low_s > self.within_s:
            return None
        price, _ = self._cheapest(some, 1.0, 0.0, some.most / batch)
        return None if batch * price > some.most * (1 + 1e-9) else shares

    def _cheapest(
        self, some: Range, per_price: float, per_second: float, limit: float
    ) -> tuple[float, Floats]:
        from tangram_sim.planners.tangram.fleets.fleet_bound_kernels import cheapest

        rows = self.rows
        value, shares, looked = cheapest(
            slice_class=self.bound.of_slice,
            row_ptr=rows.pointers,
            kinds=rows.kinds,
            price=self.price,
            seconds=rows.seconds,
            backward_s=rows.backward_s,
            closing_s=rows.closing_s,
            behind=rows.behind,
            sequences=rows.sequences,
            beside=rows.beside,
            front_s=self.front,
            back_s=self.back,
            front_forward_s=self.ahead,
            front_price=self.paid,
            batch=float(self.bound.batch),
            within_s=self.within_s,
            pace_s=some.high_s,
            fewest=float(some.fewest),
            most=float(some.most),
            all_forward_first=self.bound.all_forward_first,
            per_price=per_price,
            per_second=per_second,
            limit=limit * (1 + 1e-9),
            most_kinds=len(self.bound.gpus),
            depths=DEPTHS,
        )
        # Out of time nothing is left: what is excluded stays so, the rest is not.
        self.bound.left = 0 if self.bound.deadline.over() else self.bound.left - int(looked) - EACH
        return float(value), shares
