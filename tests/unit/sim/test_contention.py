"""Shared links in the compiled engine: the reference's rates and times, an LP's shares, nothing lost."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError
from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.opgraph import OpGraph
from tangram_sim.sim import fast, play, reference, saturated_links, shared
from tangram_sim.sim.fluid import max_min_rates
from tests.unit.sim.test_engines import lexicographic_max_min, some_seconds

# The first example may wait for the compiler.
steady = settings(deadline=None, max_examples=80)


@st.composite
def loaded(draw: st.DrawFn, seconds: Callable[[Random], float]) -> OpGraph:
    """Random graphs of up to 40 ops on 6 resources, most of which cross a few of 5 narrow links."""
    count, random = draw(st.integers(2, 40)), Random(draw(st.integers(0, 1 << 32)))
    builder = GraphBuilder()
    links = [builder.link(f"link {i}", random.choice([0.5, 1.0, 3.0])) for i in range(5)]
    for index in range(count):
        before = range(max(0, index - 6), index)
        crossed = random.choices(links, k=random.randint(0, 4))
        builder.op(
            "send",
            f"resource {random.randint(0, 5)}",
            seconds(random),
            sorted(random.sample(before, min(len(before), random.randint(0, 2)))),
            bytes=seconds(random),
            links=crossed,
            link_weights=[random.choice([0.25, 1.0, 1 / 3, 2.0]) for _ in crossed],
        )
    return builder.freeze()


def assert_agree(graph: OpGraph) -> None:
    mine, theirs = shared.play(graph), reference.play(graph)
    np.testing.assert_allclose(mine.start_s, theirs.start_s, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mine.end_s, theirs.end_s, rtol=1e-9, atol=1e-12)


@steady
@given(loaded(lambda random: random.uniform(0.0, 10.0)))
def test_engines_agree_where_links_are_full(graph: OpGraph) -> None:
    assert_agree(graph)


@steady
@given(loaded(lambda random: random.randint(0, 40) / 8))
def test_engines_agree_where_many_things_happen_at_once(graph: OpGraph) -> None:
    assert_agree(graph)


@pytest.mark.slow
@steady
@given(loaded(some_seconds))
def test_bytes_are_conserved_and_links_never_overfull(graph: OpGraph) -> None:
    timeline, changes = shared.play_recorded(graph)
    assert np.all(np.diff(changes.time_s) >= 0)
    capacity = np.array([link.bytes_per_s for link in graph.links])
    rate, moved, now = np.zeros(len(graph)), np.zeros(len(graph)), 0.0
    owner = np.repeat(np.arange(len(graph)), np.diff(graph.link_ptr))
    for time, op, value in zip(changes.time_s, changes.op, changes.bytes_per_s, strict=True):
        if time > now:
            moved += rate * (time - now)
            load = np.bincount(graph.link, graph.link_weight * rate[owner], len(capacity))
            assert np.all(load <= capacity * (1 + 1e-9))
            now = time
        rate[op] = value
    assert not rate.any()
    flows = shared.demands(graph) > 0
    assert moved[flows] == pytest.approx(graph.bytes[flows], rel=1e-6, abs=1e-9)
    assert set(changes.op.tolist()) == set(np.flatnonzero(flows).tolist())
    assert timeline.makespan_s >= fast.makespan(graph) * (1 - 1e-9)


@steady
@given(loaded(lambda random: random.uniform(0.0, 10.0)))
def test_uncontended_steps_never_need_the_fluid_path(graph: OpGraph) -> None:
    """Where no link is overfull the fluid path gives the same numbers, bit for bit, so it is not taken."""
    timeline = fast.play(graph)
    if not saturated_links(timeline):
        assert shared.play(graph).end_s.tolist() == timeline.end_s.tolist()
    assert play(graph).makespan_s >= timeline.makespan_s


def test_the_compiled_solver_equals_an_lp_on_twenty_flows_over_six_links() -> None:
    random = np.random.default_rng(11)
    for flows, links in ((20, 6), (24, 8)):
        capacities = random.uniform(1.0, 5.0, links)
        demands = random.uniform(0.1, 3.0, flows)
        routes = [random.integers(0, links, int(random.integers(1, 4))).tolist() for _ in range(flows)]
        pointers = np.cumsum([0, *(len(route) for route in routes)])
        rates = shared.max_min_rates(demands, pointers, np.concatenate(routes), capacities)
        oracle = lexicographic_max_min(demands.tolist(), routes, capacities.tolist())
        assert rates == pytest.approx(oracle, rel=1e-5)
        assert np.any(rates < demands * 0.99)
        assert np.any(rates == demands)


def test_the_compiled_solver_equals_the_readable_one() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        flows, links = int(random.integers(1, 40)), int(random.integers(1, 12))
        # Few values: links that fill at one level and equal demands are common.
        capacities, demands = random.integers(1, 4, links) * 1.0, random.integers(1, 5, flows) / 4
        routes = [random.integers(0, links, int(random.integers(1, 5))).tolist() for _ in range(flows)]
        pointers = np.cumsum([0, *(len(route) for route in routes)])
        rates = shared.max_min_rates(demands, pointers, np.concatenate(routes), capacities)
        expected = max_min_rates(demands.tolist(), routes, capacities.tolist())
        assert rates.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_collective_takes_its_weight_of_each_link() -> None:
    """An all-reduce over two nodes, a quarter of it through link 1, beside a send on link 1 alone."""
    builder = GraphBuilder()
    wide, narrow = builder.link("node 0/NIC out", 4.0), builder.link("node 1/NIC out", 1.0)
    builder.op("sync", "data", 4.0, bytes=16.0, links=[wide, narrow], link_weights=[1.0, 0.25])
    builder.op("send", "pipe", 1.0, bytes=1.0, links=[narrow])
    graph = builder.freeze()
    # Both rise to 0.8 on link 1 (0.2 + 0.8); then the collective has 16 - 1 left of 16 at full speed.
    assert play(graph).end_s.tolist() == pytest.approx([1.25 + 15 / 4, 1.25])
    assert_agree(graph)


def test_weights_of_nothing_are_refused() -> None:
    builder = GraphBuilder()
    link = builder.link("nic", 1.0)
    builder.op("send", "pipe", 1.0, bytes=1.0, links=[link], link_weights=[0.0])
    with pytest.raises(BadInputError, match="link_weight holds 0"):
        builder.freeze()


def test_the_event_loop_is_compiled_once() -> None:
    from tangram_sim.sim import fluid_kernels

    builder = GraphBuilder()
    link = builder.link("nic", 1.0)
    for index in range(2):
        builder.op("send", f"wire {index}", 1.0, bytes=1.0, links=[link])
    graph = builder.freeze()
    for case in (graph, graph.with_durations(np.ones(4)[::2])):
        play(case)
        shared.play_recorded(case)
    shared.play(GraphBuilder().freeze())
    for kernel in (fluid_kernels.play_shared, fluid_kernels.overfull):
        assert len(kernel.signatures) == 1
