"""Malleus: tensor-parallel groups by the speed of their ranks; fewer layers and less data for slow groups.

Li et al., "Malleus: Straggler-Resilient Hybrid Parallel Training of Large-scale Models via Malleable Data and
Model Parallelization" (arXiv:2410.13333). Where this differs from the published code:
docs/models/planners.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from tangram_sim.clusters import Cluster
from tangram_sim.errors import TangramError
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.coarse.coarse_plan import ReplicaGroup, balanced
from tangram_sim.planners.coarse.profile import LayerTable, Profile
from tangram_sim.planners.whole_cluster import TRIED, Price, WholeClusterPlanner, no_answer
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline, Plan, Share, pipeline_of_shares
from tangram_sim.training.shares import by_earliest_end

_PARTS = 1000  # of the fastest group's speed: speeds are counted in these
HEALTHY = 1.2  # slowdowns below this are taken as none, as published


@dataclass(frozen=True)
class RankGroup:
    """Tensor-parallel ranks of one node, their GPU kind and the slowdown of the slowest (1: healthy)."""

    kind: int
    ranks: tuple[int, ...]
    slowness: float


def grouped(slowness: Sequence[float], most: int, layer_s: dict[int, float]) -> list[tuple[int, ...]]:
    """Groups of a node's ranks (positions), powers of two up to `most`, with most layers per second.

    Healthy ranks fill groups of `most`; the rest is sorted slowest first and split into runs of neighbours so
    that the sum of `1 / seconds` is highest, which such runs reach. `layer_s`: seconds of a layer on a
    healthy group, by its size.
    """
    order = sorted(range(len(slowness)), key=lambda place: (-slowness[place], place))
    healthy = [place for place in order if slowness[place] == 1.0]
    whole = len(healthy) // most * most
    full = [
        tuple(healthy[len(healthy) - stop : len(healthy) - stop + most])
        for stop in range(most, whole + 1, most)
    ]
    rest = order[: len(order) - whole]
    worth: list[tuple[float, tuple[tuple[int, ...], ...]]] = [(0.0, ())]
    for stop in range(1, len(rest) + 1):
        choices = []
        for size in (size for size in layer_s if size <= min(stop, most)):
            group = tuple(rest[stop - size : stop])
            before, groups = worth[stop - size]
            choices.append((before + 1.0 / (layer_s[size] * slowness[group[0]]), (*groups, group)))
        worth.append(max(choices, key=lambda choice: choice[0]))
    return [*worth[-1][1], *full]


def dealt(speeds: Sequence[float], counts: Sequence[int], pipelines: int) -> list[list[int]] | None:
    """Groups of each class for every pipeline such that the slowest pipeline is fastest, a row each.

    `speeds` are the layers per second of one group of each class, `counts` the groups of the class; an
    integer program. None where there are fewer groups than pipelines.
    """
    classes = len(speeds)
    if sum(counts) < pipelines:
        return None
    own = np.kron(np.eye(pipelines), np.rint(np.asarray(speeds) / max(speeds) * _PARTS))
    whole = np.kron(np.ones((1, pipelines)), np.eye(classes))
    used = np.kron(np.eye(pipelines), np.ones(classes))
    rows = [
        LinearConstraint(np.hstack([own, -np.ones((pipelines, 1))]), lb=0.0),
        LinearConstraint(np.hstack([whole, np.zeros((classes, 1))]), counts, counts),
        LinearConstraint(np.hstack([used, np.zeros((pipelines, 1))]), lb=1.0),
    ]
    size = pipelines * classes
    found = milp(
        np.append(np.zeros(size), -1.0),
        constraints=rows,
        integrality=np.ones(size + 1),
        bounds=Bounds(0, np.append(np.tile(counts, pipelines), np.inf)),
        options={"mip_rel_gap": 1e-3},
    )
    if found.x is None:
        return None
    return [[int(count) for count in row] for row in np.rint(found.x[:-1]).reshape(pipelines, classes)]


class _OfGroups(Profile):
    """Profile whose kinds are classes of groups: the table of their GPU kind, with passes slowed down."""

    def __init__(
        self, profile: Profile, classes: Sequence[tuple[int, int, float]], worst: Sequence[float]
    ) -> None:
        """`classes`: (kind, ranks, slowness); `worst`: slowness at which each kind's table is priced."""
        self.of, self.worst, self.kinds, self.atoms = profile, worst, profile.kinds, profile.atoms
        self.classes = [(kind, ranks, slowness / worst[kind]) for kind, ranks, slowness in classes]
        self.boundary_bytes, self.gradient_bytes = profile.boundary_bytes, profile.gradient_bytes
        self._known: dict[tuple[int, int], LayerTable | None] = {}

    def tps(self, kind: int) -> tuple[int, ...]:
        """The only tensor-parallel degree of the class: the ranks of its groups."""
        return (self.classes[kind][1],)

    def layers(self, kind: int, tp: int, sequences: int) -> LayerTable | None:
        """The table of the GPU kind, passes multiplied by the class's relative slowness."""
        if (kind, sequences) not in self._known:
            of, _, slowness = self.classes[kind]
            table = self.of.layers(of, tp, sequences)
            self._known[kind, sequences] = table and replace(
                table,
                forward_s=tuple(seconds * slowness for seconds in table.forward_s),
                backward_s=tuple(seconds * slowness for seconds in table.backward_s),
            )
        return self._known[kind, sequences]

    def rate(self, a: int, b: int, size: float, gpus: int) -> float:
        """Bytes/s between the GPU kinds of two classes."""
        return self.of.rate(self.classes[a][0], self.classes[b][0], size, gpus)

    def inside_rate(self, kind: int, size: float) -> float:
        """Bytes/s inside a node of the class's GPU kind."""
        return self.of.inside_rate(self.classes[kind][0], size)

    def number(self, group: RankGroup) -> int:
        """Number of the class that a group belongs to."""
        kind = group.kind
        return self.classes.index((kind, len(group.ranks), group.slowness / self.worst[kind]))

    def reduced_s(self, stage: ReplicaGroup, start: int, stop: int, pipelines: int) -> float:
        """Seconds of a ring all-reduce of atoms' gradients over all pipelines, between nodes."""
        size = sum(self.gradient_bytes[start:stop])
        rate = self.rate(stage.kind, stage.kind, size, stage.tp)
        return 2 * (pipelines - 1) / pipelines * size / rate


@dataclass(frozen=True)
class _Pipe:
    """One pipeline: groups front to back, their cuts in atoms, seconds of the slowest stage and of all
    stages. `tail_s` is the seconds of the longest gradient all-reduce and update of a stage."""

    groups: tuple[RankGroup, ...]
    cuts: tuple[int, ...]
    slowest_s: float
    passage_s: float
    tail_s: float


@dataclass
class _Shapes:
    """The plans that Malleus makes for one model, cluster and job."""

    profile: Profile
    cluster: Cluster
    batch: int
    _slow: dict[int, float] = field(init=False)

    def __post_init__(self) -> None:
        factors = dict(self.cluster.health.compute)
        self._slow = {rank: factor for rank, factor in factors.items() if factor >= HEALTHY}

    @cached_property
    def worst(self) -> list[float]:
        """Slowdown of each kind's slowest rank, at which the kind's table is priced."""
        factors = dict(self.cluster.health.compute)
        return [max(factors.get(rank, 1.0) for rank in kind.ranks) for kind in self.profile.kinds]

    def groups(self, tp: int) -> list[RankGroup]:
        """The ranks of all nodes, divided into groups of at most `tp`."""
        found = []
        for number, kind in enumerate(self.profile.kinds):
            most = max((size for size in self.profile.tps(number) if size <= tp), default=1)
            tables = {size: self.profile.layers(number, size, 1) for size in self.profile.tps(number)}
            powers = {size: t.seconds[-1] for size, t in tables.items() if t and size & (size - 1) == 0}
            for node in range(kind.nodes):
                ranks = kind.ranks[node * kind.gpus_per_node : (node + 1) * kind.gpus_per_node]
                slow = [self._slow.get(rank, 1.0) for rank in ranks]
                for places in grouped(slow, most, powers):
                    own = tuple(sorted(ranks[place] for place in places))
                    found.append(RankGroup(number, own, max(slow[place] for place in places)))
        return found

    def plans(self, tp: int, pipelines: int, size: int) -> tuple[float, list[_Pipe], tuple[int, ...]] | None:
        """(seconds, pipelines, microbatches of each), `size` sequences each; None where nothing fits."""
        groups = self.groups(tp)
        classes = sorted({(group.kind, len(group.ranks), group.slowness) for group in groups})
        profile = _OfGroups(self.profile, classes, self.worst)
        tables = [profile.layers(number, own[1], size) for number, own in enumerate(classes)]
        if self.batch % size or not all(tables):
            return None
        pace = [1.0 / table.seconds[-1] for table in tables if table]
        held = [[group for group in groups if _class(group) == own] for own in classes]
        shares = dealt(pace, [len(own) for own in held], pipelines)
        if shares is None:
            return None
        pipes = []
        for share in shares:
            own = [held[number].pop() for number, count in enumerate(share) for _ in range(count)]
            pipe = self._pipe(own, size, profile, pipelines)
            if pipe is None:
                return None
            pipes.append(pipe)
        depths = [len(pipe.groups) for pipe in pipes]
        least = max(1, min(max(depths), self.batch // size // pipelines))
        taken = by_earliest_end(
            self.batch // size, lambda pipe, turns: turns * pipes[pipe].slowest_s, [1] * pipelines, least
        )
        ends = [(m - 1) * pipe.slowest_s + pipe.passage_s for pipe, m in zip(pipes, taken, strict=True)]
        return max(ends) + max(pipe.tail_s for pipe in pipes), pipes, taken

    def _pipe(
        self, groups: Sequence[RankGroup], size: int, profile: "_OfGroups", pipelines: int
    ) -> _Pipe | None:
        """The pipeline with the least slowest stage, slow groups in front or left out; None: no fit."""
        order = sorted(groups, key=lambda group: (-group.slowness, len(group.ranks), group.kind, group.ranks))
        best: _Pipe | None = None
        for out in range(len(order)):
            kept = order[out:]
            stages = [ReplicaGroup(profile.number(group), 1, len(group.ranks), size) for group in kept]
            found = balanced([(stage,) for stage in stages], self.batch, profile)
            if found is not None and (best is None or found[1] < best.slowest_s):
                passage_s = tail_s = 0.0
                for (start, stop), stage in zip(pairwise(found[0]), stages, strict=True):
                    table = profile.layers(stage.kind, stage.tp, size)
                    if table is None:  # `balanced` has read it
                        raise AssertionError
                    passage_s += table.seconds[stop] - table.seconds[start]
                    update_s = table.updates[stop] - table.updates[start]
                    tail_s = max(tail_s, update_s + profile.reduced_s(stage, start, stop, pipelines))
                best = _Pipe(tuple(kept), found[0], found[1], passage_s, tail_s)
            if kept[0].slowness == 1.0:
                break
        return best


def _class(group: RankGroup) -> tuple[int, int, float]:
    return group.kind, len(group.ranks), group.slowness


class Malleus(WholeClusterPlanner):
    """Malleus: groups, pipelines, layers and data in turn, for every tp, pipelines and microbatch."""

    name = "malleus"
    compared = False
    limits = (
        "it cuts nodes into tensor-parallel groups and groups into pipelines, and knows neither "
        "recomputation nor ZeRO, experts or context parallelism"
    )

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The best plan by Malleus's own closed form that fits memory when simulated."""
        shapes, found = _Shapes(price.profile, cluster, job.global_batch), []
        for looked, (tp, pipelines, size) in enumerate(self._asked(price)):
            if looked and price.deadline.over():
                break
            made = shapes.plans(tp, pipelines, size)
            if made is not None:
                found.append((*made, size))
        found.sort(key=lambda item: (item[0], len(item[1]), item[3]))
        for _, pipes, taken, size in found[:TRIED]:
            plan = Plan(model, cluster, job, tuple(_pipelines(pipes, taken, size, price)))
            try:
                if price.lowered(plan).fits():
                    return plan
            except TangramError:
                continue
        why = f"none of its {len(found)} plans for {model.name} on {cluster.name} fits memory when simulated"
        raise no_answer(self, price, why)

    def _asked(self, price: Price) -> Iterator[tuple[int, int, int]]:
        """Yields (tp, pipelines, sequences of a microbatch) to try."""
        degrees = sorted(
            {tp for number in range(len(price.profile.kinds)) for tp in price.profile.tps(number)}
        )
        gpus, batch = sum(kind.gpus for kind in price.profile.kinds), price.job.global_batch
        for tp in (tp for tp in degrees if tp & (tp - 1) == 0):
            for pipelines in divisors(max(gpus // tp, 1)):
                for size in divisors(batch):
                    if batch // size >= pipelines:
                        yield tp, pipelines, size


def _pipelines(pipes: Sequence[_Pipe], taken: Sequence[int], size: int, price: Price) -> Iterator[Pipeline]:
    """Pipelines with ranks; those that differ only in ranks become one with several replicas."""
    alike: dict[object, list[_Pipe]] = {}
    for pipe, count in zip(pipes, taken, strict=True):
        alike.setdefault((tuple(map(_class, pipe.groups)), pipe.cuts, count), []).append(pipe)
    numbered = dict(zip(pipes, taken, strict=True))
    for equal in alike.values():
        # Atoms 0 and last are the ends of the model, so cuts of blocks count one less.
        blocks = [min(max(cut - 1, 0), price.model.layers) for cut in equal[0].cuts]
        shares = [
            [
                Share(
                    price.profile.kinds[groups[0].kind].name,
                    tuple(rank for group in groups for rank in group.ranks),
                    size * len(equal),
                    Layout(tp=len(groups[0].ranks), dp=len(equal)),
                )
            ]
            for groups in zip(*(pipe.groups for pipe in equal), strict=True)
        ]
        yield pipeline_of_shares(numbered[equal[0]], blocks, shares)
