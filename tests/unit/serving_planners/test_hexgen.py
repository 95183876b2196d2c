"""HexGen's search against every partition of small pools, and within time on large ones."""

import random
from functools import cache
from itertools import product

import numpy as np
import pytest

from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving_planners.hexgen import (
    Group,
    GroupPricer,
    Worth,
    layers_by_speed,
    partition,
    replicas_of,
    symmetric,
)
from tangram_sim.serving_planners.offers import GpuOffer, OfferPricer


def best_of_all(pool: Group, worth: Worth) -> float:
    """The greatest summed worth over all partitions, by dynamic programming over what is left."""

    @cache
    def most(left: Group) -> float:
        groups = product(*(range(count + 1) for count in left))
        return max(
            (
                worth(group) + most(tuple(a - b for a, b in zip(left, group, strict=True)))
                for group in groups
                if any(group)
            ),
            default=0.0,
        )

    return most(pool)


def random_worth(chance: random.Random, kinds: int) -> Worth:
    """Speeds with a memory floor, a loss that grows with the group, and a taste of its own for each group."""
    speed = [chance.uniform(1, 4) for _ in range(kinds)]
    memory = [chance.choice([1, 2, 4]) for _ in range(kinds)]
    floor = chance.choice([2, 4, 6])
    seed = chance.random()

    def worth(group: Group) -> float:
        if sum(m * n for m, n in zip(memory, group, strict=True)) < floor:
            return 0.0
        taste = random.Random(f"{seed}{group}").uniform(0.8, 1.1)
        return sum(s * n for s, n in zip(speed, group, strict=True)) * 0.95 ** sum(group) * taste

    return worth


@pytest.mark.parametrize("seed", range(8))
def test_small_pools_are_within_two_percent_of_the_best_partition(seed: int) -> None:
    chance = random.Random(seed)
    kinds = chance.choice([2, 3])
    pool = tuple(np.bincount([chance.randrange(kinds) for _ in range(8)], minlength=kinds).tolist())
    worth = random_worth(chance, kinds)
    found = partition(pool, worth, seed=0, generations=60)
    assert found.worth >= 0.98 * best_of_all(pool, worth)
    assert found.worth >= max(sum(map(worth, groups)) for groups in symmetric(pool, worth))
    assert all(sum(group[n] for group in found.groups) <= pool[n] for n in range(kinds))


def test_layers_by_speed_are_the_best_for_the_slowest_stage() -> None:
    speeds = [3.0, 1.0, 2.2]
    held = layers_by_speed(9, speeds)
    best = min(
        max(n / s for n, s in zip(cut, speeds, strict=True))
        for cut in product(range(1, 8), repeat=3)
        if sum(cut) == 9
    )
    assert sum(held) == 9
    assert max(n / s for n, s in zip(held, speeds, strict=True)) == pytest.approx(best)


@pytest.mark.slow
def test_fifty_eight_unequal_gpus_of_the_database() -> None:
    """The size of the paper's pool: groups found within 60 CPU-seconds, no worse than symmetric ones."""
    offers = [
        GpuOffer("A100-SXM4-80GB", 1.75, 8),
        GpuOffer("L40S", 0.9, 24),
        GpuOffer("A10", 0.5, 26),
    ]
    loads = Load.of(np.array([800.0, 300.0]), np.array([200.0, 40.0]))
    pricer = GroupPricer(
        OfferPricer(load_model("llama3-70b"), Hwdb.load(()), "vllm", "bf16", loads, Slo()), offers, [0.5, 0.5]
    )
    pool = tuple(int(offer.available) for offer in offers)
    found = partition(pool, pricer.worth, seed=0, generations=8)
    assert found.worth >= max(sum(map(pricer.worth, groups)) for groups in symmetric(pool, pricer.worth))
    used = [sum(group[n] for group in found.groups) for n in range(3)]
    assert all(count <= most for count, most in zip(used, pool, strict=True))
    assert sum(
        pricer.rate(configuration) * count for configuration, count in replicas_of(found, pricer)
    ) == pytest.approx(found.worth)
