"""Sailor: equal stages, one data-parallel degree, replicas of several GPU kinds inside a stage.

Strati et al., "Sailor: Automating Distributed Training over Dynamic, Heterogeneous, and Geo-distributed
Clusters" (SOSP 2025). Where this differs from the published code: docs/models/planners.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product

from tangram_sim.clusters import Cluster
from tangram_sim.jobs import Job
from tangram_sim.models import Model
from tangram_sim.planners.outline import Outline, Team, step_s
from tangram_sim.planners.profile import Profile
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner, best_that_fits, ranked
from tangram_sim.plans import Plan

WORTHWHILE = 1.5  # speed-up that doubling tp must bring
KEPT = 1.1  # outlines within this of the best are kept, for when memory rules the best one out
DEEPEST = 32  # stages


class Sailor(WholeClusterPlanner):
    """For every depth and microbatch: tp by kind, dp from large to small, a DP over stages for replicas."""

    name = "sailor"
    limits = (
        "it splits layers evenly, has one data-parallel degree, and knows neither recomputation nor ZeRO, "
        "experts or context parallelism"
    )

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The best plan by Sailor's own closed form."""
        found = ranked(outlines(price.profile, job.global_batch), price.profile)
        return best_that_fits((outline for _, outline in found), price, self)


@dataclass
class _Best:
    """The least closed form so far."""

    seconds: float = float("inf")


def outlines(profile: Profile, global_batch: int) -> Iterator[Outline]:
    """Outlines close to the best one, over all depths and microbatches per replica."""
    best = _Best()
    sizes = [1 << power for power in range(global_batch.bit_length()) if 1 << power <= global_batch]
    for depth in range(1, min(DEEPEST, profile.atoms) + 1):
        cuts = even_cuts(profile.atoms, depth)
        for size in sizes:
            choices = [_degrees(profile, kind, size, cuts) for kind in range(len(profile.kinds))]
            if not any(choices):
                break  # larger microbatches need more memory, or have no row
            for tps in product(*((*choice, 0) if choice else (0,) for choice in choices)):
                if any(tps):
                    yield from _replicated(profile, global_batch, cuts, size, tps, best)


def even_cuts(atoms: int, depth: int) -> tuple[int, ...]:
    """Boundaries of stages of equal length; where they cannot be equal the last ones are longer."""
    short, longer = divmod(atoms, depth)
    lengths = [short + (place >= depth - longer) for place in range(depth)]
    cuts = [0]
    for length in lengths:
        cuts.append(cuts[-1] + length)
    return tuple(cuts)


def _degrees(profile: Profile, kind: int, size: int, cuts: Sequence[int]) -> tuple[int, ...]:
    """Degrees worth looking at: the least that fits some stage, and doublings that pay WORTHWHILE."""
    depth, found, last = len(cuts) - 1, list[int](), float("inf")
    for tp in profile.tps(kind):
        table = profile.layers(kind, tp, size)
        if table is None:
            continue
        held = table.bytes_with(1)
        if all(held[cuts[place + 1]] - held[cuts[place]] > table.memory_bytes for place in range(depth)):
            continue
        if not found or last / table.seconds[-1] >= WORTHWHILE:
            found.append(tp)
            last = table.seconds[-1]
    return tuple(found)


def _replicated(
    profile: Profile, global_batch: int, cuts: tuple[int, ...], size: int, tps: tuple[int, ...], best: _Best
) -> Iterator[Outline]:
    """Data-parallel degrees from large to small, until fewer replicas cannot win any more."""
    depth = len(cuts) - 1
    usable = [
        kind.nodes * (kind.gpus_per_node // tp) if tp else 0
        for kind, tp in zip(profile.kinds, tps, strict=True)
    ]
    most = min(sum(usable) // depth, global_batch // size)
    if not most or any(tp and not count for tp, count in zip(tps, usable, strict=True)):
        return
    times = _times(profile, cuts, size, tps)
    if times is None:
        return
    quickest = max(min(row) for row in times)
    fastest = sum(min(row) for row in times)
    for dp in range(most, 0, -1):
        microbatches = -(-global_batch // (size * dp))
        if (microbatches - 1) * quickest + fastest > best.seconds * KEPT:
            return
        rows = _allowed(profile, cuts, size, tps, microbatches, times)
        for stages in _seats(rows, usable, dp, microbatches, best.seconds * KEPT):
            teams = tuple(
                tuple(Team(kind, count, tps[kind], count * size) for kind, count in stage) for stage in stages
            )
            outline = Outline(microbatches, size * dp, cuts, teams)
            seconds = step_s(outline, profile)
            if seconds <= best.seconds * KEPT:
                best.seconds = min(best.seconds, seconds)
                yield outline


def _times(profile: Profile, cuts: Sequence[int], size: int, tps: Sequence[int]) -> list[list[float]] | None:
    """Seconds of every stage by kind; inf for kinds that are not used."""
    tables = [profile.layers(kind, tp, size) if tp else None for kind, tp in enumerate(tps)]
    rows = [
        [table.seconds[stop] - table.seconds[start] if table else float("inf") for table in tables]
        for start, stop in pairwise(cuts)
    ]
    return rows if all(min(row) < float("inf") for row in rows) else None


def _allowed(
    profile: Profile,
    cuts: Sequence[int],
    size: int,
    tps: Sequence[int],
    microbatches: int,
    times: list[list[float]],
) -> list[list[float]]:
    """The same with inf where a stage does not fit a kind, as deep in the pipeline as it is."""
    depth = len(times)
    rows = []
    for place, row in enumerate(times):
        kept = list(row)
        for kind, tp in enumerate(tps):
            table = profile.layers(kind, tp, size) if tp else None
            if table is None:
                continue
            held = table.bytes_with(min(microbatches, depth - place))
            if held[cuts[place + 1]] - held[cuts[place]] > table.memory_bytes:
                kept[kind] = float("inf")
        rows.append(kept)
    return rows


_Label = tuple[float, float, tuple[tuple[tuple[int, int], ...], ...]]  # slowest, sum, replicas by stage


def _seats(
    rows: list[list[float]], usable: Sequence[int], dp: int, microbatches: int, limit_s: float
) -> Iterator[tuple[tuple[tuple[int, int], ...], ...]]:
    """(kind, replicas) of every stage, a few of the best.

    For each number of replicas left the labels are kept that no other dominates.

    A stage is as slow as its slowest replica, so it takes kinds one after the other, each as far as it goes:
    a kind that is used at all may as well be used up before the next.
    """
    kinds = range(len(usable))
    labels: dict[tuple[int, ...], list[_Label]] = {tuple(usable): [(0.0, 0.0, ())]}
    for number, row in enumerate(rows):
        following: dict[tuple[int, ...], list[_Label]] = {}
        rest = sum(min(later) for later in rows[number + 1 :])
        orders = [
            order
            for length in range(1, len(usable) + 1)
            for order in permutations([kind for kind in kinds if row[kind] < float("inf")], length)
        ]
        for left, known in labels.items():
            tried = set()
            for order in orders:
                taken, wanted = list[tuple[int, int]](), dp
                for kind in order:
                    count = min(left[kind], wanted)
                    if count:
                        taken.append((kind, count))
                        wanted -= count
                if wanted or tuple(sorted(taken)) in tried:
                    continue
                stage = tuple(sorted(taken))
                tried.add(stage)
                after = list(left)
                for kind, count in stage:
                    after[kind] -= count
                seconds = max(row[kind] for kind, _ in stage)
                for slowest, total, stages in known:
                    worst, added = max(slowest, seconds), total + seconds
                    if (microbatches - 1) * worst + added + rest > limit_s:
                        continue
                    _keep(following.setdefault(tuple(after), []), (worst, added, (*stages, stage)))
        labels = following
    ends = [label for known in labels.values() for label in known]
    ends.sort(key=lambda label: ((microbatches - 1) * label[0] + label[1], label[2]))
    for _, _, stages in ends[:3]:
        yield stages


def _keep(labels: list[_Label], new: _Label) -> None:
    """Add a label unless another one is no worse; drop those that it beats."""
    if any(old[0] <= new[0] and old[1] <= new[1] for old in labels):
        return
    labels[:] = [old for old in labels if not (new[0] <= old[0] and new[1] <= old[1])]
    labels.append(new)
