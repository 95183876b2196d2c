"""Pipeline schedules: their orders, the memory they hold, and the bubbles their papers promise."""

from dataclasses import fields
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError, InfeasibleError, UnknownNameError
from tangram_sim.opgraph import column
from tangram_sim.sim import fast, peak_memory, play, reference
from tangram_sim.training.schedules import (
    SCHEDULES,
    ScheduleOrder,
    StageTimes,
    check_order,
    holds_whole_depth,
    in_flight,
    lower_order,
    schedule_named,
    step_template,
)
from tangram_sim.training.schedules.contract import check_schedule
from tangram_sim.training.schedules.one_f_one_b import OneFOneB
from tangram_sim.training.schedules.step import play_steps

V_SHAPED = ("zb-v", "dualpipe-v")
# The first example may wait for the compiler.
steady = settings(deadline=None, max_examples=60)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """A schedule with a shape it can run: name, stages, microbatches, chunks."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    if name == "interleaved":
        stages = draw(st.integers(2, 6))
        return name, stages, stages * draw(st.integers(1, 4)), draw(st.integers(2, 4))
    if name in V_SHAPED:
        return name, draw(st.integers(1, 7)), draw(st.integers(1, 20)), 2
    return name, draw(st.integers(1, 7)), draw(st.integers(1, 20)), 1


def words(name: str, stages: int, microbatches: int, stage: int, chunks: int = 1) -> str:
    return " ".join(str(p) for p in schedule_named(name).order(stages, microbatches, chunks).stage(stage))


def test_known_orders() -> None:
    """Figures of the papers, by hand."""
    assert words("gpipe", 2, 3, 1) == "F0 F1 F2 B0 B1 B2"
    assert words("1f1b", 3, 4, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert words("1f1b", 3, 4, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert words("zb-h1", 3, 4, 0) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert words("zb-h1", 3, 4, 2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"
    # Megatron, 2 stages x 2 chunks x 4 microbatches: stage 1 warms up with 2 forwards, stage 0 with 4.
    assert words("interleaved", 2, 4, 1, 2) == (
        "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3"
    )
    assert words("interleaved", 2, 4, 0, 2).startswith("F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1")


@steady
@given(shapes())
def test_every_order_keeps_the_contract_and_runs_to_its_end(shape: tuple[str, int, int, int]) -> None:
    name, stages, microbatches, chunks = shape
    order = schedule_named(name).order(stages, microbatches, chunks)
    check_order(order)
    template = lower_order(order)
    kinds = np.bincount(template.graph.kind, minlength=8)
    per_pass = stages * chunks * microbatches
    # A V turns round inside its last stage, where nothing is sent.
    sent = per_pass - microbatches * (2 if name in V_SHAPED else 1)
    assert kinds.tolist() == [
        per_pass,
        per_pass,
        per_pass if order.splits_backward else 0,
        sent,
        sent,
        stages,
        0,
        stages,
    ]


@steady
@given(shapes())
def test_in_flight_is_what_the_order_holds(shape: tuple[str, int, int, int]) -> None:
    name, stages, microbatches, chunks = shape
    order = schedule_named(name).order(stages, microbatches, chunks)
    for stage in range(stages):
        behind = stages - 1 - stage
        assert in_flight(name, behind, stages, chunks, microbatches) == order.peak_in_flight(stage)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_what_holds_the_whole_depth_is_seen_in_its_orders(name: str) -> None:
    """With one chunk a stage, the last one holds more, the deeper the pipeline, or ever the same."""
    chunks = schedule_named(name).chunks[0]
    depths = (1, 2, 4) if chunks == 1 else (2, 4)
    last = [schedule_named(name).order(s, 12, chunks).peak_in_flight(s - 1) for s in depths]
    assert last == sorted(last)
    assert holds_whole_depth(name) == (chunks == 1 and last[0] < last[-1])


def test_one_stage_accumulates_gradients_and_holds_one_microbatch() -> None:
    """There is no pipeline to fill: without stages, frameworks run forward and backward in turn."""
    assert words("gpipe", 1, 3, 0) == words("1f1b", 1, 3, 0) == "F0 B0 F1 B1 F2 B2"
    assert in_flight("gpipe", 0, 1, 1, 64) == 1
    assert [in_flight("gpipe", behind, 2, 1, 64) for behind in (0, 1)] == [64, 64]


def test_zero_bubble_holds_no_more_than_the_first_stage_of_1f1b() -> None:
    """The H1 promise: same peak over the pipeline."""
    held = [in_flight("zb-h1", behind, 6, 1, 30) for behind in range(6)]
    assert max(held) == max(in_flight("1f1b", behind, 6, 1, 30) for behind in range(6))


@steady
@given(shapes(), st.data())
def test_memory_of_a_step_is_static_plus_what_is_in_flight(
    shape: tuple[str, int, int, int], data: st.DataObject
) -> None:
    name, stages, microbatches, chunks = shape
    numbers = st.lists(st.integers(0, 1000).map(float), min_size=stages, max_size=stages)
    static, activation = np.array(data.draw(numbers)), np.array(data.draw(numbers))
    template = step_template(name, stages, microbatches, chunks)
    times = StageTimes.equal(
        stages, chunks, forward_s=1.0, backward_input_s=1.5, backward_weight_s=0.5, send_s=0.1
    )
    graph = template.with_memory(static, activation).with_durations(template.durations(times))
    held = [in_flight(name, stages - 1 - stage, stages, chunks, microbatches) for stage in range(stages)]
    assert peak_memory(play(graph)).tolist() == (static + np.array(held) * activation).tolist()


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 2), (2, 4), (3, 7), (4, 8), (6, 30), (8, 16)])
def test_zb_v_has_no_bubble_at_the_memory_of_1f1b(stages: int, microbatches: int) -> None:
    """Qi et al., section 6: F = B = W, twice as many microbatches as stages: no stage waits once it began."""
    template = step_template("zb-v", stages, microbatches, 2)
    times = StageTimes.equal(stages, 2, forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    played = play(template.with_durations(times))
    for stage in range(stages):
        own = (template.stage == stage) & (template.graph.kind <= 2)
        assert played.end_s[own].max() - played.start_s[own].min() == 6 * microbatches
        held = in_flight("zb-v", stages - 1 - stage, stages, 2, microbatches)
        assert held == 2 * in_flight("1f1b", stages - 1, stages, 1, microbatches)
    assert played.makespan_s == 6 * microbatches + stages - 1


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("more", [0, 1, 7, 20])
def test_dualpipe_v_keeps_to_its_published_bubble_and_memory(stages: int, more: int) -> None:
    """At most (P / 2 - 1)(F&B + B - 3 W) on P places of equal passes, F&B = F + B whole; P + 1 sets held."""
    microbatches = 2 * stages + more
    times = StageTimes.equal(stages, 2, forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    bubble = seconds("dualpipe-v", stages, microbatches, times, 2) - 6 * microbatches
    assert (stages > 1) <= bubble <= (stages - 1) * (1 + 2 + 2 - 3)
    for behind in range(stages):
        assert in_flight("dualpipe-v", behind, stages, 2, microbatches) == 2 * stages + 1


def test_a_v_has_both_ends_of_the_model_on_one_stage() -> None:
    """Tied embeddings need no exchange there; in rounds they do."""
    for name, together in (("zb-v", True), ("dualpipe-v", True), ("interleaved", False)):
        template = step_template(name, 4, 8, 2, tied=True)
        assert template.order.places.ends_together == together
        assert template.tied != together
        assert template.order.places.wraps != together


def test_chunks_may_hold_different_activations() -> None:
    template = step_template("interleaved", 2, 2, 2)
    graph = template.with_memory([0.0, 0.0], [[1.0, 10.0], [100.0, 1000.0]])
    assert peak_memory(play(graph)).tolist() == [22.0, 1200.0]


def seconds(name: str, stages: int, microbatches: int, times: StageTimes, chunks: int = 1) -> float:
    return play(step_template(name, stages, microbatches, chunks).with_durations(times)).makespan_s


@steady
@given(st.integers(1, 7), st.integers(1, 20), st.floats(0.1, 3), st.floats(0.1, 3))
def test_bubble_of_gpipe_and_1f1b(stages: int, microbatches: int, f: float, b: float) -> None:
    """(M + S - 1)(f + b) on equal stages without communication."""
    times = StageTimes.equal(stages, forward_s=f, backward_input_s=b / 2, backward_weight_s=b / 2)
    expected = pytest.approx((microbatches + stages - 1) * (f + b))
    assert seconds("gpipe", stages, microbatches, times) == expected
    assert seconds("1f1b", stages, microbatches, times) == expected


@steady
@given(st.integers(2, 6), st.integers(1, 5), st.integers(2, 4), st.floats(0.1, 3))
def test_interleaving_divides_the_bubble_by_the_chunks(
    stages: int, groups: int, chunks: int, f: float
) -> None:
    """M (f + b) + (S - 1)(f + b) / V for whole-stage f and b = 2 f (Narayanan et al. 2021, section 2.2)."""
    microbatches = groups * stages
    part = f / chunks
    times = StageTimes.equal(stages, chunks, forward_s=part, backward_input_s=part, backward_weight_s=part)
    expected = microbatches * 3 * f + (stages - 1) * 3 * f / chunks
    assert seconds("interleaved", stages, microbatches, times, chunks) == pytest.approx(expected)


@steady
@given(st.integers(1, 7), st.integers(0, 10), st.floats(0.1, 3))
def test_zero_bubble_of_equal_passes(stages: int, more: int, t: float) -> None:
    """(S - 1)(f + b - w) = (S - 1) t on equal stages, from 2 S - 1 microbatches on (Qi et al. 2023)."""
    microbatches = 2 * stages - 1 + more
    times = StageTimes.equal(stages, forward_s=t, backward_input_s=t, backward_weight_s=t)
    assert seconds("zb-h1", stages, microbatches, times) == pytest.approx((3 * microbatches + stages - 1) * t)


@steady
@given(shapes(), st.integers(0, 2**32 - 1))
def test_engines_agree_on_random_steps(shape: tuple[str, int, int, int], seed: int) -> None:
    name, stages, microbatches, chunks = shape
    random = np.random.default_rng(seed)
    passes, rest = random.random((3, stages, chunks)), random.random((5, stages))
    times = StageTimes(
        passes[0], passes[1], passes[2], rest[0], rest[1], rest[2], rest[3], rest[4], tied_s=0.4
    )
    template = step_template(name, stages, microbatches, chunks, tied=True)
    graph = template.with_durations(times)
    timeline, other = fast.play(graph), reference.play(graph)
    np.testing.assert_allclose(timeline.end_s, other.end_s, rtol=1e-9)
    assert play_steps(template, template.durations(times)[None, :]).tolist() == [timeline.makespan_s]


def test_a_step_of_two_stages_by_hand() -> None:
    """Every duration lands on its op: sends between passes, sync after backwards, tied before optimizers."""
    times = StageTimes(
        forward_s=np.array([1.0, 2.0]),
        backward_input_s=np.array([3.0, 4.0]),
        backward_weight_s=np.array([0.5, 0.25]),
        send_forward_s=np.array([0.125, 99.0]),
        send_backward_s=np.array([0.0625, 99.0]),
        sync_s=np.array([10.0, 20.0]),
        optimizer_s=np.array([100.0, 200.0]),
        last_backward_extra_s=np.array([0.03125, 0.015625]),
        tied_s=1000.0,
    )
    f0 = 1.0
    f1 = f0 + 0.125 + 2.0
    b1 = f1 + 4.25 + 0.015625
    b0 = b1 + 0.0625 + 3.5 + 0.03125
    ready = max(b0 + 10, b1 + 20)
    graph = step_template("1f1b", 2, 1, tied=True).with_durations(times)
    ends = dict(zip([graph.op(i).label for i in range(len(graph))], play(graph).end_s.tolist(), strict=True))
    assert play(graph).makespan_s == ready + 1000 + 200
    assert ends["SEND_F0"] == f0 + 0.125
    assert ends["SEND_B0"] == b1 + 0.0625
    assert ends["TIED"] == ready + 1000
    free = StageTimes(
        **{field.name: getattr(times, field.name) for field in fields(times) if field.name != "tied_s"}
    )
    assert play(step_template("1f1b", 2, 1, tied=True).with_durations(free)).makespan_s == ready + 200
    untied = step_template("1f1b", 2, 1).with_durations(times)
    assert play(untied).makespan_s == max(b0 + 10 + 100, b1 + 20 + 200)
    split = step_template("zb-h1", 2, 1).with_durations(times)
    durations = {
        split.op(i).label: float(split.duration_s[i]) for i in range(len(split)) if split.resource[i] == 0
    }
    assert (durations["B0"], durations["W0"]) == (3.0, 0.53125)


def test_extra_of_the_last_backward_counts_once_however_many_chunks() -> None:
    zero = StageTimes.equal(2, 3, forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0)
    columns = (zero.forward_s, zero.backward_input_s, zero.backward_weight_s, zero.sync_s, zero.sync_s)
    times = StageTimes(*columns, zero.sync_s, zero.sync_s, last_backward_extra_s=np.array([6.0, 3.0]))
    template = step_template("interleaved", 2, 4, 3)
    assert np.bincount(template.stage, weights=template.durations(times)).tolist() == pytest.approx(
        [6.0, 3.0]
    )


def test_interleaved_activations_wrap_around_from_last_to_first_stage() -> None:
    times = StageTimes.equal(2, 2, forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0)
    wrap = np.array([0.0, 5.0])
    columns = (times.forward_s, times.backward_input_s, times.backward_weight_s, wrap, wrap * 10)
    graph = step_template("interleaved", 2, 2, 2).with_durations(
        StageTimes(*columns, times.sync_s, times.sync_s)
    )
    busy = dict(zip(graph.resources, play(graph).busy_s().tolist(), strict=True))
    assert {name: value for name, value in busy.items() if value} == {
        "stage 1/send forward": 10.0,
        "stage 0/send backward": 100.0,
    }


def test_templates_are_shared() -> None:
    assert step_template("1f1b", 4, 8) is step_template("1f1b", 4, 8)


def test_the_lowering_kernel_is_compiled_once() -> None:
    from tangram_sim.training.schedules import kernels

    for name, chunks in (("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)):
        order = schedule_named(name).order(2, 4, chunks)
        lower_order(order)
        wide: list[Any] = [
            v.astype(np.int64) for v in (order.stage_ptr, order.kind, order.microbatch, order.chunk)
        ]
        lower_order(ScheduleOrder(2, 4, chunks, order.splits_backward, *wide))
    assert len(kernels.merge_stages.signatures) == 1


# Bad input


def test_unknown_schedules_are_named_with_their_neighbours() -> None:
    with pytest.raises(UnknownNameError, match="Nearest: 1f1b"):
        step_template("1f1", 2, 2)


def test_interleaved_wants_whole_groups_of_microbatches() -> None:
    with pytest.raises(
        InfeasibleError, match=r"10 microbatches, 4 stages\. Use 8 or 12 microbatches, or schedule '1f1b'"
    ):
        step_template("interleaved", 4, 10, 2)
    with pytest.raises(InfeasibleError, match="Use 4 microbatches"):
        step_template("interleaved", 4, 3, 2)


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "chunks", "message"),
    [
        ("1f1b", 2, 2, 2, "use 1 or schedule 'interleaved'"),
        ("zb-h1", 2, 2, 2, "one chunk per stage"),
        ("gpipe", 2, 2, 3, "one chunk per stage"),
        ("gpipe", 0, 2, 1, "stages is 0"),
        ("1f1b", 2, 0, 1, "microbatches is 0"),
        ("interleaved", 2, 2, 0, "chunks is 0"),
        ("interleaved", 4, 4, 1, "2 chunks or more"),
        ("interleaved", 1, 4, 2, "2 stages"),
    ],
)
def test_impossible_shapes_are_refused(
    name: str, stages: int, microbatches: int, chunks: int, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        step_template(name, stages, microbatches, chunks)


def hand_made(*stages: str) -> ScheduleOrder:
    """An order from words like "F0 B0", one string per stage."""
    rows = [[("FBW".index(word[0]), int(word[1:]), 0) for word in stage.split()] for stage in stages]
    kind, microbatch, chunk = (
        column([row[i] for stage in rows for row in stage], np.int32) for i in range(3)
    )
    ptr = column(np.cumsum([0] + [len(stage) for stage in rows]), np.int32)
    return ScheduleOrder(
        len(stages), int(microbatch.max()) + 1, 1, "W" in "".join(stages), ptr, kind, microbatch, chunk
    )


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (("F0 B0 F1 B1", "F1 F0 B0 B1"), "wait in a circle; stage 0 waits before B0"),
        (("F0 B0", "B0 F0"), "stage 1 runs a backward before what it needs"),
        (("F0 F1 B0 B0",), "stage 0 repeats a pass"),
        (("F0 F1 B0 B1", "F0 B0"), "stage 1 lists 2 passes"),
        (("F0 W0 B0",), "runs a backward before what it needs"),
    ],
)
def test_broken_orders_are_refused(stages: tuple[str, ...], message: str) -> None:
    """What a plug-in gets told."""
    with pytest.raises(BadInputError, match=message):
        lower_order(hand_made(*stages))


def test_hand_made_orders_run() -> None:
    assert len(lower_order(hand_made("F0 F1 B0 B1", "F0 F1 B0 B1")).graph) == 8 + 4 + 4


def test_stage_times_of_another_shape_are_refused() -> None:
    template = step_template("1f1b", 3, 2)
    with pytest.raises(BadInputError, match="3 stages and 1 chunks"):
        template.durations(StageTimes.equal(2, forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0))
    with pytest.raises(BadInputError, match=r"give static as \[3\]"):
        template.with_memory([1.0], [1.0, 1.0, 1.0])


def test_the_contract_looks_at_lone_stages_and_at_every_small_shape() -> None:
    """A schedule that is wrong on one shape only is found, also where nobody stands behind."""

    class Wrong(OneFOneB):
        where = (0, 0)

        def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:
            right = super().in_flight(behind, depth, chunks, microbatches)
            return right + ((depth, microbatches) == self.where)

    for shape in product((1, 2, 3, 5), (1, 2, 3, 4, 6, 10)):
        broken = Wrong()
        type(broken).where = shape
        with pytest.raises(BadInputError, match="in_flight"):
            check_schedule(broken)
