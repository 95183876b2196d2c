"""Pipelines over sets of islands with passes of their own: brute force, and plans that win by them."""

import random
from dataclasses import replace
from itertools import product

import pytest

from tangram_sim.planners.tangram.fleets.replication import BESIDE
from tangram_sim.planners.tangram.fleets.subsets import Paced, likeliest, partitions, sync_s, whole_passes
from tangram_sim.sim import contention
from tangram_sim.training.step.side_by_side import price_plan
from tests.planning import HWDB
from tests.unit.planners.test_replication import coarse_instance, planned


def paced(rng: random.Random, islands: frozenset[int], sizes: tuple[int, ...] = (1, 2, 3, 4, 6)) -> Paced:
    """Some pipeline: faster the more islands it has."""
    size = rng.choice(sizes)
    pace = size * rng.uniform(0.5, 2.0) / len(islands)
    return Paced(islands, size, pace * rng.uniform(1, 3), pace, rng.uniform(0, 2))


def least(chosen: list[Paced], batch: int) -> float:
    """Brute force over the passes of each."""
    ends = [
        max(subset.fill_s + (count - 1) * subset.pace_s for subset, count in zip(chosen, counts, strict=True))
        for counts in product(*(range(1, batch // subset.size + 1) for subset in chosen))
        if sum(subset.size * count for subset, count in zip(chosen, counts, strict=True)) == batch
    ]
    return min(ends, default=float("inf")) + sync_s(chosen)


@pytest.mark.parametrize("count", [2, 3])
def test_passes_of_unlike_sizes_are_shared_out_as_by_brute_force(count: int) -> None:
    """The same seconds, and shares that add up to the batch; none where nothing does."""
    rng, none = random.Random(count), 0
    for _ in range(60):
        chosen = [paced(rng, frozenset({number})) for number in range(count)]
        batch = rng.randint(4, 24)
        mine, brute = whole_passes(chosen, batch), least(chosen, batch)
        if mine is None:
            assert brute == float("inf")
            none += 1
            continue
        seconds, shares = mine
        assert seconds == pytest.approx(brute)
        assert sum(subset.size * share for subset, share in zip(chosen, shares, strict=True)) == batch
        assert min(shares) >= 1
    assert 0 < none < 30


def test_every_choice_of_disjoint_sets_comes_once() -> None:
    """Of 3 islands: 3 pairs of single ones, 3 of one and two, and all three alone; idle ones are allowed."""
    sets = [frozenset(kind for kind in range(3) if number >> kind & 1) for number in range(1, 8)]
    pool: dict[frozenset[int], list[Paced]] = {item: [] for item in sets}
    found = [frozenset(choice) for choice in partitions(pool, 3)]
    assert len(found) == len(set(found)) == 3 + 3 + 1
    for choice in found:
        assert sum(len(item) for item in choice) == len(frozenset.union(*choice))


def test_what_does_most_in_a_step_ends_first_or_nearly() -> None:
    """Over all choices and sizes, by brute force: the best three in sequences hold one near the best."""
    rng, same = random.Random(5), 0
    for _ in range(20):
        sets = [frozenset(kind for kind in range(3) if number >> kind & 1) for number in range(1, 7)]
        pool = {item: [paced(rng, item, (1, 2)) for _ in range(2)] for item in sets}
        best = min(
            least(list(chosen), 24)
            for choice in partitions(pool, 3)
            for chosen in product(*(pool[item] for item in choice))
        )
        found = likeliest(pool, 3, 24, best, 3)
        assert [item[0] for item in found] == sorted(item[0] for item in found)
        assert found[0][0] >= best - 1e-9
        assert found[0][0] <= best * 1.25
        same += found[0][0] == pytest.approx(best)
    assert same >= 12


def test_slow_nics_speak_for_fewer_pipelines() -> None:
    """Adding up gradients costs more the more pipelines there are, at the pace of the slowest."""
    rng = random.Random(1)
    two = [replace(paced(rng, frozenset({number})), sync_s=number + 1.0) for number in range(2)]
    assert sync_s(two[:1]) == 0
    assert sync_s(two) == pytest.approx(2.0)
    assert sync_s([*two, two[0]]) == pytest.approx(2 * 4 / 3)


@pytest.mark.parametrize("seed", [44, 63])
def test_pipelines_over_some_islands_beat_what_stood_there(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two islands in one pipeline, the third beside it with other microbatches; never worse, and replayed."""
    found = planned(coarse_instance(seed), spanning=False).ranked[0]
    monkeypatch.setitem(BESIDE, "normal", replace(BESIDE["normal"], islands=0))
    without = planned(coarse_instance(seed), spanning=False).ranked[0]
    assert found.step_s < without.step_s * 0.99
    first, second = found.plan.pipelines
    assert first.microbatch != second.microbatch
    assert (
        sum(pipeline.microbatch * pipeline.microbatches for pipeline in found.plan.pipelines)
        == found.plan.job.global_batch
    )
    lowered = price_plan(found.plan, HWDB)
    assert lowered.fits()
    assert contention.play(lowered.graph()).makespan_s == pytest.approx(found.step_s, rel=1e-9)
