"""Speeds of resources: one place where work becomes time, read alike by both engines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError
from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.health import FULL_SPEED, Speed, slowed
from tangram_sim.opgraph import OpGraph
from tangram_sim.sim import contention, fast, reference, shared
from tangram_sim.sim.kernels import elapsed

from .test_engines import graphs


@st.composite
def speeds(draw: st.DrawFn) -> Speed:
    count = draw(st.integers(1, 4))
    times = sorted(draw(st.sets(st.floats(0.01, 8.0), min_size=count - 1, max_size=count - 1)))
    values = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]), min_size=count, max_size=count))
    return Speed((0.0, *times), (*values[:-1], values[-1] or 1.0))


def at(speed: Speed, graph_start: float, work: float) -> float:
    """Seconds by adding up thin slices of time: slow, and plainly right."""
    pieces = [*zip(speed.since_s, speed.speed, strict=True)]
    now, left = graph_start, work
    while True:
        current = [value for since, value in pieces if since <= now][-1]
        later = min((since for since, _ in pieces if since > now), default=np.inf)
        if current and left / current <= later - now:
            return now + left / current - graph_start
        left -= (later - now) * current
        now = later


@given(speeds(), st.floats(0.0, 10.0), st.floats(0.001, 20.0))
@settings(deadline=None)
def test_work_takes_the_time_its_speed_gives_it(speed: Speed, start: float, work: float) -> None:
    builder = GraphBuilder()
    builder.op("a", "gpu", work)
    graph = builder.freeze().with_speeds([speed])
    took = elapsed(start, work, 0, graph.speed_ptr, graph.speed_since_s, graph.speed)
    assert took == pytest.approx(at(speed, start, work), rel=1e-9)


@given(graphs(capacity=None), st.data())
@settings(max_examples=60, deadline=None)
def test_engines_agree_under_random_speeds(graph: OpGraph, data: st.DataObject) -> None:
    paced = graph.with_speeds([data.draw(speeds()) for _ in graph.resources])
    timeline, other = fast.play(paced), reference.play(paced)
    assert timeline.start_s == pytest.approx(other.start_s, rel=1e-9, abs=1e-9)
    assert timeline.end_s == pytest.approx(other.end_s, rel=1e-9, abs=1e-9)
    assert shared.play(paced).end_s == pytest.approx(other.end_s, rel=1e-9, abs=1e-9)
    assert fast.makespan(paced) == pytest.approx(other.makespan_s, rel=1e-9, abs=1e-9)


@given(graphs(), st.data())
@settings(max_examples=40, deadline=None)
def test_engines_agree_where_links_are_shared_and_compute_is_slow(
    graph: OpGraph, data: st.DataObject
) -> None:
    crossing = set(graph.resource[np.diff(graph.link_ptr) > 0].tolist())
    given_speeds = [
        FULL_SPEED if resource in crossing else data.draw(speeds())
        for resource in range(len(graph.resources))
    ]
    paced = graph.with_speeds(given_speeds)
    timeline, other = contention.play(paced), reference.play(paced)
    assert timeline.end_s == pytest.approx(other.end_s, rel=1e-6, abs=1e-6)


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_speeds_of_one_change_nothing(graph: OpGraph) -> None:
    same = graph.with_speeds([Speed((0.0, 1.0), (1.0, 1.0)) for _ in graph.resources])
    assert contention.play(same).end_s.tobytes() == contention.play(graph).end_s.tobytes()
    assert reference.play(same).end_s.tobytes() == reference.play(graph).end_s.tobytes()


@given(graphs(capacity=None), st.floats(0.1, 8.0))
@settings(max_examples=40, deadline=None)
def test_slowing_everything_scales_the_makespan(graph: OpGraph, factor: float) -> None:
    slow = graph.with_speeds([slowed(factor)] * len(graph.resources))
    assert fast.makespan(slow) == pytest.approx(fast.makespan(graph) * factor, rel=1e-9)


def test_a_pause_holds_up_what_runs_through_it() -> None:
    builder = GraphBuilder()
    builder.op("a", "gpu", 2.0)
    builder.op("b", "gpu", 2.0)
    graph = builder.freeze().with_speeds([Speed((0.0, 1.0, 1.5), (1.0, 0.0, 1.0))])
    assert fast.play(graph).end_s.tolist() == [2.5, 4.5]
    assert slowed(2.0, 1.0, 3.0) == Speed((0.0, 1.0, 3.0), (1.0, 0.5, 1.0))
    assert slowed(2.0) == Speed((0.0,), (0.5,))


@pytest.mark.parametrize(
    ("since", "speed"),
    [((0.0,), (0.0,)), ((1.0,), (1.0,)), ((0.0, 0.0), (1.0, 1.0)), ((0.0,), (float("nan"),)), ((), ())],
)
def test_impossible_speeds_are_refused(since: tuple[float, ...], speed: tuple[float, ...]) -> None:
    with pytest.raises(BadInputError):
        Speed(since, speed)


def test_senders_over_shared_links_have_no_speed_of_their_own() -> None:
    builder = GraphBuilder()
    link = builder.link("nic", 1.0)
    builder.op("send", "wire", 1.0, bytes=1.0, links=[link])
    with pytest.raises(BadInputError, match="slow its links instead"):
        builder.freeze().with_speeds([slowed(2.0)])
    with pytest.raises(BadInputError, match="give one each"):
        builder.freeze().with_speeds([])
