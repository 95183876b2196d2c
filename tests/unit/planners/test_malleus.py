"""Malleus: its groups, their division and its plans around slow ranks, held to brute force and to ours."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.health import Slowdown
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.placement.slowing import with_slowdowns
from tangram_sim.planners.peers.malleus import Malleus, dealt, grouped
from tangram_sim.planners.whole_cluster import Price
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
LAYER_S = {1: 1.0, 2: 0.55, 4: 0.3}
PACES = st.sampled_from((1.0, 1.0, 1.0, 1.5, 2.0, 5.0))


def _split(ranks: tuple[int, ...]):
    """All ways to put ranks into groups of 1, 2 and 4."""
    if not ranks:
        yield ()
        return
    first, rest = ranks[0], ranks[1:]
    for chosen in product((False, True), repeat=len(rest)):
        group = (first, *(rank for rank, taken in zip(rest, chosen, strict=True) if taken))
        if len(group) in LAYER_S:
            for others in _split(tuple(rank for rank in rest if rank not in group)):
                yield (group, *others)


def _worth(groups, slowness) -> float:
    return sum(1 / (LAYER_S[len(group)] * max(slowness[rank] for rank in group)) for group in groups)


@given(st.lists(PACES, min_size=1, max_size=3).map(sorted), st.integers(0, 2))
def test_slow_ranks_are_grouped_as_well_as_any_way_does(slow, whole):
    """Healthy ranks that fill groups of four stay together; among the others no split does more layers."""
    slowness = [1.0] * (4 * whole) + [pace for pace in slow if pace > 1.0]
    groups = grouped(slowness, 4, LAYER_S)
    assert sorted(rank for group in groups for rank in group) == list(range(len(slowness)))
    rest = tuple(rank for rank, pace in enumerate(slowness) if pace > 1.0)
    best = max(_worth(split, slowness) for split in _split(rest))
    full = [group for group in groups if all(slowness[rank] == 1.0 for rank in group)]
    assert [len(group) for group in full] == [4] * whole
    assert _worth([group for group in groups if group not in full], slowness) == pytest.approx(best)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=3),
    st.integers(1, 3),
)
def test_groups_are_dealt_so_that_the_slowest_pipeline_is_fastest(classes, pipelines):
    """As every way to deal them finds."""
    speeds, counts = zip(*((float(speed), count) for speed, count in classes), strict=True)
    found = dealt(speeds, counts, pipelines)
    groups = [speed for speed, count in zip(speeds, counts, strict=True) for _ in range(count)]
    ways = product(range(pipelines), repeat=len(groups)) if len(groups) <= 8 else ()
    slowest = [
        min(sum(s for s, of in zip(groups, way, strict=True) if of == pipe) for pipe in range(pipelines))
        for way in ways
    ]
    if sum(counts) < pipelines:
        assert found is None
        return
    assert [sum(column) for column in zip(*found, strict=True)] == list(counts)
    assert all(any(row) for row in found)
    if slowest:
        reached = min(sum(s * n for s, n in zip(speeds, row, strict=True)) for row in found)
        assert reached >= max(slowest) * (1 - 0.004)  # speeds are counted in thousandths


@pytest.mark.parametrize(
    ("slow", "gain"),
    [
        ([], 1.0),
        ([Slowdown("n1.3", 2.0)], 1.15),
        ([Slowdown("n1.3", 2.0), Slowdown("n0.1", 3.0), Slowdown("n0.5", 5.0)], 1.8),
    ],
)
def test_a_plan_goes_around_slow_ranks(slow, gain):
    """It takes its slow ranks' share from them, which is worth `gain` times the healthy plan gone on with."""
    whole, job = load_cluster("A100-80GBx8:2", HWDB), Job(32, 4096, "bf16")
    model = load_model("gpt3-2.7b")
    healthy = Price(model, whole, job, HWDB)
    before = Malleus().plan(model, whole, job, healthy)
    hurt = Price(model, with_slowdowns(whole, slow), job, HWDB)
    found = Malleus().plan(model, hurt.cluster, job, hurt)
    unchanged = type(before)(model, hurt.cluster, job, before.pipelines)
    assert hurt.step_s(unchanged) >= gain * hurt.step_s(found) * (1 - 1e-9)
    assert sum(pipe.microbatches * pipe.microbatch for pipe in found.pipelines) == 32
