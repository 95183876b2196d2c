"""Scores of published runs by hand, the command, and the shared runs whole."""

import csv
import io
import json
from pathlib import Path

import pytest
from tangram_validate.published import report
from tangram_validate.published.predict import Prediction, predict_rows
from tangram_validate.published.reading import read_table
from tangram_validate.published.score import macro, score, spearman
from typer.testing import CliRunner

from tangram_sim.cli.main import app
from tangram_sim.errors import BadInputError
from tests.places import SHARED
from tests.unit.validation.published_rows import HWDB, predicted, row

RUNS = SHARED / "data" / "training_runs.csv"


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def test_parts_explain_the_step():
    """Passes, synchronisation, optimizer and idle time of the busiest stage add up to the step."""
    found = predicted(pp="4", nodes="4", gpus="32", gbs="64")
    parts = found.parts
    assert parts.pass_s + parts.sync_s + parts.optimizer_s + parts.idle_s == pytest.approx(found.step_s)
    assert parts.layer_passes == 16 * 12
    assert parts.gemm_s + parts.attention_s + parts.memory_s <= parts.pass_s * (1 + 1e-9)
    assert parts.idle_s > 0.1 * found.step_s  # 3 of 19 slots are bubble


def test_scores_by_hand():
    rows = [row(id=str(number), iter_time_s=str(seconds)) for number, seconds in enumerate((1.0, 2.0))]
    found = [predict_row for predict_row in predict_rows(rows, HWDB) if isinstance(predict_row, Prediction)]
    seconds = found[0].step_s
    errors = [seconds - 1, seconds / 2 - 1]
    got = score(found)
    assert got.n == 2 and got.bias == pytest.approx(sum(errors) / 2)
    assert got.worst_ape == pytest.approx(max(map(abs, errors)))
    assert got.mean_ape == pytest.approx(sum(map(abs, errors)) / 2)
    inside = [item.step_s_low <= item.run.measured.step_s <= item.step_s_high for item in found]
    assert got.interval_coverage == pytest.approx(sum(inside) / 2)
    assert got.rank_correlation is None and got.memory_n == 0


def test_every_source_weighs_the_same():
    small = [
        predict_row for predict_row in predict_rows([row()], HWDB) if isinstance(predict_row, Prediction)
    ]
    large = [
        predict_row
        for predict_row in predict_rows([row(iter_time_s="2")] * 9, HWDB)
        if isinstance(predict_row, Prediction)
    ]
    figures = macro([score(small), score(large)])
    assert figures.n == 10
    assert figures.median_ape == pytest.approx(
        ((score(small).median_ape or 0) + (score(large).median_ape or 0)) / 2
    )


def test_spearman_handles_ties_and_constants():
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(
        0.948683, abs=1e-6
    )  # ties at their mean rank
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_a_sweep_needs_five_rows():
    rows = [row(id=str(k), gbs=str(4 * k), iter_time_s=str(k)) for k in range(1, 6)]
    assert report.document(predict_rows(rows[:4], HWDB))["overall"]["rank_correlation"] is None
    assert report.document(predict_rows(rows, HWDB))["overall"]["rank_correlation"] == pytest.approx(1)


def test_the_command_reports_rows_and_reasons(tmp_path: Path):
    """Bad rows are listed with reasons, the rest predicted, exit 0; the JSON has the documented keys."""
    path = write(tmp_path / "runs.csv", [row(), row(id="b", dp="3"), row(id="c", gpu="H900")])
    path.write_text(path.read_text() + "too,short\n")
    out = tmp_path / "predictions.csv"
    result = CliRunner().invoke(app, ["validate", "published", str(path), "--json", "-o", str(out)])
    assert result.exit_code == 0, result.output
    data = json.loads(result.output)
    figures = {
        *("n", "median_ape", "mean_ape", "p90_ape", "worst_ape", "bias", "rank_correlation"),
        *("memory_n", "memory_median_ape", "interval_coverage"),
    }
    assert (
        set(data["overall"]) == figures == set(data["by_gpu"]["A100-80GB"]) == set(data["by_source"]["paper"])
    )
    assert data["overall"]["n"] == 1
    assert [item["id"] for item in data["unpredicted"]] == ["b", "c", "too"]
    assert all(item["reason"] for item in data["unpredicted"])
    (line,) = list(csv.DictReader(io.StringIO(out.read_text())))
    assert line["id"] == "a-1" and float(line["predicted_s"]) > 0 and "optimizer=adamw" in line["assumed"]
    table = CliRunner().invoke(app, ["validate", "published", str(path)])
    assert table.exit_code == 0 and "4 rows: 1 predicted" in table.output


@pytest.mark.parametrize("text", ["", "name,price\ncoffee,3\n", "\x00\x01", '{"a": 1}'])
def test_a_file_that_is_no_such_table_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(BadInputError, match=r"runs\.csv"):
        read_table(path)


@pytest.mark.slow
def test_all_shared_runs_are_accounted_for():
    """Every row is predicted or has a reason, and none for a reason that is ours."""
    if not RUNS.exists():
        pytest.skip("the shared measurements lie beside the repository only while it is being developed")
    rows = read_table(RUNS)
    results = predict_rows(rows, HWDB)
    data = report.document(results)
    assert data["predicted"] + len(data["unpredicted"]) == len(rows) == 2034
    good = {line["id"] for line in rows if line["tier"] in "AB"}
    assert not [item for item in data["unpredicted"] if item["id"] in good]
