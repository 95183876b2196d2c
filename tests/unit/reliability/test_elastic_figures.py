"""`python -m benchmarks.elastic`: figures computed from their inputs, never from their ids or values."""

import csv
import json
from pathlib import Path

import pytest

from benchmarks.elastic.__main__ import main, report
from benchmarks.elastic.figures import (
    COLUMNS,
    Answer,
    Data,
    Figure,
    RefusedError,
    error_of,
    read_figures,
    within,
)
from benchmarks.elastic.groups import compute

from .traces import rows_of, shared, written


def row(**given: str) -> dict[str, str]:
    return {**dict.fromkeys(COLUMNS, ""), **given}


def table(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_rows_are_computed_and_others_refused_with_a_reason(tmp_path: Path, capsys) -> None:
    written(rows_of(slow={(0, 1): 2.0}), tmp_path / "t.csv")
    rows = [
        row(id="a", group="what-if", metric="M_W", value="0.5", inputs="t.csv", tolerance="1"),
        row(id="b", group="what-if", metric="S of stage 9 alone", value="1", inputs="t.csv"),
        row(id="c", group="what-if", metric="S", value="1", inputs="absent.csv"),
        row(id="d", group="nobody's", metric="S", value="1"),
    ]
    assert main([str(table(tmp_path / "f.csv", rows)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["id"] for r in found["rows"]] == ["a"]
    assert found["rows"][0]["within"] is True
    assert [r["id"] for r in found["refused"]] == ["b", "c", "d"]


def test_answers_do_not_depend_on_ids_and_values(tmp_path: Path, capsys) -> None:
    written(rows_of(slow={(0, 1): 2.0}), tmp_path / "t.csv")
    rows = [
        row(id=i, group="what-if", metric="S", value=v, inputs="t.csv") for i, v in (("E1", "2"), ("E2", "9"))
    ]
    main([str(table(tmp_path / "f.csv", rows)), "--json"])
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert first["predicted"] == second["predicted"]


@pytest.mark.parametrize(
    ("value", "tolerance", "answer", "verdict"),
    [
        ("2.0", "1e-3", 2.001, True),
        ("2000", "1e-3", 2001.9, True),
        ("0.5", "1e-3", 0.502, False),
        ("1.16", "0.06", 1.23, False),
        ("10", "5 %", 10.4, True),
        ("10", "5 % where the interval is long", 10.6, False),
        ("37.4", "shape only", 12.0, None),
        ("594 x4, 758", "equal", "594 x4, 758", True),
    ],
)
def test_tolerances_are_read_as_meant(value: str, tolerance: str, answer: float | str, verdict) -> None:
    figure = Figure("", "", "", "", value, "", "", tolerance)
    assert within(figure, Answer(answer)) is verdict
    assert (error_of(figure, Answer(answer)) is None) == isinstance(answer, str)


def test_the_straggler_rows_of_the_shared_table_are_met() -> None:
    groups = {"what-if", "stage imbalance", "injected slow worker"}
    table = shared("elastic_figures.csv")
    figures = [figure for figure in read_figures(table) if figure.group in groups]
    found = report(figures, Data((table.parent,)))
    assert len(found["rows"]) == len(figures) >= 40
    assert [r["id"] for r in found["rows"] if r["within"] is not True] == []


def test_the_verdict_on_a_restart_hangs_on_its_interval() -> None:
    """5 % where an interval holds 40 restarts of 76 s, the order elsewhere; 1e-3 % would not be met."""
    groups = {"every_1h": True, "every_10m": None}
    table = shared("elastic_figures.csv")
    told = "5 % where the interval is >= 40 restarts, else order only (steps run on during a restart)"
    for trace, verdict in groups.items():
        figure = Figure(
            "",
            "failure frequency",
            f"BERT-large, 30 nodes, one lost every {trace.removeprefix('every_')}, down to 16",
            "restart",
            "248",
            "",
            f"policies/oobleck_*.csv, traces/node_events_oobleck.csv {trace}",
            told,
        )
        assert within(figure, compute(figure, Data((table.parent,)))) is verdict


def test_state_that_moves_is_priced_for_other_sizes_than_the_shown_ones() -> None:
    def seconds(setting: str) -> float:
        figure = Figure("", "state migration", setting, "seconds", "", "s", "", "25 %")
        return float(compute(figure, Data(())).value)

    assert seconds("resize_whole: tenplex: 8->16 GPUs GPT-3 2.7B tenplex") > seconds(
        "resize_whole: tenplex: 8->16 GPUs GPT-3 XL tenplex"
    )
    assert seconds("resize_whole: tenplex: 8->12 deepspeed") > seconds(
        "resize_whole: tenplex: 16->8 deepspeed"
    )
    per_step = [seconds(f"failure_recovery: checkpoint, {n} steps lost: 4 of 16 GPUs") for n in (50, 60, 70)]
    assert per_step[0] < per_step[1] < per_step[2]
    with pytest.raises(RefusedError, match="whole nodes"):
        seconds("resize_whole: tenplex: 8->10 deepspeed")
