"""Orders, graphs and held sets of small pipelines, written out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import column
from tangram_sim.sim import play
from tangram_sim.training.plan import UNLIMITED
from tangram_sim.training.schedules import (
    ScheduleOrder,
    StageTimes,
    lower_order,
    schedule_named,
    step_template,
)
from tangram_sim.training.schedules.contract import check_schedule
from tangram_sim.training.schedules.holding import counted_beside, holding
from tangram_sim.training.schedules.named import chunked, holds_whole_depth
from tangram_sim.training.schedules.one_f_one_b import OneFOneB


@pytest.mark.parametrize(
    ("name", "stage", "passes"),
    [
        # Two stages, four microbatches. The near chunk fills three deep, the far one follows at once; each
        # weight gradient stands behind its backward, but for those of the last stage's drain.
        ("zb-v", 0, "F0 F1 F2 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 F3 B0 W0"
                    " F2.1 B2.1 W2.1 B1 W1 F3.1 B3.1 W3.1 B2 W2 B3 W3"),
        ("zb-v", 1, "F0 F0.1 F1 F1.1 B0.1 W0.1 F2 B0 W0 F2.1 B1.1 W1.1"
                    " F3 B1 W1 F3.1 B2.1 W2.1 B2 B3.1 B3 W2 W3.1 W3"),
        ("dualpipe-v", 0, "F0 F1 F2 F0.1 B0.1 W0.1 F1.1 F3 B1.1 W1.1 F2.1 B0 W0"
                          " B2.1 W2.1 F3.1 B1 W1 B3.1 B2 W3.1 B3 W2 W3"),
        ("dualpipe-v", 1, "F0 F0.1 F1 F1.1 F2 B0.1 W0.1 F2.1 B0 W0 F3 B1.1 W1.1"
                          " F3.1 B1 W1 B2.1 W2.1 B2 W2 B3.1 B3 W3.1 W3"),
    ],
)  # fmt: skip
def test_orders_in_a_v(name: str, stage: int, passes: str) -> None:
    order = schedule_named(name).order(2, 4, 2)
    assert " ".join(map(str, order.stage(stage))) == passes
    assert order.places.place.tolist() == [[0, 3], [1, 2]] and order.places.stage_of.tolist() == [0, 1, 1, 0]


def test_orders_over_three_stages() -> None:
    """The middle of a V of three, under each schedule, and interleaving with three chunks."""
    assert " ".join(map(str, schedule_named("zb-v").order(3, 3, 2).stage(1))).startswith(
        "F0 F1 F2 F0.1 F1.1 B0.1"
    )
    # Eight steps of DualPipe-V on the first and the last of three stages, six microbatches.
    first, last = (" ".join(map(str, schedule_named("dualpipe-v").order(3, 6, 2).stage(at))) for at in (0, 2))
    assert first == (
        "F0 F1 F2 F3 F4 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 F2.1 F5 B2.1 W2.1 F3.1 B0 W0 B3.1 W3.1 F4.1 B1 W1"
        " B4.1 W4.1 F5.1 B2 W2 B5.1 B3 W5.1 B4 W3 B5 W4 W5"
    )
    assert last == (
        "F0 F0.1 F1 F1.1 F2 F2.1 F3 B0.1 W0.1 F3.1 B0 W0 F4 B1.1 W1.1 F4.1 B1 W1 F5 B2.1 W2.1 F5.1 B2 W2"
        " B3.1 W3.1 B3 W3 B4.1 B4 B5.1 B5 W4.1 W4 W5.1 W5"
    )
    rounds = schedule_named("interleaved").order(2, 2, 3)
    assert " ".join(map(str, rounds.stage(0))) == "F0 F1 F0.1 F1.1 F0.2 F1.2 B0.2 B1.2 B0.1 B1.1 B0 B1"
    assert " ".join(map(str, rounds.stage(1))) == "F0 F1 F0.1 F1.1 F0.2 B0.2 F1.2 B1.2 B0.1 B1.1 B0 B1"
    assert rounds.places.place.tolist() == [[0, 2, 4], [1, 3, 5]] and rounds.places.wraps


def test_a_step_as_a_graph() -> None:
    """Two stages, two microbatches, tied ends: every op, its stream, what it waits for, its slot of times.

    Slots: F of stages 0, 1; B; last B; W; last W; then sends, syncs and optimizers by stage; tied last.
    """
    template = step_template("1f1b", 2, 2, tied=True)
    graph = template.graph
    waits = [graph.pred[graph.pred_ptr[i] : graph.pred_ptr[i + 1]].tolist() for i in range(len(graph))]
    told = [
        (graph.op(i).label, graph.resources[graph.resource[i]], waits[i], int(template.slot[i]))
        for i in range(len(graph))
    ]
    tied = "first and last stage/tied embeddings"
    assert told == [
        ("F0", "stage 0/compute", [], 0),
        ("SEND_F0", "stage 0/send forward", [0], 10),
        ("F1", "stage 0/compute", [], 0),
        ("SEND_F1", "stage 0/send forward", [2], 10),
        ("F0", "stage 1/compute", [1], 1),
        ("B0", "stage 1/compute", [4], 3),
        ("SEND_B0", "stage 1/send backward", [5], 12),
        ("F1", "stage 1/compute", [3], 1),
        ("B1", "stage 1/compute", [7], 5),
        ("SEND_B1", "stage 1/send backward", [8], 12),
        ("B0", "stage 0/compute", [6], 2),
        ("B1", "stage 0/compute", [9], 4),
        ("SYNC", "stage 0/sync", [11], 14),
        ("SYNC", "stage 1/sync", [8], 15),
        ("TIED", tied, [12, 13], 18),
        ("OPTIMIZER", "stage 0/compute", [12, 14], 16),
        ("OPTIMIZER", "stage 1/compute", [13, 14], 17),
    ]
    assert graph.device.tolist() == [0, -1, 0, -1, 1, 1, -1, 1, 1, -1, 0, 0, -1, -1, -1, 0, 1]
    assert (
        template.microbatch.tolist()[:5] == [0, 0, 1, 1, 0] and template.microbatch.tolist()[-5:] == [-1] * 5
    )
    assert template.stage.tolist()[-5:] == [0, 1, 0, 0, 1] and template.slots == 19


def test_what_a_stage_sends_back_crosses_the_boundary_before_it() -> None:
    """Of three stages the second sends gradients over boundary 0, the third over boundary 1."""
    template = step_template("1f1b", 3, 1)
    back = [
        (int(template.stage[i]), int(template.slot[i]))
        for i in range(len(template.graph))
        if "SEND_B" in template.graph.op(i).label
    ]
    first = 5 * 3 + 3  # five blocks of passes, one of activations, by three stages
    assert back == [(2, first + 1), (1, first)]


def test_sends_turn_round_in_a_v() -> None:
    """One microbatch over two stages: out over the boundary, home over it the other way; gradients, too.

    Between the two chunks of the last stage nothing is sent. In rounds over two stages the way home leads on,
    over a boundary of its own.
    """
    graph = step_template("zb-v", 2, 1, 2).graph
    labels = [graph.op(i).label for i in range(len(graph))]
    sends = [(label, graph.resources[graph.resource[i]]) for i, label in enumerate(labels) if "SEND" in label]
    assert sends == [
        ("SEND_F0.0", "stage 0/send forward"), ("SEND_B0.1", "stage 1/send backward"),
        ("SEND_F0.1", "stage 0/send forward"), ("SEND_B0.0", "stage 1/send backward"),
    ]  # fmt: skip
    times = StageTimes.equal(2, 2, forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0)
    crossing = replace(times, send_forward_s=np.array([3.0, 0.0]), send_backward_s=np.array([5.0, 0.0]))
    assert play(step_template("zb-v", 2, 1, 2).with_durations(crossing)).makespan_s == 3 + 5 + 3 + 5
    around = replace(times, send_forward_s=np.array([3.0, 7.0]), send_backward_s=np.array([5.0, 11.0]))
    found = play(step_template("interleaved", 2, 2, 2).with_durations(around)).busy_s()
    assert [float(value) for value in found if value] == [3 * 4, 7 * 2, 11 * 2, 5 * 4]


def test_stages_that_compute_nothing_while_they_send() -> None:
    """A forward ends when the next stage has it, a backward when the one before has; the wrap stays free."""
    times = StageTimes.equal(3, forward_s=1.0, backward_input_s=2.0, backward_weight_s=0.5, send_s=0.25)
    blocked = times.blocking(step_template("1f1b", 3, 3).order.places)
    assert blocked.forward_s.ravel().tolist() == [1.25, 1.25, 1.0]
    assert blocked.backward_input_s.ravel().tolist() == [2.0, 2.25, 2.25]
    assert blocked.send_forward_s.tolist() == blocked.send_backward_s.tolist() == [0, 0, 0]
    assert times.forward_s.ravel().tolist() == [1, 1, 1]


def test_how_many_stages_may_stand_behind() -> None:
    """1F1B with four microbatches holds one set and one for each stage behind, four at most."""
    held = holding("1f1b", 4)
    assert [held.most_behind(limit, 0) for limit in (0, 1, 2, 3, 4, 9)] == [-1, 0, 1, 2, UNLIMITED, UNLIMITED]
    assert [held.most_behind(limit, 1) for limit in (1, 2, 3, 4)] == [-1, 0, 1, UNLIMITED]
    every = np.array([0, 1, 2, 3, 4, 9])
    assert holding("1f1b", 4).most_behind_each(every, 0).tolist() == [-1, 0, 1, 2, UNLIMITED, UNLIMITED]
    assert held.most_behind_each(every, 2).tolist() == [-1, -1, -1, 0, UNLIMITED, UNLIMITED]
    assert holding("1f1b", 30).most_behind_each(np.array([29, 3]), 1).tolist() == [27, 1]
    all_or_none = holding("gpipe", 4)
    assert [all_or_none.most_behind(limit, 0) for limit in (0, 1, 3, 4)] == [-1, 0, 0, UNLIMITED]
    assert [all_or_none.most_behind(limit, 1) for limit in (3, 4)] == [-1, UNLIMITED]
    assert holding("zb-h1", 8).most_behind(3, 0) == 2
    assert (held.everywhere, held.schedule, held.microbatches) == (4, "1f1b", 4)


def test_what_counts_as_behind_an_inner_stage() -> None:
    """Under 1F1B those behind it; under ZB-H1 and GPipe, which hold by the depth, all."""
    assert counted_beside("1f1b", 3) == (2, 1, 0) and counted_beside("zb-h1", 3) == (2, 2, 2)
    assert [name for name in NAMES if holds_whole_depth(name)] == ["gpipe", "zb-h1"]
    assert [name for name in NAMES if chunked(name)] == ["interleaved", "zb-v", "dualpipe-v"]


NAMES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v")


def test_a_wait_in_a_circle_is_named_where_it_is() -> None:
    """Stage 1 stands before F1: it wants the backward of microbatch 0 first, which stage 2 runs too late."""
    rows = ["F0 F1 B0 B1", "F0 B0 F1 B1", "F0 F1 B0 B1"]
    every = [[("FB".index(word[0]), int(word[1])) for word in row.split()] for row in rows]
    kind, microbatch = (column([item[i] for row in every for item in row], np.int32) for i in range(2))
    order = ScheduleOrder(
        3, 2, 1, False, column([0, 4, 8, 12], np.int32), kind, microbatch, column(np.zeros(12), np.int32)
    )
    with pytest.raises(BadInputError, match="stage 0 waits before B0"):
        lower_order(order)


def broken(**changes: Any) -> OneFOneB:
    """1F1B with something of it changed."""
    return type("Broken", (OneFOneB,), changes)()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "has no name"),
        ({"chunks": (2, 1)}, "give 1 <= least <= most"),
        ({"chunks": (0, 1)}, "give 1 <= least <= most"),
        ({"splits_backward": True}, "splits_backward is not"),
        ({"place": lambda self, stage, chunk, stages: 0}, "number all chunks once"),
        ({"place": lambda self, stage, chunk, stages: stages - 1 - stage}, "places are not place"),
        ({"order": lambda self, s, m, c=1: OneFOneB().order(s, m + 1, 1)}, "of another shape"),
        ({"order": lambda self, s, m, c=1: OneFOneB().order(s, m, 1)}, "must raise a TangramError"),
        ({"whole_rounds": True}, "must raise a TangramError"),
    ],
)
def test_what_a_broken_schedule_is_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        check_schedule(broken(**changes))


def test_a_schedule_answers_the_same_twice_and_grows_with_its_depth() -> None:
    """Orders that come out differently when asked again, and counts that fall far behind, are refused."""
    asked: list[int] = []

    def fickle(self: OneFOneB, stages: int, microbatches: int, chunks: int = 1) -> ScheduleOrder:
        asked.append(stages)
        order = OneFOneB().order(stages, microbatches, chunks)
        if (stages, microbatches) == (1, 2) and asked.count(1) % 2:
            rows = order.microbatch[::-1].copy()
            return ScheduleOrder(1, 2, 1, False, order.stage_ptr, order.kind, rows, order.chunk)
        return order

    with pytest.raises(BadInputError, match="asked twice"):
        check_schedule(broken(order=fickle), stages=(1,), microbatches=(2,))

    def falling(self: OneFOneB, behind: int, depth: int, chunks: int, microbatches: int) -> int:
        right = OneFOneB().in_flight(behind, depth, chunks, microbatches)
        return right - 1 if depth == UNLIMITED else right

    with pytest.raises(BadInputError, match="falls as stages come behind"):
        check_schedule(broken(in_flight=falling))
