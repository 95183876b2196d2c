"""Laws of shared links and of paths on random graphs: what is recorded is what max-min shares define.

Every interval between two changes is looked at: who runs, what each gets, what links carry. The players know
only who came or went; here all flows that run are shared out anew by the readable solver.
"""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.opgraph import OpGraph, column
from tangram_sim.sim import critical_path, fast, saturated_links, shared
from tangram_sim.sim.fluid import max_min_rates
from tangram_sim.sim.timeline import Timeline


def graph_of(seed: int, *, whole: bool, narrow: float = 1.0) -> OpGraph:
    """Up to 30 ops on six resources, most of which cross some of five links; `whole` seconds end together."""
    random = Random(seed)
    builder = GraphBuilder()
    links = [builder.link(f"link {i}", narrow * random.choice([0.5, 1.0, 3.0])) for i in range(5)]
    for index in range(random.randint(2, 30)):
        before = range(max(0, index - 6), index)
        crossed = random.choices(links, k=random.randint(0, 3))
        builder.op(
            random.choice(["send", "compute"]),
            f"resource {random.randint(0, 5)}",
            random.randint(0, 6) / 2 if whole else random.uniform(0.0, 4.0),
            sorted(random.sample(before, min(len(before), random.randint(0, 2)))),
            bytes=random.randint(0, 4) if whole else random.uniform(0.0, 4.0),
            links=crossed,
            link_weights=[random.choice([0.25, 1.0, 0.5, 2.0]) for _ in crossed],
        )
    return builder.freeze()


def routes(graph: OpGraph, op: int) -> tuple[list[int], list[float]]:
    own = slice(graph.link_ptr[op], graph.link_ptr[op + 1])
    return graph.link[own].tolist(), graph.link_weight[own].tolist()


def rates_over_time(graph: OpGraph) -> tuple[Timeline, list[tuple[float, float, dict[int, float]]]]:
    """What the compiled player says: the timeline, and the rates between any two changes."""
    timeline, changes = shared.play_recorded(graph)
    moments = np.unique(changes.time_s).tolist()
    rates: dict[int, float] = {}
    found = []
    for now, after in pairwise([*moments, float(timeline.end_s.max())]):
        for place in np.flatnonzero(changes.time_s == now).tolist():
            rates[int(changes.op[place])] = float(changes.bytes_per_s[place])
        found.append((now, after, {op: rate for op, rate in rates.items() if rate}))
    return timeline, found


@pytest.mark.parametrize("whole", [True, False])
def test_every_rate_at_any_time_is_the_fair_share_of_all_that_run(whole: bool) -> None:
    """Who runs is who began and has not ended; all bytes get through, and no link carries too much."""
    shares = 0
    for seed in range(60):
        graph = graph_of(seed, whole=whole)
        demand = shared.demands(graph)
        capacity = [link.bytes_per_s for link in graph.links]
        timeline, intervals = rates_over_time(graph)
        moved = np.zeros(len(graph))
        for begin, end, rates in intervals:
            if end <= begin + 1e-9:
                continue
            middle = 0.5 * (begin + end)
            runs = np.flatnonzero((demand > 0) & (timeline.start_s < middle) & (timeline.end_s > middle))
            assert sorted(rates) == runs.tolist(), (seed, begin)
            ways = [routes(graph, op) for op in runs.tolist()]
            fair = max_min_rates(
                demand[runs].tolist(), [way for way, _ in ways], capacity, [weight for _, weight in ways]
            )
            assert [rates[op] for op in runs.tolist()] == pytest.approx(fair, rel=1e-9), (seed, begin)
            load = np.zeros(len(capacity))
            for op, (way, weights) in zip(runs.tolist(), ways, strict=True):
                moved[op] += rates[op] * (end - begin)
                np.add.at(load, way, rates[op] * np.array(weights))
            assert (load <= np.array(capacity) * (1 + 1e-9)).all()
            shares += int((np.array(fair) < demand[runs]).sum())
        flows = demand > 0
        np.testing.assert_allclose(moved[flows], graph.bytes[flows], rtol=1e-6, atol=1e-6)
        # In between resources and predecessors are what they wait for, and nothing else.
        for op in range(len(graph)):
            waits = [*graph.predecessors(op).tolist(), int(graph.resource_previous[op])]
            ready = max((timeline.end_s[wait] for wait in waits if wait >= 0), default=0.0)
            assert timeline.start_s[op] == pytest.approx(ready, abs=1e-12)
    assert shares > 300


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("narrow", [1.0, 3.0])
def test_saturated_links_are_those_asked_for_more_than_they_carry_in_some_interval(
    whole: bool, narrow: float
) -> None:
    """Uncontended; what asks for as much as there is, or more by rounding alone, is no contention."""
    full = 0
    for seed in range(80):
        graph = graph_of(seed, whole=whole, narrow=narrow)
        timeline, demand = fast.play(graph), shared.demands(graph)
        moments = np.unique([*timeline.start_s, *timeline.end_s]).tolist()
        found = set()
        for begin, end in pairwise(moments):
            load = np.zeros(len(graph.links))
            for op in np.flatnonzero(
                (demand > 0) & (timeline.start_s < end) & (timeline.end_s > begin)
            ).tolist():
                way, weights = routes(graph, op)
                np.add.at(load, way, demand[op] * np.array(weights))
            found |= {k for k, link in enumerate(graph.links) if load[k] > link.bytes_per_s * (1 + 1e-9)}
        assert saturated_links(timeline) == tuple(sorted(found)), seed
        full += len(found)
    assert full > 20


def test_a_load_above_capacity_by_rounding_alone_is_none() -> None:
    builder = GraphBuilder()
    link = builder.link("link", 0.3)
    for number, bytes_per_s in enumerate((0.1, 0.2)):  # 0.30000000000000004 together
        builder.op("send", f"r{number}", 1.0, [], bytes=bytes_per_s, links=[link])
    assert saturated_links(fast.play(builder.freeze())) == ()


def test_seconds_on_paths_are_those_of_the_critical_path() -> None:
    """By label, of many plays at once, with ties; to the last op, or to the last of those that count."""
    random = Random(5)
    for seed in range(60):
        graph = graph_of(seed, whole=True)
        count = len(graph)
        source = np.array([random.randrange(4) for _ in range(count)], np.int32)
        label = np.array([random.randrange(3) for _ in range(count)], np.int32)
        durations = np.array([[random.randint(0, 3) for _ in range(4)] for _ in range(5)], np.float64)
        counted = np.array([random.random() < 0.6 for _ in range(count)], np.int32)
        whole = fast.path_totals(graph, source, durations, label, 3)
        some = fast.path_totals(graph, source, durations, label, 3, counted)
        for play, lasts in enumerate(durations):
            played = fast.play(graph.with_durations(lasts[source]))
            on = critical_path(played).ops
            assert whole[play].tolist() == [lasts[source[on[label[on] == index]]].sum() for index in range(3)]
            assert whole[play].sum() == played.end_s.max()
            last = max(played.end_s[counted != 0], default=0.0)
            assert some[play].sum() == last
            if counted[int(np.argmax(played.end_s))]:
                assert some[play].tolist() == whole[play].tolist()


def test_latest_ends_are_those_of_each_group_among_ops_up_to_each_mark() -> None:
    """Any number of plays beside each other; ops of group -1 are played and not told."""
    random = Random(6)
    for seed in range(30):
        graph = graph_of(seed, whole=False)
        count = len(graph)
        source = column([random.randrange(4) for _ in range(count)], np.int32)
        group = column([random.randint(-1, 1) for _ in range(count)], np.int32)
        marks = column(sorted({*random.sample(range(count), min(3, count)), count - 1}), np.int32)
        durations = np.random.default_rng(seed).uniform(0.0, 2.0, (4, random.choice([1, 3, 20])))
        found = fast.latest_ends(graph, source, durations, group, 2, marks)
        for play, lasts in enumerate(durations.T):
            ends = fast.play(graph.with_durations(lasts[source])).end_s
            for g in range(2):
                for place, mark in enumerate(marks.tolist()):
                    mine = ends[: mark + 1][group[: mark + 1] == g]
                    assert found[g, place, play] == pytest.approx(mine.max(initial=0.0), rel=1e-12)
