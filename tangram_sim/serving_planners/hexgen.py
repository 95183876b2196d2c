"""HexGen's search: a pool of GPUs divided into groups, each one pipeline of stages with their own degrees.

Two phases (arXiv 2311.11514): the best pipeline of a group, and a genetic search over partitions of the pool
into groups, which merges, splits and shifts. In the paper a dynamic program cuts the stages of a group; here
stages of one kind are equal, and layers go one by one to the stage that would finish first, which is optimal
for the slowest stage where times grow with layers. The caller provides the value of a group.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from tangram_sim.serving_planners.offers import (
    GpuOffer,
    OfferPricer,
    PricedConfiguration,
    layers_by_speed,
)

Group = tuple[int, ...]  # GPUs of each kind
Partition = tuple[Group, ...]
Worth = Callable[[Group], float]  # requests/s of the group's best pipeline; 0: it cannot serve

MOST_GROUP = 16  # GPUs of a group
_POPULATION, _PARENTS = 32, 8


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The best partition found, its requests/s, and the number of partitions evaluated."""

    groups: Partition
    worth: float
    tried: int


def partition(pool: Group, worth: Worth, seed: int, generations: int) -> Partitioned:
    """The partition of `pool` with the highest total requests/s that a genetic search finds.

    The search begins with the symmetric partitions (groups of one kind and one size) and is never worse than
    these. `worth` gives the requests/s of a group. The same seed gives the same result.
    """
    random = Random(seed)
    known: dict[Partition, float] = {}

    def seen(groups: Partition) -> float:
        if groups not in known:
            known[groups] = sum(worth(group) for group in groups)
        return known[groups]

    alive = [tuple(sorted(groups)) for groups in symmetric(pool, worth)]
    for _ in range(generations):
        alive = sorted(set(alive), key=lambda groups: (-seen(groups), groups))[:_PARENTS]
        for parent in list(alive):
            for _ in range(_POPULATION // _PARENTS):
                child = parent
                for _ in range(random.choice((1, 1, 2, 3))):
                    child = _changed(child, random)
                alive.append(tuple(sorted(child)))
    best = min(set(alive), key=lambda groups: (-seen(groups), groups))
    return Partitioned(tuple(group for group in best if worth(group) > 0), seen(best), len(known))


def symmetric(pool: Group, worth: Worth) -> list[Partition]:
    """Partitions into groups of one kind and size: the best size for each kind, then each size for all."""
    sizes = [size for size in (1, 2, 4, 8, 16) if size <= MOST_GROUP]

    def cut(kind: int, size: int) -> list[Group]:
        whole, rest = divmod(pool[kind], size)
        parts = [size] * whole + ([rest] if rest else [])
        return [tuple(part if n == kind else 0 for n in range(len(pool))) for part in parts]

    best = [
        max(sizes, key=lambda size: sum(worth(group) for group in cut(kind, size)))
        for kind in range(len(pool))
    ]
    choices = [best, *([size] * len(pool) for size in sizes)]
    return [
        tuple(group for kind, size in enumerate(choice) for group in cut(kind, size)) for choice in choices
    ]


def _changed(groups: Partition, random: Random) -> Partition:
    """Random neighbour: two groups merged, one split, or GPUs of a kind moved to another or new group."""
    parts = [list(group) for group in groups]
    move = random.random()
    if move < 0.3 and len(parts) > 1:
        item, other = random.sample(range(len(parts)), 2)
        if sum(parts[item]) + sum(parts[other]) <= MOST_GROUP:
            parts[item] = [a + b for a, b in zip(parts[item], parts[other], strict=True)]
            parts[other] = [0] * len(parts[item])
    elif move < 0.6:
        item = random.randrange(len(parts))
        away = [random.randint(0, count) for count in parts[item]]
        parts[item] = [count - gone for count, gone in zip(parts[item], away, strict=True)]
        parts.append(away)
    else:
        item = random.randrange(len(parts))
        kind = random.choice([n for n, count in enumerate(parts[item]) if count])
        count = random.choice([size for size in (1, 2, 4, 8) if size <= parts[item][kind]])
        other = random.randrange(len(parts))
        if other == item:
            parts.append([0] * len(parts[item]))
            other = len(parts) - 1
        if sum(parts[other]) + count <= MOST_GROUP:
            parts[item][kind] -= count
            parts[other][kind] += count
    return tuple(tuple(part) for part in parts if any(part))


@dataclass
class GroupPricer:
    """Finds and caches the best pipeline for a group of GPUs; rates are requests/s of the mix of types."""

    pricer: OfferPricer
    offers: Sequence[GpuOffer]
    shares: Sequence[float]  # of each type among the requests

    def __post_init__(self) -> None:
        self.known: dict[Group, PricedConfiguration | None] = {}
        hwdb = self.pricer.hwdb
        self._speed = {offer.name: hwdb.gpu(offer.name).memory_bytes_per_s for offer in self.offers}

    def worth(self, group: Group) -> float:
        """Requests/s of the mix with the group's best pipeline; 0 where none fits."""
        best = self.best(group)
        return 0.0 if best is None else self.rate(best)

    def rate(self, configuration: PricedConfiguration) -> float:
        """Requests/s of the mix on one replica that divides its time between the types."""
        if any(share > 0 and not rps > 0 for share, rps in zip(self.shares, configuration.rps, strict=True)):
            return 0.0
        return 1.0 / sum(
            share / rps for share, rps in zip(self.shares, configuration.rps, strict=True) if share > 0
        )

    def best(self, group: Group) -> PricedConfiguration | None:
        """The pipeline of the most requests/s over the degrees of each kind; None where none fits."""
        if group not in self.known:
            priced = [self.pricer.priced(stages) for stages in self._pipelines(group)]
            self.known[group] = max(
                (item for item in priced if item is not None), key=self.rate, default=None
            )
        return self.known[group]

    def _pipelines(self, group: Group) -> Iterator[list[tuple[str, int, int]]]:
        heads = min(block.attention.heads for block in self.pricer.model.blocks)
        held = [(offer, count) for offer, count in zip(self.offers, group, strict=True) if count]
        degrees = [
            [tp for tp in (1, 2, 4, 8, 16) if count % tp == 0 and tp <= min(offer.gpus_per_node, heads)]
            for offer, count in held
        ]
        for chosen in product(*degrees):
            stages = [
                (offer.name, tp)
                for (offer, count), tp in zip(held, chosen, strict=True)
                for _ in range(count // tp)
            ]
            if len(stages) <= self.pricer.model.layers:
                layers = layers_by_speed(
                    self.pricer.model.layers, [self._speed[name] * tp for name, tp in stages]
                )
                yield [(name, tp, count) for (name, tp), count in zip(stages, layers, strict=True)]


def replicas_of(found: Partitioned, pricer: GroupPricer) -> list[tuple[PricedConfiguration, int]]:
    """The partition's configurations, and how many replicas of each."""
    counts: dict[str, int] = {}
    known: dict[str, PricedConfiguration] = {}
    for group in found.groups:
        item = pricer.best(group)
        if item is not None:
            known[item.name] = item
            counts[item.name] = counts.get(item.name, 0) + 1
    return [(known[name], count) for name, count in counts.items()]
