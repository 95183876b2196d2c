"""The validation page of serving shows the figures that its command wrote, and no others."""

import json
from dataclasses import replace

import pytest
from tangram_validate.serving.predict import PredictedRun

from benchmarks.serving_accuracy import BEGIN, END, FIGURES, LINES, PAGE, RATIOS, ratios, table
from tests.unit.validation.test_serving_bursts import read


def test_the_page_s_table_is_that_of_the_figures() -> None:
    figures = json.loads(FIGURES.read_text("utf-8"))
    assert all(len(part["lines"]) == len(LINES) + len(RATIOS) for part in figures.values())
    shown = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == table(figures).strip()


def test_a_ratio_of_two_kinds_compares_what_was_measured_alike() -> None:
    """Measured 2 and 1, predicted 3 and 1: half too much. Other lengths on the second kind say nothing."""
    (run,) = read({"engine_version": "0.15.0"})
    fast, slow = (replace(run, load="offline", version="0.15.0", gpu=gpu) for gpu in ("fast", "slow"))
    rows = [
        PredictedRun(served_run, "output_tok_s", measured, predicted, predicted, predicted)
        for served_run, measured, predicted in (
            (fast, 2.0, 3.0),
            (slow, 1.0, 1.0),
            (replace(slow, isl=9.0), 5.0, 5.0),
        )
    ]
    found = ratios(rows, "fast", "slow")
    assert found["rows"] == 1
    assert found["bias"] == pytest.approx(0.5)
    assert ratios(rows[:1], "fast", "slow") == {"rows": 0}
