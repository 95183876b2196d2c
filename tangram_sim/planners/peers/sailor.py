"""Sailor: equal stages, one data-parallel degree, replicas of several GPU kinds inside a stage.

Strati et al., "Sailor: Automating Distributed Training over Dynamic, Heterogeneous, and Geo-distributed
Clusters" (SOSP 2025). Where this differs from the published code: docs/models/planners.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import count, pairwise

from tangram_sim.clusters import Cluster
from tangram_sim.models import Model
from tangram_sim.planners.coarse.coarse_plan import CoarsePlan, ReplicaGroup, step_s
from tangram_sim.planners.coarse.profile import LayerTable, Profile
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.peers.seating import Row, Seating
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner, best_that_fits
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan

WORTHWHILE = 1.5  # speed-up that doubling tp must bring
DEEPEST = 32  # stages


class Sailor(WholeClusterPlanner):
    """Sailor: depth, microbatch, tp by kind and microbatches best-first; replicas by integer program."""

    name = "sailor"
    limits = (
        "it splits layers evenly, has one data-parallel degree, and knows neither recomputation nor ZeRO, "
        "experts or context parallelism"
    )

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The best plan by Sailor's own closed form that fits memory when simulated."""
        return best_that_fits(outlines(price.profile, job.global_batch, price.deadline), price, self)


def outlines(profile: Profile, global_batch: int, deadline: Deadline | None = None) -> Iterator[CoarsePlan]:
    """The best coarse plan for every depth, microbatch, tp by kind and number of microbatches, fastest first.

    Best-first search: families of plans are queued by a lower bound on their step and expanded in turn;
    complete plans are queued by their step and yielded when they come first, so that nothing faster can
    follow. After the deadline only the complete plans in the queue are yielded.
    """
    deadline, numbers, seen = deadline or Deadline(), count(), set[CoarsePlan]()
    space = _Space(profile, global_batch)
    waiting: list[tuple[float, int, _Shape | _Paced | CoarsePlan]] = []
    for shape in space.shapes():  # which asks for prices
        if deadline.over():
            break
        waiting.append((shape.least_s(), next(numbers), shape))
    heapify(waiting)
    while waiting and waiting[0][0] < float("inf"):
        bound_s, _, first = heappop(waiting)
        if isinstance(first, CoarsePlan):
            if first not in seen:
                seen.add(first)
                yield first
        elif not deadline.over():
            for least_s, found in space.opened(first):
                heappush(waiting, (max(bound_s, least_s), next(numbers), found))


def even_cuts(atoms: int, depth: int) -> tuple[int, ...]:
    """Boundaries of stages with equal numbers of atoms; the last stages get one of any remainder."""
    short, longer = divmod(atoms, depth)
    lengths = [short + (place >= depth - longer) for place in range(depth)]
    cuts = [0]
    for length in lengths:
        cuts.append(cuts[-1] + length)
    return tuple(cuts)


@dataclass(frozen=True)
class _Column:
    """All stages of one depth on one GPU kind with one tp; the kind has GPUs for `replicas` of a stage."""

    kind: int
    tp: int
    table: LayerTable
    replicas: int
    cuts: tuple[int, ...]

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Seconds per microbatch of every stage, summed so that equal stages are exactly equal."""
        atoms = [f + b for f, b in zip(self.table.forward_s, self.table.backward_s, strict=True)]
        return tuple(sum(atoms[start:stop]) for start, stop in pairwise(self.cuts))

    @cached_property
    def heavier(self) -> dict[int, int]:
        """For each stage of `_references`, a bit mask of the stages that take at least as long."""
        return {
            reference: sum(
                1 << place for place, seconds in enumerate(self.seconds) if seconds >= self.seconds[reference]
            )
            for reference in _references(len(self.seconds))
        }

    def allowed(self, microbatches: int) -> tuple[float, ...]:
        """Seconds of every stage; inf where it does not fit with the microbatches in flight there."""
        depth = len(self.seconds)
        microbatches = min(microbatches, depth)
        if microbatches not in self._allowed:
            found = []
            for place, (start, stop) in enumerate(pairwise(self.cuts)):
                held = self.table.bytes_with(min(microbatches, depth - place))
                fits = held[stop] - held[start] <= self.table.memory_bytes
                found.append(self.seconds[place] if fits else float("inf"))
            self._allowed[microbatches] = tuple(found)
        return self._allowed[microbatches]

    @cached_property
    def _allowed(self) -> dict[int, tuple[float, ...]]:
        return {}


def _references(depth: int) -> tuple[int, ...]:
    """Stages that bounds are computed for: the first two and the last two (short and long ones)."""
    return tuple(dict.fromkeys((0, min(1, depth - 1), max(depth - 2, 0), depth - 1)))


@dataclass(frozen=True)
class _Shape:
    """A family of plans: equal stages, sequences per replica, and the tps still open for each kind."""

    cuts: tuple[int, ...]
    sequences: int
    global_batch: int
    columns: tuple[tuple[_Column | None, ...], ...]  # by kind; None: the kind is not used

    @property
    def depth(self) -> int:
        """Number of pipeline stages."""
        return len(self.cuts) - 1

    @property
    def settled(self) -> bool:
        """Whether every kind has exactly one tp left or is not used."""
        return all(len(open_) == 1 for open_ in self.columns)

    @cached_property
    def _quickest(self) -> list[float]:
        """Seconds of every stage on its fastest kind."""
        used = [column.seconds for open_ in self.columns for column in open_ if column]
        return [min(row) for row in zip(*used, strict=True)]

    @cached_property
    def _levels(self) -> list[list[tuple[float, int]]]:
        """For each stage of `_references`: [(seconds, dp), ...]. dp is the most replicas for which all stages
        at least as heavy could finish a microbatch in that time."""
        levels = []
        used = [column for open_ in self.columns for column in open_ if column]
        for place in _references(self.depth):
            heavier = -1
            for column in used:
                heavier &= column.heavier[place]
            held, level = dict[int, int](), list[tuple[float, int]]()
            for column in sorted(used, key=lambda item: item.seconds[place]):
                held[column.kind] = max(held.get(column.kind, 0), column.replicas)
                level.append((column.seconds[place], sum(held.values()) // heavier.bit_count()))
            levels.append(level)
        return levels

    def slowest_s(self, dp: int) -> float:
        """Lower bound in seconds on the slowest stage with `dp` replicas; inf: too few GPUs."""
        found = [max(self._quickest)]
        for level in self._levels:
            found.append(min((seconds for seconds, most in level if most >= dp), default=float("inf")))
        return max(found)

    def least_s(self) -> float:
        """Lower bound in seconds on a step, for any dp and number of microbatches; inf where none exists."""
        if not any(column for open_ in self.columns for column in open_):
            return float("inf")
        least = float("inf")
        for seconds in {seconds for level in self._levels for seconds, _ in level}:
            dp = self.global_batch // self.sequences
            for level in self._levels:
                dp = min(dp, max((most for item, most in level if item <= seconds), default=0))
            if dp:
                least = min(least, self.paced_s(dp, -(-self.global_batch // (self.sequences * dp))))
        return least

    def paced_s(self, dp: int, microbatches: int) -> float:
        """Lower bound in seconds on a step with this dp and number of microbatches."""
        return (microbatches - 1) * self.slowest_s(dp) + sum(self._quickest)


@dataclass(frozen=True, slots=True)
class _Paced:
    """A settled shape and its number of microbatches; `dp` is the fewest replicas that process the batch."""

    shape: _Shape
    microbatches: int
    dp: int


@dataclass
class _Space:
    """The search tree: shapes, the narrower shapes that each expands to, and their coarse plans."""

    profile: Profile
    global_batch: int
    _columns: dict[tuple[int, int, int, int], _Column | None] = field(default_factory=dict)

    def shapes(self) -> Iterator[_Shape]:
        """One shape per depth and microbatch size, with every promising tp of every kind open."""
        sizes = [1 << power for power in range(self.global_batch.bit_length())]
        for depth in range(1, min(DEEPEST, self.profile.atoms) + 1):
            cuts = even_cuts(self.profile.atoms, depth)
            for sequences in sizes:
                columns = [self._worth(kind, sequences, cuts) for kind in range(len(self.profile.kinds))]
                if not any(columns):
                    break  # larger microbatches need more memory, or have no row
                yield _Shape(cuts, sequences, self.global_batch, tuple((*own, None) for own in columns))

    def _worth(self, kind: int, sequences: int, cuts: tuple[int, ...]) -> list[_Column]:
        """Promising tps of a kind: the smallest that fits a stage, and larger ones worth the GPUs."""
        found = list[_Column]()
        for tp in self.profile.tps(kind):
            column = self._column(kind, tp, sequences, cuts)
            if column is None or min(column.allowed(1)) == float("inf"):
                continue
            if not found or found[-1].table.seconds[-1] / column.table.seconds[-1] >= WORTHWHILE:
                found.append(column)
        return found

    def _column(self, kind: int, tp: int, sequences: int, cuts: tuple[int, ...]) -> _Column | None:
        key = (kind, tp, sequences, len(cuts))
        if key not in self._columns:
            table, there = self.profile.layers(kind, tp, sequences), self.profile.kinds[kind]
            replicas = there.nodes * (there.gpus_per_node // tp)
            self._columns[key] = _Column(kind, tp, table, replicas, cuts) if table else None
        return self._columns[key]

    def opened(self, waiting: "_Shape | _Paced") -> Iterator[tuple[float, "_Shape | _Paced | CoarsePlan"]]:
        """Yields (lower bound on the step in seconds, narrower family), or (seconds of the step, coarse plan)
        at a leaf."""
        if isinstance(waiting, _Paced):
            found = self._outline(waiting)
            if found is not None:
                yield found
        elif waiting.settled:
            yield from _paced(waiting)
        else:
            kind = next(item for item, open_ in enumerate(waiting.columns) if len(open_) > 1)
            for column in waiting.columns[kind]:
                columns = (*waiting.columns[:kind], (column,), *waiting.columns[kind + 1 :])
                shape = replace(waiting, columns=columns)
                yield shape.least_s(), shape

    def _outline(self, paced: _Paced) -> tuple[float, CoarsePlan] | None:
        """(seconds, coarse plan) with the shortest step of several optimal assignments; None: none."""
        shape = paced.shape
        own = [column for (column,) in shape.columns]
        nowhere = (float("inf"),) * shape.depth
        columns = [column.allowed(paced.microbatches) if column else nowhere for column in own]
        rows: tuple[Row, ...] = tuple(zip(*columns, strict=True))
        seating = Seating(rows, tuple(column.replicas if column else 0 for column in own), paced.dp)
        best: tuple[float, CoarsePlan] | None = None
        for stages in seating.best(paced.microbatches - 1):
            teams = tuple(
                tuple(
                    ReplicaGroup(column.kind, replicas, column.tp, replicas * shape.sequences)
                    for column, replicas in zip(own, stage, strict=True)
                    if column and replicas
                )
                for stage in stages
            )
            outline = CoarsePlan(paced.microbatches, shape.sequences * paced.dp, shape.cuts, teams)
            seconds = step_s(outline, self.profile)
            if best is None or seconds < best[0]:
                best = seconds, outline
        return best


def _paced(shape: _Shape) -> Iterator[tuple[float, _Paced]]:
    """(least seconds, shape) for every reachable number of microbatches, each with its smallest dp."""
    held = sum(column.replicas for (column,) in shape.columns if column)
    dp = min(held // shape.depth, shape.global_batch // shape.sequences)
    while dp:
        microbatches = -(-shape.global_batch // (shape.sequences * dp))
        dp = -(-shape.global_batch // (shape.sequences * microbatches))
        yield shape.paced_s(dp, microbatches), _Paced(shape, microbatches, dp)
        dp -= 1
