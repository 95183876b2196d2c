"""Clusters of so many groups that a product over their islands has no end: cut, bounded, planned in time."""

import json
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.limits import many_groups
from tangram_sim.hwdb import load_cluster, load_model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.placement.cutting import _connected, _levels, _ranked
from tangram_sim.placement.islands import find_islands
from tangram_sim.planners.tangram.composition.states import NodeStates
from tangram_sim.planners.tangram.fleets.patterns import PatternLimits
from tangram_sim.planners.tangram.told_apart import likeliest, node_units
from tangram_sim.planners.uniform.layouts import chunk_bounds
from tangram_sim.planners.uniform.trivial import UniformSeats, ideal_before, layouts
from tangram_sim.training.job import Job
from tests.commands import quickest
from tests.planning import HWDB

LIMIT_S, PAST_S = 1.0, 1.0


def components(edges: list[tuple[int, int]]) -> set[frozenset[int]]:
    return {frozenset(item) for item in _connected(np.array(edges).reshape(-1, 2))} if edges else set()


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 9), st.integers(1, 6), st.randoms(use_true_random=False))
def test_links_of_a_level_and_above_connect_what_all_links_connect(n, most, random):
    """Few distinct bandwidths, so that many tie."""
    rates = np.zeros((n, n))
    for a in range(n):
        for b in range(a):
            rates[a, b] = rates[b, a] = random.randint(1, most)
    kept: list[tuple[int, int]] = []
    for level, ones, others in _levels(rates):
        kept += list(zip(ones.tolist(), others.tolist(), strict=True))
        every = [(a, b) for a in range(n) for b in range(a) if rates[a, b] >= level]
        assert components(kept) == components(every)
    assert len(kept) == n - 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1 << 40), min_size=3, max_size=3), min_size=1, max_size=8))
def test_rows_are_ranked_as_numbers(rows):
    table = np.array(rows, dtype=np.int64)
    assert _ranked(table).tolist() == np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).tolist()


@pytest.mark.parametrize("counts", [(1, 1, 1), (3, 2), (4,), (2, 1, 5, 1)])
def test_states_of_islands_used_up_one_by_one_are_counted_before_they_are_made(counts):
    assert PatternLimits(counts, 1).one_by_one == len(NodeStates.of(counts, one_by_one=True).codes)


def test_units_end_where_every_island_has_one_and_the_busiest_islands_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(many_groups(60), encoding="utf-8")
    islands = find_islands(load_cluster(str(path), HWDB), "fp16", hwdb=HWDB)
    assert len(islands) > 20
    units = node_units(islands, 1500)
    assert all(1 <= unit <= island.nodes for island, unit in zip(islands, units, strict=True))
    assert likeliest([3.0, 1.0, 2.0, 2.0], 8) == (0, 2, 3)
    assert likeliest([3.0, 1.0], 1) == (0,)


def test_the_bound_on_uniform_layouts_is_that_of_every_group_by_itself(tmp_path: Path) -> None:
    """Kinds are looked up at once; here group after group."""
    path = tmp_path / "many.yaml"
    path.write_text(many_groups(12), encoding="utf-8")
    cluster, model, job = load_cluster(str(path), HWDB), load_model("gpt3-1.3b"), Job(32, 512, "fp16")
    ends = list(accumulate(group.count * group.node.gpus for group in cluster.groups))
    before = [ideal_before(model, group.node.gpu, job, HWDB) for group in cluster.groups]
    seats = UniformSeats.of(model, cluster, job, (), HWDB)
    for wanted in layouts(model, cluster, job, (), Constraints()):
        wide, passed, least = wanted.tp * wanted.dp, 0.0, 0.0
        for place, (start, stop) in enumerate(chunk_bounds(model, wanted)):
            held = [
                own[stop] - own[start]
                for own, first, last in zip(before, [0, *ends], ends, strict=False)
                if first < (place + 1) * wide and last > place * wide
            ]
            seconds = max(held) * wanted.micro_batch / wanted.tp
            least = max(least, job.global_batch / wanted.micro_batch / wanted.dp * seconds + passed)
            passed += seconds
        assert seats.least_s(wanted) == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("how", [[], ["--whole-islands"]])
def test_many_groups_are_planned_within_the_limit(how, tmp_path: Path) -> None:
    """By the CPU's clock."""
    path = tmp_path / "many.yaml"
    path.write_text(many_groups(150), encoding="utf-8")
    line = ["plan", "gpt3-1.3b", str(path), "--time-limit", str(LIMIT_S), "--json", *how]
    spent_s, printed = quickest(line, LIMIT_S + PAST_S)
    assert spent_s < LIMIT_S + PAST_S
    assert json.loads(printed)["step_s"] > 0
