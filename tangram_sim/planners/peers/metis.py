"""Metis: device groups of powers of two over every order of GPU kinds, with uneven layers and uneven data.

Um et al., "Metis: Fast Automatic Distributed Training on Heterogeneous GPUs" (USENIX ATC 2024). Where this
differs from the published code: docs/models/planners.md.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import permutations, takewhile

from tangram_sim.clusters import Cluster
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.coarse.coarse_plan import (
    CoarsePlan,
    ReplicaGroup,
    balanced,
    shared_out,
    step_s,
    tables_of,
)
from tangram_sim.planners.coarse.profile import Profile
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner, best_that_fits
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan

VARIANCE = 1.0  # the smallest device group, over the mean one, rounded down to a power of two
PERMUTED = 4  # device groups whose order is tried; more than that are tied together
DEEPEST = 32  # stages
KEPT = 1.05  # outlines within this of the best are kept, for when memory rules the best one out
UNEVEN = 0.9  # layers cannot be split so well that less than this of the ideal pace is reached


class Metis(WholeClusterPlanner):
    """Metis: stages over all GPUs in order; in each data parallelism first, then tensor parallelism."""

    name = "metis"
    limits = (
        "it uses every GPU in device groups of powers of two, and knows neither recomputation nor ZeRO, "
        "experts or context parallelism"
    )

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The best plan by Metis's own closed form that fits memory when simulated."""
        found = outlines(price.profile, job.global_batch, deadline=price.deadline)
        return best_that_fits(found, price, self)


def outlines(
    profile: Profile,
    global_batch: int,
    variance: float = VARIANCE,
    permuted: int = PERMUTED,
    deadline: Deadline | None = None,
) -> Iterator[CoarsePlan]:
    """Coarse plans near the best over all orders of kinds, device groups, microbatches, fastest first.

    Arrangements are searched in the order of their lower bounds on the step, so that few remain once good
    plans are known. The search stops when the deadline passes.
    """
    book, best, deadline = _Book(profile), float("inf"), deadline or Deadline()
    waiting: list[tuple[float, int, bool, tuple[Place, ...], int]] = []  # by bound; whether that knows memory
    for places in _arrangements(profile, variance, permuted, deadline):
        if deadline.over():
            break
        for microbatches in divisors(global_batch):
            least_s = book.least_s(places, global_batch // microbatches, microbatches)
            if least_s < float("inf"):
                waiting.append((least_s, len(waiting), False, places, microbatches))
    heapify(waiting)
    found = list[tuple[float, CoarsePlan]]()
    while waiting and waiting[0][0] <= best * KEPT and not deadline.over():
        least_s, number, known, places, microbatches = heappop(waiting)
        microbatch = global_batch // microbatches
        if not known:
            least_s = max(least_s, book.least_held_s(places, microbatch, microbatches))
            if least_s < float("inf"):
                heappush(waiting, (least_s, number, True, places, microbatches))
            continue
        for seconds, outline in _strategies(book, places, microbatch, microbatches, best):
            best = min(best, seconds)
            found.append((seconds, outline))
    found.sort(key=lambda one: one[0])
    yield from dict.fromkeys(outline for _, outline in found)


def _arrangements(
    profile: Profile, variance: float, permuted: int, deadline: Deadline
) -> Iterator[tuple["Place", ...]]:
    """Yields the GPU kinds of every device group, for all depths, orders of kinds and group sizes."""
    gpus = sum(kind.gpus for kind in profile.kinds)
    for depth in range(1, min(DEEPEST, profile.atoms, gpus) + 1):
        groups = list(
            takewhile(lambda _: not deadline.over(), device_groups(gpus, depth, variance, permuted))
        )
        # Dozens of kinds have more orders than anybody can count: without groups not one is made.
        for order in permutations(range(len(profile.kinds))) if groups else ():
            if deadline.over():
                return
            for sizes in groups:
                yield occupied(profile, order, sizes)


def device_groups(gpus: int, depth: int, variance: float, permuted: int) -> Iterator[tuple[int, ...]]:
    """Sizes of `depth` groups, powers of two (or all GPUs) that add up to `gpus`, in distinct orders.

    With more than `permuted` groups, equal neighbours are merged into runs, and only the runs are permuted.
    """
    if depth == 1:
        yield (gpus,)
        return
    least = 1
    while least * 2 <= gpus / depth * variance:
        least *= 2
    for sizes in _powers(gpus, depth, least):
        runs = [(size, 1) for size in sizes]
        while len(runs) > permuted:
            pairs = [at for at in range(len(runs) - 1) if runs[at][0] == runs[at + 1][0]]
            if not pairs:
                break
            at = min(pairs, key=lambda place: (runs[place][1] + runs[place + 1][1], place))
            runs[at : at + 2] = [(runs[at][0], runs[at][1] + runs[at + 1][1])]
        if len(runs) > permuted:
            yield sizes
            continue
        orders = dict.fromkeys(
            tuple(size for size, count in order for _ in range(count)) for order in permutations(runs)
        )
        yield from orders


def _powers(total: int, depth: int, least: int) -> Iterator[tuple[int, ...]]:
    """Ascending sequences of `depth` powers of two, at least `least`, that add up to `total`."""
    if depth == 0:
        if total == 0:
            yield ()
        return
    size = least
    while size * depth <= total:
        for rest in _powers(total - size, depth - 1, size):
            yield (size, *rest)
        size *= 2


Place = tuple[tuple[int, int], ...]  # (kind, GPUs) of a stage


def occupied(profile: Profile, order: Sequence[int], sizes: Sequence[int]) -> tuple[Place, ...]:
    """((kind, GPUs), ...) of each device group when the GPUs are lined up kind by kind."""
    left = [[kind, profile.kinds[kind].gpus] for kind in order]
    places = []
    for size in sizes:
        taken, wanted = [], size
        while wanted:
            kind, free = left[0]
            count = min(free, wanted)
            taken.append((kind, count))
            wanted -= count
            left[0][1] -= count
            if not left[0][1]:
                left.pop(0)
        places.append(tuple(taken))
    return tuple(places)


class _Book:
    """Cache of stages by device group, tp and microbatch size: the same groups occur in many arrangements."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._teams: dict[tuple[Place, int, int], tuple[tuple[ReplicaGroup, ...], float, float] | None] = {}
        self._degrees: dict[Place, tuple[int, ...]] = {}
        self._quickest: dict[tuple[Place, int], float] = {}
        self._held: dict[tuple[Place, int, int], list[tuple[float, float]]] = {}

    def degrees(self, place: Place) -> tuple[int, ...]:
        """Tensor-parallel degrees that every kind in a device group allows, ascending."""
        if place in self._degrees:
            return self._degrees[place]
        allowed = set(self.profile.tps(place[0][0])).intersection(
            *(self.profile.tps(kind) for kind, _ in place)
        )
        found = tuple(sorted(tp for tp in allowed if all(count % tp == 0 for _, count in place)))
        self._degrees[place] = found
        return found

    def stage(
        self, place: Place, tp: int, microbatch: int
    ) -> tuple[tuple[ReplicaGroup, ...], float, float] | None:
        """(replica groups, seconds of one microbatch through all atoms, available over needed memory) of a
        stage. Sequences are shared by speed; memory needed is that of all atoms with one microbatch in
        flight. None where the tp is not allowed or the profile lacks a table."""
        key = (place, tp, microbatch)
        if key not in self._teams:
            self._teams[key] = self._stage(*key)
        return self._teams[key]

    def _stage(
        self, place: Place, tp: int, microbatch: int
    ) -> tuple[tuple[ReplicaGroup, ...], float, float] | None:
        if tp not in self.degrees(place):
            return None
        teams = shared_out([(kind, count // tp, tp) for kind, count in place], microbatch, self.profile)
        tables = tables_of(teams, self.profile) if teams else None
        if not teams or not tables:
            return None
        room = min(table.memory_bytes / table.bytes_with(1)[-1] for table in tables)
        return teams, max(table.seconds[-1] for table in tables), room

    def quickest_s(self, place: Place, microbatch: int) -> float:
        """Seconds of one microbatch through all atoms under the fastest tp; inf where no tp has a table."""
        key = (place, microbatch)
        if key not in self._quickest:
            found = [self.stage(place, tp, microbatch) for tp in self.degrees(place)]
            self._quickest[key] = min((stage[1] for stage in found if stage), default=float("inf"))
        return self._quickest[key]

    def least_s(self, places: Sequence[Place], microbatch: int, microbatches: int) -> float:
        """Approximate least seconds of a step on these device groups; inf where a table is missing."""
        return _least_s([self.quickest_s(place, microbatch) for place in places], microbatches)

    def least_held_s(self, places: Sequence[Place], microbatch: int, microbatches: int) -> float:
        """Lower bound in seconds on a step within memory, any tp and fractional layers; inf: none fits."""
        options = [
            self._options(place, microbatch, min(microbatches, len(places) - number))
            for number, place in enumerate(places)
        ]

        def held(pace: float) -> float:
            return sum(max(min(pace / seconds, room) for seconds, room in own) for own in options)

        if not all(options):
            return float("inf")
        low, high = 0.0, max(seconds for own in options for seconds, _ in own)
        if held(high) < UNEVEN:
            return float("inf")
        while high - low > 1e-2 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if held(middle) >= UNEVEN else (middle, high)
        return (microbatches - 1) * low + min(seconds for own in options for seconds, _ in own) * UNEVEN

    def _options(self, place: Place, microbatch: int, in_flight: int) -> list[tuple[float, float]]:
        """(seconds of all atoms, share of all atoms that fits memory) for every tp that has a table."""
        key = (place, microbatch, in_flight)
        if key not in self._held:
            self._held[key] = []
            for tp in self.degrees(place):
                stage = self.stage(place, tp, microbatch)
                tables = tables_of(stage[0], self.profile) if stage else None
                if stage and tables:
                    room = min(table.memory_bytes / table.bytes_with(in_flight)[-1] for table in tables)
                    self._held[key].append((stage[1], room))
        return self._held[key]


def _least_s(seconds: Sequence[float], microbatches: int) -> float:
    """Seconds of a step with an ideal layer split; `seconds` are those of all atoms on each stage."""
    if max(seconds) == float("inf"):
        return float("inf")
    pace = UNEVEN / sum(1 / one for one in seconds)
    return (microbatches - 1) * pace + min(seconds) * UNEVEN


def _strategies(
    book: _Book, places: Sequence[Place], microbatch: int, microbatches: int, best_s: float
) -> Iterator[tuple[float, CoarsePlan]]:
    """(seconds, coarse plan) for tps from 1 on; the stage with the fullest memory doubles its own."""
    tps = [1] * len(places)
    while True:
        stages = [book.stage(place, tp, microbatch) for place, tp in zip(places, tps, strict=True)]
        whole = [stage for stage in stages if stage is not None]
        if len(whole) == len(stages) and (
            _least_s([seconds for _, seconds, _ in whole], microbatches) <= best_s * KEPT
        ):
            teams = tuple(team for team, _, _ in whole)
            least = min(seconds for _, seconds, _ in whole) * UNEVEN  # of the sum of all stages
            limit_s = (best_s * KEPT - least) / max(microbatches - 1, 1)
            found = balanced(teams, microbatches, book.profile, limit_s)
            if found is not None:
                outline = CoarsePlan(microbatches, microbatch, found[0], teams)
                seconds = step_s(outline, book.profile)
                if seconds <= best_s * KEPT:
                    best_s = min(best_s, seconds)
                    yield seconds, outline
        # A stage without a row counts as the fullest.
        order = sorted(range(len(places)), key=lambda one: (stages[one][2] if stages[one] else 0.0, one))  # type: ignore[index]  # checked beside
        widened = next((one for one in order if tps[one] * 2 in book.degrees(places[one])), -1)
        if widened < 0:
            return
        tps[widened] *= 2
