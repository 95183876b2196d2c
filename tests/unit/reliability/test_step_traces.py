"""Step traces that cannot be replayed are refused by name, or steps are left out and counted."""

from pathlib import Path

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.reliability.traces.tables import read_table

from .traces import assembled, rows_of, written


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = read_table(written(rows_of(), tmp_path / "t.csv"))
    assert (trace.dp, trace.stages, trace.microbatches, trace.steps) == (2, 3, 4, (0, 1, 2))
    assert trace.omissions == ()


def test_steps_that_miss_operations_are_left_out_and_counted() -> None:
    rows = rows_of()
    rows.remove(next(row for row in rows if row["step"] == 1 and row["op"] == "B"))
    trace = assembled(rows)
    assert trace.steps == (0, 2)
    assert [(o.reason, o.steps) for o in trace.omissions] == [("operations are missing or surplus", (1,))]


def test_clocks_that_run_backward_cost_their_step() -> None:
    rows = rows_of()
    next(row for row in rows if row["step"] == 2)["start"] = -1.0
    trace = assembled(rows)
    assert trace.steps == (0, 1)
    assert "backward" in trace.omissions[0].reason


def test_times_that_are_no_numbers_cost_their_step_and_are_not_called_a_clocks_fault() -> None:
    rows = rows_of()
    next(row for row in rows if row["step"] == 1)["dur"] = float("nan")
    trace = assembled(rows)
    assert trace.steps == (0, 2)
    assert [(o.reason, o.steps) for o in trace.omissions] == [
        ("starts or durations are no finite numbers", (1,))
    ]


def test_steps_in_which_nothing_takes_time_are_left_out_and_a_trace_of_them_is_refused() -> None:
    rows = rows_of()
    for row in rows:
        row["dur"] = 0.0 if row["step"] == 0 else row["dur"]
    assert assembled(rows).steps == (1, 2)
    with pytest.raises(BadInputError, match="no operation takes any time in 1 step"):
        assembled([row for row in rows if row["step"] == 0])


def test_overlapping_passes_cost_their_step_and_a_trace_of_nothing_else_is_refused() -> None:
    rows = rows_of()
    for row in rows:
        if row["step"] == 0 and row["op"] == "F":
            row["dur"] = float(row["dur"]) * 3
    assert assembled(rows).steps == (1, 2)
    for row in rows:
        if row["op"] == "F":
            row["dur"] = 0.05
    with pytest.raises(BadInputError, match="overlap"):
        assembled(rows)


def test_an_operation_there_twice_costs_its_step() -> None:
    rows = rows_of()
    rows.append(dict(rows[-1]))
    assert assembled(rows).steps == (0, 1)


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        (lambda row: row["dp"] == 0, r"no operation of 3 of 6 ranks: \(dp 0, stage 0\)"),
        (lambda row: row["dp"] == 1 and row["stage"] == 2, r"1 of 6 ranks: \(dp 1, stage 2\)"),
        (lambda row: row["op"] == "B", "must run both once"),
        (
            lambda row: row["op"] == "OP" and row["dp"] == 1 and row["stage"] == 0,
            "dp 1 runs other operations",
        ),
        (lambda row: True, "no operation in it"),
    ],
)
def test_missing_ranks_and_passes_are_named(drop, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        assembled([row for row in rows_of() if not drop(row)])


@pytest.mark.parametrize("column", ["dp", "stage", "seq"])
def test_ranks_and_passes_count_from_0(column: str) -> None:
    rows = rows_of()
    rows[-1][column] = -1
    with pytest.raises(BadInputError, match="count from 0"):
        assembled(rows)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0,0,0,XX,0,1,1", "line 2: unknown operation 'XX'"),
        ("0,0,0,F,zero,1,1", "line 2 is"),
        ("0,0", "line 2 is"),
        ("0,0,0,F,0,nan,1", "line 2 is"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("step,dp,stage,op,seq,start_us,dur_us\n" + line + "\n")
    with pytest.raises(BadInputError, match=message):
        read_table(path)


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInputError, match="cannot be read"):
        read_table(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(BadInputError, match="no column step, dp"):
        read_table(path)
