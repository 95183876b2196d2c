"""Rerouted schedules: both engines agree, no dead worker changes nothing, work bounds the step."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.opgraph import OpGraph
from tangram_sim.reliability.spot.rerouting import (
    _BACKWARD,
    _FORWARD,
    Pass,
    _Routes,
    _scheduled,
    busiest,
    rerouted_step_s,
)
from tangram_sim.sim import fast, reference


def rerouted_graph(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    pipelines: int,
    microbatches: int,
    dead: Sequence[int],
) -> OpGraph:
    """The passes of a step in which every stage has a live worker, each live worker one resource."""
    worker_of = _Routes(pipelines, dead).worker_of
    builder, made = GraphBuilder(), dict[Pass, int]()
    last = len(forward_s) - 1
    for done in _scheduled(forward_s, backward_s, pipelines, microbatches, dead)[0]:
        direction, number, pipeline, stage = done
        pipe, _ = worker_of(done)
        needs = _before(done, last)
        made[done] = builder.op(
            "FB"[direction],
            f"pipeline {pipe}, stage {stage}/compute",
            (forward_s, backward_s)[direction][stage],
            [made[needs]] if needs else [],
            label=f"{'FB'[direction]}{number} of {pipeline}",
        )
    return builder.freeze()


def _before(one: Pass, last: int) -> Pass | None:
    """The pass of the same microbatch that this one waits for."""
    direction, number, pipeline, stage = one
    if direction == _FORWARD:
        return (_FORWARD, number, pipeline, stage - 1) if stage else None
    return (_FORWARD, number, pipeline, stage) if stage == last else (_BACKWARD, number, pipeline, stage + 1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_rerouted_step_lies_between_its_bounds_in_both_engines(data: st.DataObject) -> None:
    pipelines, stages, microbatches = (data.draw(st.integers(1, most)) for most in (4, 5, 10))
    dead = [data.draw(st.integers(0, pipelines - 1)) for _ in range(stages)]
    forward, backward = (
        [data.draw(st.floats(0.5, 2.0)) for _ in range(stages)] for _ in ("forward", "backward")
    )
    graph = rerouted_graph(forward, backward, pipelines, microbatches, dead)
    step_s = fast.makespan(graph)
    assert reference.play(graph).makespan_s == pytest.approx(step_s)
    assert rerouted_step_s(forward, backward, pipelines, microbatches, dead) == pytest.approx(step_s)
    work = max(
        count * (f + b)
        for count, f, b in zip(busiest(pipelines, microbatches, dead), forward, backward, strict=True)
    )
    assert step_s >= work - 1e-9
    if not any(dead):
        assert step_s == pytest.approx(
            fast.makespan(rerouted_graph(forward, backward, 1, microbatches, [0] * stages))
        )


def test_equal_stages_without_a_loss_are_1f1b_and_with_one_near_the_published_example() -> None:
    """D 3, P 4, m 6, f 1, b 2: 27 slots, and 36 when peers take over without using bubbles."""
    passes = [1.0] * 4, [2.0] * 4
    assert rerouted_step_s(*passes, 3, 6, ()) == 27.0
    taken = [rerouted_step_s(*passes, 3, 6, [0] * stage + [1]) for stage in range(4)]
    assert taken == [38.0, 36.0, 36.0, 36.0]


@settings(max_examples=60, deadline=None)
@given(pipelines=st.integers(2, 4), stages=st.integers(1, 5), microbatches=st.integers(2, 10), data=st.data())
def test_taking_over_costs_about_what_it_does_without_bubbles_at_most(
    pipelines: int, stages: int, microbatches: int, data: st.DataObject
) -> None:
    dead = [data.draw(st.integers(0, pipelines - 1)) for _ in range(stages)]
    slots = max(busiest(pipelines, microbatches, dead)) + stages - 1
    assert rerouted_step_s([1.0] * stages, [2.0] * stages, pipelines, microbatches, dead) <= 1.15 * 3 * slots


def test_a_stage_without_a_worker_has_no_step() -> None:
    assert rerouted_step_s([1.0, 1.0], [2.0, 2.0], 2, 4, [0, 2]) == 0.0
