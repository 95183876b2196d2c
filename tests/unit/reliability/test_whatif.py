"""What-if analysis: laws on made-up traces, published results on measured ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.reliability.stragglers.replay import replay_of
from tangram_sim.reliability.stragglers.whatif import analyse, ideal_work_s
from tangram_sim.reliability.traces.kinds import KINDS
from tangram_sim.reliability.traces.tables import read_table
from tangram_sim.sim import fast, reference
from tangram_sim.training.schedules.step import StageTimes, step_template

from .traces import assembled, rows_of, shared


def test_a_trace_without_slow_ranks_loses_nothing() -> None:
    found = analyse(assembled(rows_of()))
    assert found.slowdown == pytest.approx(1, abs=1e-12)
    assert found.waste == pytest.approx(0, abs=1e-12)
    assert all(value == pytest.approx(1, abs=1e-12) for value in found.alone.values())
    assert found.pattern.name == "none"


def test_a_slow_worker_is_found_and_costs_what_the_closed_form_says() -> None:
    m, stages, x = 8, 3, 1.8
    found = analyse(assembled(rows_of(dp=2, stages=stages, microbatches=m, slow={(1, 2): x})))
    # The last stage is never kept waiting once it runs: m passes of its own, and the others' on the way.
    expected = (m * x + stages - 1) * 0.03 + 0.003
    assert found.replayed_step_s == pytest.approx(expected, rel=1e-9)
    assert found.pattern.name == "worker"
    assert (found.pattern.dp, found.pattern.stage) == (1, 2)
    assert found.worker_share > 0.9


def test_a_slow_last_stage_is_told_from_a_slow_worker() -> None:
    found = analyse(assembled(rows_of(dp=4, slow={(d, 2): 1.7 for d in range(4)})))
    assert found.pattern.name == "stage"
    assert found.pattern.stage == 2
    assert found.last_stage_share > 0.9


@given(
    st.lists(st.floats(1.0, 3.0), min_size=6, max_size=6),
    st.integers(3, 6),
    st.floats(0.1, 10.0),
)
@settings(max_examples=15, deadline=None)
def test_laws_of_random_slowdowns(factors: list[float], microbatches: int, scale: float) -> None:
    cells = {(index // 3, index % 3): factor for index, factor in enumerate(factors)}
    trace = assembled(rows_of(microbatches=microbatches, slow=cells))
    found = analyse(trace)
    replay = replay_of(trace)
    # A trace that has no gaps is replayed to the measured step.
    assert found.measured_over_replayed == pytest.approx(1, abs=1e-9)
    # Everything measured is S, by its definition; both engines say so.
    durations = np.zeros(len(replay.graph))
    durations[replay.place] = replay.work_s[0]
    played = reference.play(replay.graph.with_durations(durations)).makespan_s
    assert played == pytest.approx(replay.steps_s(replay.work_s[:1])[0], rel=1e-9)
    # Scaling all times scales T, and leaves S.
    rows = rows_of(microbatches=microbatches, slow=cells)
    for row in rows:
        row["start"], row["dur"] = float(row["start"]) * scale, float(row["dur"]) * scale
    bigger = assembled(rows)
    scaled = analyse(bigger)
    assert scaled.replayed_step_s == pytest.approx(found.replayed_step_s * scale, rel=1e-9)
    assert scaled.slowdown == pytest.approx(found.slowdown, rel=1e-9)


def test_unequal_microbatches_everywhere_are_sequence_lengths() -> None:
    lengths = np.random.default_rng(7).uniform(0.5, 1.6, size=(3, 2, 6))
    rows = rows_of(microbatches=6)
    for row in rows:
        if row["op"] in ("F", "B"):
            row["dur"] = float(row["dur"]) * float(lengths[int(row["step"]), int(row["dp"]), int(row["seq"])])
    # Passes now overlap unless they start later: spread them out; the replay drops the gaps again.
    for row in rows:
        row["start"] = float(row["start"]) * 2
    found = analyse(assembled(rows))
    assert found.pattern.name == "sequence lengths"


@pytest.mark.parametrize(
    ("name", "figures", "pattern"),
    [
        ("ST.csv", (2.172697, 1.178702, 0.031404, 1.219356, 1.019216), "stage"),
        ("AR.csv.gz", (46.336373, 1.973045, 1.001701, -0.001212, 1.006751), "worker"),
    ],
)
def test_published_analyses_are_met(name: str, figures: tuple[float, ...], pattern: str) -> None:
    """T, S, M_W, M_S and measured over replayed of github:ByteDance-Seed/StragglerAnalysis, and the speed."""
    path = shared(f"traces/straggler_trace_{name}")
    analyse(assembled(rows_of(dp=1, stages=2, microbatches=2, steps=1)))  # compiled, or loaded
    found = analyse(read_table(path))
    got = (
        found.replayed_step_s,
        found.slowdown,
        found.worker_share,
        found.last_stage_share,
        found.measured_over_replayed,
    )
    assert got == pytest.approx(figures, rel=1e-5, abs=1e-5)
    assert found.pattern.name == pattern


def test_sequence_lengths_are_found_in_the_measured_trace_that_has_them() -> None:
    found = analyse(read_table(shared("traces/straggler_trace_SE.csv.gz")))
    assert found.pattern.name == "sequence lengths"


@pytest.mark.parametrize(("name", "ideal_s"), [("ST.csv", 1.8433), ("AR.csv.gz", 23.485)])
def test_our_own_schedule_with_measured_operations_meets_the_measured_steps(
    name: str, ideal_s: float
) -> None:
    """1F1B in our own order with usual operation times: T_ideal to 1 %. Measured ones: the measured step
    to 2.5 %.
    """
    trace = read_table(shared(f"traces/straggler_trace_{name}"))
    replay = replay_of(trace)
    usual = {
        kind.code: float(ideal_work_s(replay)[trace.of_kind(kind.code)][0])
        for kind in KINDS
        if trace.of_kind(kind.code).any()
    }
    each = np.ones(trace.stages)
    times = StageTimes(
        forward_s=usual["F"] * each,
        backward_input_s=usual["B"] * each,
        backward_weight_s=0 * each,
        send_forward_s=usual["FS"] * each,
        send_backward_s=usual["BS"] * each,
        sync_s=sum(usual[code] for code in ("LN", "EM", "RS", "CL")) * each,
        optimizer_s=usual["OP"] * each,
    )
    step = step_template("1f1b", trace.stages, trace.microbatches).with_durations(times)
    assert fast.makespan(step) + usual["AG"] == pytest.approx(ideal_s, rel=0.01)
    measured = trace.measured_s
    assert replay.steps_s(replay.work_s) == pytest.approx(measured, rel=0.025)
