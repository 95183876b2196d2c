"""Two engines, one truth: they agree where no link is saturated; laws of time; fair sharing where one is."""

from collections import defaultdict
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog  # type: ignore[import-untyped] # scipy ships no types

from tangram_sim.errors import BadInputError
from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.opgraph import OpGraph, column
from tangram_sim.sim import critical_path, fast, play, reference, saturated_links
from tangram_sim.sim.fluid import max_min_rates
from tangram_sim.sim.timeline import Timeline

CLOSE = 1e-9
# The first example may wait for the compiler.
steady = settings(deadline=None)


def some_seconds(random: Random) -> float:
    """Eighths make ties common, where an engine's order of events could matter; others make rounding so."""
    return random.randint(0, 40) / 8 if random.random() < 0.5 else random.uniform(0.0, 10.0)


@st.composite
def graphs(draw: st.DrawFn, capacity: float | None = 1e6, min_ops: int = 1) -> OpGraph:
    """Random graphs of up to 25 ops on up to 4 resources and links of `capacity` bytes/s (None: none).

    How many ops is drawn, what they are follows from a seed: thirty times as fast as drawing each.
    """
    count, random = draw(st.integers(min_ops, 25)), Random(draw(st.integers(0, 1 << 32)))
    builder = GraphBuilder()
    links = [] if capacity is None else [builder.link(f"link {i}", capacity) for i in range(3)]
    for index in range(count):
        crossed = random.sample(links, random.randint(0, 2)) if links else []
        builder.op(
            random.choice(["gemm", "send"]),
            f"resource {random.randint(0, 3)}",
            some_seconds(random),
            sorted(random.sample(range(index), min(index, random.randint(0, 3)))),
            bytes=random.choice((0.0, 20.0, random.uniform(0.0, 20.0))) if crossed else 0.0,
            links=sorted(crossed),
            factor=random.choice(["", "compute", "wire"]),
        )
    return builder.freeze()


def assert_agree(timeline: Timeline, other: Timeline) -> None:
    np.testing.assert_allclose(timeline.start_s, other.start_s, rtol=CLOSE, atol=1e-12)
    np.testing.assert_allclose(timeline.end_s, other.end_s, rtol=CLOSE, atol=1e-12)


@steady
@given(graphs(capacity=None))
def test_engines_agree_without_links(graph: OpGraph) -> None:
    assert_agree(fast.play(graph), reference.play(graph))


@steady
@given(graphs(capacity=5.0))
def test_engines_agree_where_no_link_is_saturated(graph: OpGraph) -> None:
    """And `sim.play` then needs only the fast one; without contention they agree in any case."""
    timeline = fast.play(graph)
    assert_agree(timeline, reference.play(graph, contention=False))
    if not saturated_links(timeline):
        assert_agree(timeline, reference.play(graph))
        assert play(graph).end_s.tolist() == timeline.end_s.tolist()


def test_the_comparison_sees_a_fast_engine_that_forgets_the_resource_order() -> None:
    builder = GraphBuilder()
    builder.op("a", "gpu", 1.0)
    builder.op("b", "gpu", 1.0)
    graph = builder.freeze()
    broken = replace(graph, resource_previous=column([-1, -1], np.int32))
    assert_agree(fast.play(graph), reference.play(graph))
    with pytest.raises(AssertionError):
        assert_agree(fast.play(broken), reference.play(graph))


def test_the_comparison_sees_a_reference_that_drops_a_predecessor(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = GraphBuilder()
    slow = builder.op("a", "gpu 0", 2.0)
    quick = builder.op("b", "gpu 1", 1.0)
    builder.op("c", "gpu 2", 1.0, after=[quick, slow])
    graph = builder.freeze()
    honest = reference._predecessors
    monkeypatch.setattr(reference, "_predecessors", lambda graph, op: honest(graph, op)[:-1])
    with pytest.raises(AssertionError):
        assert_agree(fast.play(graph), reference.play(graph))


def test_the_comparison_sees_a_reference_that_runs_a_resource_out_of_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder = GraphBuilder()
    builder.op("a", "gpu", 1.0)
    builder.op("b", "gpu", 2.0)
    graph = builder.freeze()
    honest = reference._program
    monkeypatch.setattr(reference, "_program", lambda graph, resource: honest(graph, resource)[::-1])
    with pytest.raises(AssertionError):
        assert_agree(fast.play(graph), reference.play(graph))


@steady
@given(graphs(capacity=2.0))
def test_laws_of_time_hold_in_both_engines(graph: OpGraph) -> None:
    """Nothing starts before what it waits for has ended, resources run one op at a time in program order."""
    for timeline in (fast.play(graph), reference.play(graph)):
        for op in range(len(graph)):
            waits = [*graph.predecessors(op).tolist(), int(graph.resource_previous[op])]
            latest = max((timeline.end_s[w] for w in waits if w >= 0), default=0.0)
            assert timeline.start_s[op] == pytest.approx(latest, rel=CLOSE, abs=1e-12)
            assert timeline.end_s[op] - timeline.start_s[op] >= graph.duration_s[op] - 1e-9


@steady
@given(graphs(capacity=None))
def test_busy_time_of_a_resource_is_the_sum_of_its_durations(graph: OpGraph) -> None:
    for resource, busy in enumerate(fast.play(graph).busy_s().tolist()):
        assert busy == pytest.approx(graph.duration_s[graph.resource == resource].sum(), abs=1e-9)


@steady
@given(graphs(capacity=None), st.data())
def test_makespan_never_falls_when_an_op_takes_longer(graph: OpGraph, data: st.DataObject) -> None:
    op = data.draw(st.integers(0, len(graph) - 1))
    longer = graph.duration_s.copy()
    longer[op] += data.draw(st.floats(0.0, 5.0))
    assert fast.makespan(graph.with_durations(longer)) >= fast.makespan(graph)


@steady
@given(graphs(capacity=2.0))
def test_the_critical_path_is_a_chain_that_sums_to_the_makespan(graph: OpGraph) -> None:
    for timeline in (fast.play(graph), reference.play(graph)):
        path = critical_path(timeline)
        near = pytest.approx(timeline.makespan_s, rel=CLOSE, abs=1e-9)
        assert path.seconds == near
        assert sum(path.seconds_by_kind().values()) == near
        assert path.causes[0] == "start"
        for before, op, cause in zip(
            path.ops[:-1].tolist(), path.ops[1:].tolist(), path.causes[1:], strict=True
        ):
            if cause == "predecessor":
                assert before in graph.predecessors(op)
            else:
                assert before == graph.resource_previous[op]


def test_the_critical_path_names_causes() -> None:
    builder = GraphBuilder()
    first = builder.op("gemm", "gpu 0", 2.0, factor="compute")
    send = builder.op("send", "wire", 1.0, after=[first], factor="network")
    builder.op("gemm", "gpu 1", 0.5)
    builder.op("gemm", "gpu 1", 4.0, after=[send], factor="compute")
    builder.op("norm", "gpu 1", 1.0)
    path = critical_path(play(builder.freeze()))
    assert path.ops.tolist() == [0, 1, 3, 4]
    assert path.causes == ("start", "predecessor", "predecessor", "resource")
    assert path.seconds_by_kind() == {"gemm": 6.0, "send": 1.0, "norm": 1.0}


@steady
@given(graphs(capacity=None), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_batches_equal_single_plays(graph: OpGraph, count: int, seed: int) -> None:
    durations = np.random.default_rng(seed).random((count, len(graph)))
    ends = fast.play_many(graph, durations)
    longest = fast.makespans(graph, durations)
    for row in range(count):
        single = fast.play(graph.with_durations(durations[row]))
        assert ends[row].tolist() == single.end_s.tolist()
        assert longest[row] == single.makespan_s == fast.makespan(single.graph)


def test_a_batch_of_the_wrong_width_is_refused_before_compiled_code_reads_it() -> None:
    builder = GraphBuilder()
    builder.op("a", "gpu", 1.0)
    for shape in ((1,), (2, 3)):
        with pytest.raises(BadInputError, match="give \\(K, 1\\)"):
            fast.makespans(builder.freeze(), np.zeros(shape))


def test_an_empty_graph_takes_no_time() -> None:
    empty = GraphBuilder().freeze()
    assert play(empty).makespan_s == reference.play(empty).makespan_s == fast.makespan(empty) == 0.0
    assert len(critical_path(play(empty)).ops) == 0


def test_each_kernel_is_compiled_once() -> None:
    """A second specialisation would cost every user a second compilation."""
    from tangram_sim.sim import kernels

    builder = GraphBuilder()
    builder.op("a", "gpu", 1.0)
    graph = builder.freeze()
    mine = np.ones(1)
    for case in (graph, graph.with_durations(mine), graph.with_durations(np.ones(4)[::4])):
        fast.play(case)
        fast.makespan(case)
    fast.makespans(graph, np.ones((3, 2))[:, :1])
    fast.play_many(graph, np.ones((3, 1), np.float32))
    for kernel in (kernels.longest_path, kernels.longest_paths, kernels.makespans):
        assert len(kernel.signatures) == 1


# Contention


def transfers(*specs: tuple[float, float, list[int]], capacities: tuple[float, ...] = (1.0,)) -> OpGraph:
    """Independent transfers (seconds, bytes, links), each on a resource of its own."""
    builder = GraphBuilder()
    links = [builder.link(f"link {i}", capacity) for i, capacity in enumerate(capacities)]
    for index, (duration, size, crossed) in enumerate(specs):
        builder.op("send", f"wire {index}", duration, bytes=size, links=[links[link] for link in crossed])
    return builder.freeze()


def test_two_equal_transfers_on_one_link_take_twice_as_long() -> None:
    graph = transfers((3.0, 3.0, [0]), (3.0, 3.0, [0]))
    assert saturated_links(fast.play(graph)) == (0,)
    assert play(graph).end_s.tolist() == [6.0, 6.0]
    assert play(graph, contention=False).end_s.tolist() == [3.0, 3.0]


def test_a_short_transfer_gives_its_share_back_when_it_ends() -> None:
    """Both at 1/2 until the short one has moved 1 byte at t=2; the long one has 2 of 3 left and ends at 4."""
    assert play(transfers((1.0, 1.0, [0]), (3.0, 3.0, [0]))).end_s.tolist() == pytest.approx([2.0, 4.0])


def test_a_transfer_that_joins_late_slows_the_one_under_way() -> None:
    builder = GraphBuilder()
    link = builder.link("nic", 1.0)
    builder.op("send", "wire 0", 4.0, bytes=4.0, links=[link])
    wait = builder.op("gemm", "gpu", 2.0)
    builder.op("send", "wire 1", 1.0, after=[wait], bytes=1.0, links=[link])
    assert play(builder.freeze()).end_s.tolist() == pytest.approx([5.0, 2.0, 4.0])


def test_a_transfer_below_its_fair_share_is_not_slowed() -> None:
    """One asks for 1/4 of the link for 4 s; the other gets the remaining 3/4 meanwhile."""
    ends = play(transfers((4.0, 1.0, [0]), (3.0, 3.0, [0]))).end_s
    assert ends.tolist() == pytest.approx([4.0, 4.0])


def test_a_link_crossed_twice_carries_the_bytes_twice() -> None:
    assert play(transfers((1.0, 1.0, [0, 0]))).end_s.tolist() == [2.0]


def test_transfers_without_bytes_or_time_share_nothing() -> None:
    graph = transfers((2.0, 2.0, [0]), (2.0, 0.0, [0]), (0.0, 5.0, [0]), (1e-308, 5.0, [0]))
    for timeline in (play(graph), reference.play(graph)):
        assert timeline.end_s.tolist() == [2.0, 2.0, 0.0, 1e-308]


@steady
@given(graphs(capacity=2.0))
def test_bytes_are_conserved_and_links_never_overfull(graph: OpGraph) -> None:
    timeline, changes = reference.play_recorded(graph)
    times = [change.time_s for change in changes]
    assert times == sorted(times)
    moved: dict[int, float] = defaultdict(float)
    rate: dict[int, float] = {}
    now = 0.0
    for change in changes:
        if change.time_s > now:
            for op, current in rate.items():
                moved[op] += current * (change.time_s - now)
            for index, link in enumerate(graph.links):
                load = sum(
                    current * np.count_nonzero(graph.links_of(op) == index) for op, current in rate.items()
                )
                assert load <= link.bytes_per_s * (1 + CLOSE)
            now = change.time_s
        rate[change.op] = change.bytes_per_s
    assert not any(rate.values())
    for op, size in moved.items():
        assert size == pytest.approx(graph.bytes[op], rel=1e-6, abs=1e-9)
    flows = {op for op in range(len(graph)) if reference._is_flow(graph, op)}
    assert set(rate) == flows
    assert timeline.makespan_s >= max(now, fast.makespan(graph) * (1 - CLOSE))


def lexicographic_max_min(
    demands: list[float], routes: list[list[int]], capacities: list[float]
) -> list[float]:
    """Oracle: raise the least rate by LP, fix the flows that cannot rise further, repeat."""
    n = len(demands)
    crossing = np.array([[route.count(link) for route in routes] for link in range(len(capacities))], float)
    fixed: dict[int, float] = {}
    while len(fixed) < n:
        free = [flow for flow in range(n) if flow not in fixed]
        bounds = [(fixed.get(flow, 0.0), fixed.get(flow, demands[flow])) for flow in range(n)]
        above = np.zeros((len(free), n + 1))
        above[range(len(free)), free], above[:, n] = -1.0, 1.0
        lhs = np.vstack((np.hstack((crossing, np.zeros((len(capacities), 1)))), above))
        rhs = [*capacities, *[0.0] * len(free)]
        level = -linprog([0.0] * n + [-1.0], lhs, rhs, bounds=[*bounds, (0.0, None)]).fun
        floors = [
            (fixed.get(flow, min(level * (1 - 1e-7), demands[flow])), high)
            for flow, (_, high) in enumerate(bounds)
        ]
        for flow in free:
            best = -linprog([-float(f == flow) for f in range(n)], crossing, capacities, bounds=floors).fun
            if best <= level * (1 + 1e-5):
                fixed[flow] = level
    return [fixed[flow] for flow in range(n)]


def test_progressive_filling_equals_an_lp() -> None:
    random = np.random.default_rng(7)
    for _ in range(25):
        capacities = random.uniform(1.0, 5.0, 3).tolist()
        flows = int(random.integers(1, 6))
        demands = random.uniform(0.2, 4.0, flows).tolist()
        routes = [random.integers(0, 3, int(random.integers(1, 4))).tolist() for _ in range(flows)]
        rates = max_min_rates(demands, routes, capacities)
        assert rates == pytest.approx(lexicographic_max_min(demands, routes, capacities), rel=1e-4)


def test_a_flow_that_no_link_limits_gets_exactly_its_demand() -> None:
    demands = [0.1, 1 / 3, 0.7]
    assert max_min_rates(demands, [[0], [0], [1]], [1.0, 1.0]) == demands


def test_an_undisturbed_transfer_ends_exactly_on_time() -> None:
    """Counting its bytes down must not add rounding: 0.3 s stays 0.3 s, also next to another that fits."""
    graph = transfers((0.3, 0.1, [0]), (0.7, 0.2, [0]))
    assert reference.play(graph).end_s.tolist() == fast.play(graph).end_s.tolist() == [0.3, 0.7]


def test_a_transfer_that_asks_for_more_than_its_link_carries_is_slowed_alone() -> None:
    """Also where the uncontended time is too short for the clock to see."""
    assert play(transfers((1.0, 4.0, [0]))).end_s.tolist() == [4.0]
    assert play(transfers((1e-300, 4.0, [0]))).end_s.tolist() == pytest.approx([4.0])
