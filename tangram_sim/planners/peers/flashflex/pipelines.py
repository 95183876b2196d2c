"""The best pipeline of one part: grouping and order of machines, tp and stages of each, and layers.

A part is one pipeline's GPUs, on one or more machines. A machine's GPUs become stages of `tp` GPUs each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations, product

import numpy as np

from tangram_sim.planners.coarse.coarse_plan import ReplicaGroup, balanced, tables_of
from tangram_sim.planners.coarse.profile import Profile
from tangram_sim.planners.peers.flashflex.partition import DeviceGraph, partition

GROUPS = 3  # stage-groups that a part is cut into, at most
DEEPEST = 64  # stages
PATHS = 5  # kinds of GPUs up to which all their orders are compared

Fragment = tuple[int, int]  # (kind, GPUs) of one machine in one part


@dataclass(frozen=True)
class Pipe:
    """A pipeline: stages front to back as (number of the fragment, group of one replica); `cuts` in atoms."""

    fragments: tuple[Fragment, ...]
    stages: tuple[tuple[int, ReplicaGroup], ...]
    cuts: tuple[int, ...]
    slowest_s: float  # forward and backward of the slowest stage
    fill_s: float  # one microbatch through all stages and back, hops included

    def seconds(self, microbatches: int) -> float:
        """Seconds until the last microbatch has returned to the first stage: 1F1B in closed form."""
        return (microbatches - 1) * self.slowest_s + self.fill_s

    @cached_property
    def structure(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        """((kind, tp) of every stage, cuts): pipelines equal in both can run as one with more replicas."""
        return tuple((team.kind, team.tp) for _, team in self.stages), self.cuts


@dataclass
class Pipes:
    """Cache of the best pipeline of every part, for one profile and number of sequences per microbatch."""

    profile: Profile
    sequences: int

    def __post_init__(self) -> None:
        self._known: dict[tuple[tuple[Fragment, ...], int], Pipe | None] = {}
        self._speeds: dict[tuple[int, int], float] = {}
        self._rates: dict[tuple[Fragment, ...], float] = {}

    def best(self, part: tuple[Fragment, ...], microbatches: int) -> Pipe | None:
        """The pipeline of a part that finishes this many microbatches first; None where none fits memory."""
        key = (part, microbatches)
        if key not in self._known:
            best, limit_s = None, float("inf")
            shapes = sorted(self._shapes(part), key=lambda shape: shape[0])
            for order in orders(part, self.profile) if shapes else ():
                for pace, fill, tps in shapes:
                    if (microbatches - 1) * pace + fill >= limit_s:
                        continue
                    slowest_s = (limit_s - fill) / (microbatches - 1) if microbatches > 1 else limit_s
                    found = self._pipe(order, tps, microbatches, slowest_s)
                    if found is not None and found.seconds(microbatches) < limit_s:
                        best, limit_s = found, found.seconds(microbatches)
            self._known[key] = best
        return self._known[key]

    def rate(self, part: tuple[Fragment, ...]) -> float:
        """Upper bound on microbatches per second of any pipeline of a part; 0 where it has none."""
        if part not in self._rates:
            self._rates[part] = 1.0 / min((pace for pace, _, _ in self._shapes(part)), default=float("inf"))
        return self._rates[part]

    def _shapes(self, part: Sequence[Fragment]) -> Iterator[tuple[float, float, dict[Fragment, int]]]:
        """Yields (lower bounds in seconds on the slowest stage and on the sum of stages, tp of every class).
        Both bounds hold for any split of the layers. The tp divides the fragment, so that no GPU is left
        over; there are at most as many stages as atoms. The classes are those of the fragments in `part`."""
        classes = sorted(set(part))
        counts = [part.count(class_) for class_ in classes]
        choices = [[tp for tp in self.profile.tps(kind) if gpus % tp == 0] for kind, gpus in classes]
        for chosen in product(*choices):
            stages = [
                (kind, tp, count * gpus // tp)
                for (kind, gpus), count, tp in zip(classes, counts, chosen, strict=True)
            ]
            speeds = [self._speed(kind, tp) for kind, tp, _ in stages]
            depth = sum(number for _, _, number in stages)
            if depth <= min(self.profile.atoms, DEEPEST) and min(speeds) > 0.0:
                total = sum(speed * number for speed, (_, _, number) in zip(speeds, stages, strict=True))
                yield 1.0 / total, 1.0 / max(speeds), dict(zip(classes, chosen, strict=True))

    def _speed(self, kind: int, tp: int) -> float:
        """Microbatches through the whole model per second on one stage; 0 where there is no table."""
        key = (kind, tp)
        if key not in self._speeds:
            table = self.profile.layers(kind, tp, self.sequences)
            self._speeds[key] = 1.0 / table.seconds[-1] if table else 0.0
        return self._speeds[key]

    def _pipe(
        self, order: Sequence[Fragment], tps: dict[Fragment, int], microbatches: int, slowest_s: float
    ) -> Pipe | None:
        """The pipeline of one order and shape, layers split optimally; None where none is within limits."""
        stages = tuple(
            (number, ReplicaGroup(kind, 1, tps[kind, gpus], self.sequences))
            for number, (kind, gpus) in enumerate(order)
            for _ in range(gpus // tps[kind, gpus])
        )
        found = balanced([(team,) for _, team in stages], microbatches, self.profile, slowest_s)
        if found is None:
            return None
        cuts, slowest = found
        fill = sum(
            max(table.seconds[stop] - table.seconds[start] for table in tables_of([team], self.profile) or ())
            for (start, stop), (_, team) in zip(pairwise(cuts), stages, strict=True)
        )
        sent = sum(self._hop_s(a, b) for a, b in pairwise(stages))
        return Pipe(tuple(order), stages, cuts, slowest, fill + 2 * sent)

    def _hop_s(self, before: tuple[int, ReplicaGroup], after: tuple[int, ReplicaGroup]) -> float:
        """Seconds to send one microbatch, one direction; over links inside the machine within a fragment."""
        (here, a), (there, b) = before, after
        size = self.sequences * self.profile.boundary_bytes
        if here == there:
            return size / self.profile.inside_rate(a.kind, size)
        return size / self.profile.rate(a.kind, b.kind, size, min(a.tp, b.tp))


def orders(part: Sequence[Fragment], profile: Profile) -> list[tuple[Fragment, ...]]:
    """Orders of the fragments to try: stage-groups in every order, with the best path inside each group.

    Groups are parts of a least cut with link rates as edge weights, so fast links stay inside a group.
    """
    path = _best_path(part, profile)
    found = [path, path[::-1]]
    for k in range(2, min(GROUPS, len(part)) + 1):
        members = _groups(part, k, profile)
        for order in permutations(members):
            found.append(tuple(item for group in order for item in _best_path(group, profile)))
    return list(dict.fromkeys(found))


def _groups(part: Sequence[Fragment], k: int, profile: Profile) -> list[tuple[Fragment, ...]]:
    """The fragments of a part split into k stage-groups of about equal speed."""
    classes = sorted(set(part))
    counts = np.array([part.count(class_) for class_ in classes])
    weights = np.array([gpus * speed_of(profile, kind) for kind, gpus in classes])
    edges = np.array(
        [[ga * gb * profile.rate(a, b, profile.boundary_bytes, 1) for b, gb in classes] for a, ga in classes]
    )
    split = partition(DeviceGraph(counts, weights, (edges + edges.T) / 2), k)
    return [
        tuple(class_ for class_, count in zip(classes, row, strict=True) for _ in range(int(count)))
        for row in split
    ]


def speed_of(profile: Profile, kind: int) -> float:
    """Passes of one sequence through the whole model per second of one GPU, ignoring memory."""
    for tp in profile.tps(kind):
        table = profile.layers(kind, tp, 1)
        if table is not None:
            return 1.0 / (table.seconds[-1] * tp)
    return 1e-12


def _best_path(part: Sequence[Fragment], profile: Profile) -> tuple[Fragment, ...]:
    """Fragments sorted by kind, the kinds in the order along which activations travel fastest."""
    kinds = sorted({kind for kind, _ in part})

    def travel_s(path: Sequence[int]) -> float:
        size = profile.boundary_bytes
        return sum(size / profile.rate(a, b, size, 1) for a, b in pairwise(path))

    if len(kinds) <= PATHS:
        path = min(permutations(kinds), key=lambda permutation: (travel_s(permutation), permutation))
    else:  # the nearest kind next
        path, left = (kinds[0],), kinds[1:]
        while left:
            following = min(left, key=lambda item: (travel_s((path[-1], item)), item))
            path, left = (*path, following), [item for item in left if item != following]
    return tuple(item for kind in path for item in sorted(part) if item[0] == kind)
