"""Sailor's search against enumeration: seats of stages, and whole plans of small random clusters."""

import random
from collections.abc import Iterator
from itertools import islice, product

import pytest

from tangram_sim.planners.coarse.coarse_plan import CoarsePlan, ReplicaGroup, fits, step_s
from tangram_sim.planners.coarse.profile import Kind, LayerTable, Profile
from tangram_sim.planners.peers import sailor
from tangram_sim.planners.peers.seating import Seating

INF = float("inf")


def every_seating(rows, replicas, dp) -> Iterator[list[tuple[int, ...]]]:
    """All ways to give every stage `dp` replicas where it may be."""
    if not rows:
        yield []
        return
    for stage in product(*(range(min(count, dp) + 1) for count in replicas)):
        if sum(stage) == dp and all(not n or rows[0][kind] < INF for kind, n in enumerate(stage)):
            left = [count - n for count, n in zip(replicas, stage, strict=True)]
            for rest in every_seating(rows[1:], left, dp):
                yield [stage, *rest]


def value(rows, stages, repeats) -> float:
    seconds = [
        max(row[kind] for kind, n in enumerate(stage) if n) for row, stage in zip(rows, stages, strict=True)
    ]
    return repeats * max(seconds) + sum(seconds)


@pytest.mark.parametrize("seed", range(60))
def test_seats_are_as_good_as_the_best_of_all_seatings(seed):
    """Equal and unequal stages, kinds that change places in speed, holes where memory is short."""
    rng = random.Random(seed)
    kinds, depth, dp = rng.choice((1, 2, 3)), rng.randint(1, 4), rng.randint(1, 3)
    menu = [
        tuple(rng.choice((1.0, 1.5, 2.0, 3.0, INF)) for _ in range(kinds)) for _ in range(rng.randint(1, 3))
    ]
    rows = tuple(rng.choice(menu) for _ in range(depth))
    replicas, repeats = tuple(rng.randint(0, 5) for _ in range(kinds)), rng.choice((0, 1, 7, 100))
    every = [value(rows, stages, repeats) for stages in every_seating(rows, replicas, dp)]
    seating = Seating(rows, replicas, dp)
    found = list(seating.best(repeats))
    assert bool(found) == bool(every)
    for stages in found:
        assert all(sum(stage) == dp for stage in stages)
        assert all(
            sum(column) <= there for column, there in zip(zip(*stages, strict=True), replicas, strict=True)
        )
        assert value(rows, stages, repeats) == pytest.approx(min(every))
    if every:
        assert seating.least(repeats)[0] == pytest.approx(min(every))


class Random(Profile):
    """One to three kinds of GPUs, speeds and memory at random; ends unlike the other layers."""

    def __init__(self, seed: int, heavy_traffic: bool) -> None:
        rng = random.Random(seed)
        kinds, first = list[Kind](), 0
        for number in range(rng.choice((1, 2, 2, 3))):
            nodes, per_node = rng.choice(((1, 1), (1, 2), (2, 1)))
            ranks = tuple(range(first, first + nodes * per_node))
            kinds.append(Kind(f"k{number}", f"gpu{number}", nodes, per_node, ranks))
            first += nodes * per_node
        self.kinds, self.atoms = tuple(kinds), rng.randint(3, 6)
        self.pace = [rng.choice((1.0, 0.8, 0.5, 0.3)) for _ in kinds]
        self.ends = [rng.choice((0.5, 1.0, 2.0)) for _ in kinds]
        self.memory = [rng.choice((1e9, 1e9, 300.0, 450.0, 700.0)) for _ in kinds]
        self.nic = [rng.choice((3.0, 10.0, 30.0)) for _ in kinds]
        self.batch = rng.choice((6, 8, 16))
        self.boundary_bytes = 0.3 if heavy_traffic else 0.0
        self.gradient_bytes = (2.0 if heavy_traffic else 0.0,) * self.atoms

    def tps(self, kind):
        return tuple(tp for tp in (1, 2) if self.kinds[kind].gpus_per_node % tp == 0)

    def layers(self, kind, tp, sequences):
        if sequences > 8:
            return None
        pace = sequences**0.9 * self.pace[kind] / tp**0.9
        work = [pace] * self.atoms
        work[0] = work[-1] = pace * self.ends[kind]
        same = (0.0,) * self.atoms, (60.0 / tp,) * self.atoms, (10.0 * sequences / tp,) * self.atoms
        return LayerTable(tuple(work), tuple(work), *same, self.memory[kind])

    def rate(self, a, b, size, gpus):
        return min(self.nic[a], self.nic[b])

    def inside_rate(self, kind, size):
        return 40.0


def every_outline(profile: Random) -> Iterator[CoarsePlan]:
    """All of Sailor's space: even stages, one dp, any mixture of kinds, a tp by kind."""
    kinds = range(len(profile.kinds))
    for depth, size in product(range(1, profile.atoms + 1), (1, 2, 4, 8, 16)):
        cuts = sailor.even_cuts(profile.atoms, depth)
        for tps in product(*(profile.tps(kind) for kind in kinds)):
            there = [
                kind.nodes * (kind.gpus_per_node // tp) for kind, tp in zip(profile.kinds, tps, strict=True)
            ]
            for dp in range(1, sum(there) // depth + 1):
                if size * dp > profile.batch:
                    continue
                for stages in every_seating([(1.0,) * len(there)] * depth, there, dp):
                    teams = tuple(
                        tuple(ReplicaGroup(kind, n, tps[kind], n * size) for kind, n in enumerate(stage) if n)
                        for stage in stages
                    )
                    outline = CoarsePlan(-(-profile.batch // (size * dp)), size * dp, cuts, teams)
                    if fits(outline, profile):
                        yield outline


@pytest.mark.parametrize("heavy_traffic", [False, True], ids=["free-links", "slow-links"])
@pytest.mark.parametrize("seed", range(12))
def test_the_first_outline_is_the_best_of_all(seed, heavy_traffic, monkeypatch):
    """Every doubling of tp looked at, as the enumeration does."""
    monkeypatch.setattr(sailor, "WORTHWHILE", 0.0)
    profile = Random(seed, heavy_traffic)
    every = min((step_s(item, profile) for item in every_outline(profile)), default=INF)
    found = next(sailor.outlines(profile, profile.batch), None)
    assert (found is None) == (every == INF)
    if found is not None:
        assert fits(found, profile)
        assert step_s(found, profile) == pytest.approx(every)


def test_outlines_come_fastest_first():
    profile = Random(3, heavy_traffic=True)
    seconds = [step_s(item, profile) for item in islice(sailor.outlines(profile, profile.batch), 40)]
    assert len(seconds) > 5
    assert seconds == sorted(seconds)
