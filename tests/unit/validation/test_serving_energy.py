"""Measured energy rows: read with their usual meaning, scored, and fitted to."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tangram_validate.serving.power_fit import PRIORS, fit, left_out, main, observed
from tangram_validate.serving.predict import predict
from tangram_validate.serving.reading import read_rows_as_runs, read_runs
from tangram_validate.serving.runs import ENERGY, JOULES, WATTS, RefusedRun, ServedRun
from tangram_validate.serving.stand_ins import stand_in

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.calibration import CalibrationTable
from tests.commands import tangram as run
from tests.places import SHARED

TABLE = SHARED / "data" / "serving" / "energy_serving.csv"
HWDB = Hwdb.load()
ROW = {
    **{"task": "gpqa", "model": "Qwen/Qwen3-14B", "params_b": "14.0", "active_b": "14.0"},
    **{"precision": "bfloat16", "gpu": "H100", "gpus": "2", "avg_power_w_all_gpus": "1000"},
    **{"tp": "1", "ep": "1", "dp": "1", "max_num_seqs": "16", "avg_batch": "16", "avg_output_len": "5000"},
    **{"median_itl_ms": "12", "output_tok_s": "1250", "energy_per_token_j": "0.8", "avg_input_len": ""},
}


def read(**changes: str) -> ServedRun | RefusedRun:
    return read_rows_as_runs([ROW | changes], HWDB)[0]


def test_a_row_is_read_with_its_gpus_and_seats() -> None:
    found = read()
    assert isinstance(found, ServedRun)
    assert (found.load, found.tp, found.attention_dp, found.clients) == (ENERGY, 2, 1, 16.0)
    assert found.value(WATTS) == 1000.0
    assert found.value(JOULES) == 0.8
    assert len(found.assumed) == 1  # the length of prompts


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-Coder-480B-A35B-Instruct",
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        "google/gemma-9-17b-it",
        "Qwen/Qwen3-VL-32B-Instruct",
    ],
)
def test_a_model_that_is_not_shipped_is_read_as_one_of_its_size(name: str) -> None:
    found = read(model=name, params_b="", active_b="")
    assert isinstance(found, ServedRun)


def test_a_stand_in_has_the_size_its_name_tells() -> None:
    for name, billions in (("some/Thing-40B-A4B", 40.0), ("x/dense-21b-chat", 21.0)):
        assert stand_in(name).parameters == pytest.approx(billions * 1e9, rel=0.1)
    assert stand_in("x/y-30B", 40.0, 4.0).active_parameters < 8e9


def test_a_name_without_size_or_family_is_refused() -> None:
    with pytest.raises(TangramError, match="unknown model"):
        stand_in("nobody/knows")


def test_a_tuned_copy_is_the_shipped_model() -> None:
    found = read(model="Qwen/Qwen3-30B-A3B-Thinking-2507")
    assert isinstance(found, ServedRun)
    assert found.model == load_model("qwen3-30b-a3b")


def test_a_row_without_seats_is_refused_by_name() -> None:
    found = read(avg_batch="", max_num_seqs="")
    assert isinstance(found, RefusedRun)
    assert "how many requests" in found.reason


def test_joules_are_scored_by_the_command(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(",".join(ROW) + "\n" + ",".join(ROW.values()) + "\n")
    answer = json.loads(run("serve", "validate", str(table), "--json").out)
    assert answer["rows_used"] == 1
    assert set(answer["metrics"]) == {
        *("tpot", "output_tok_s", "watts"),
        *("joules_per_token", "joules_per_token_at_measured_speed"),
    }
    watts, joules = (answer["metrics"][name]["bias"] for name in ("watts", "joules_per_token"))
    speed = answer["metrics"]["output_tok_s"]["bias"]
    assert 1 + joules == pytest.approx((1 + watts) / (1 + speed) * (1000 / 1250 / 0.8))


def test_shares_that_made_the_watts_are_found_again() -> None:
    runs = [
        item
        for seats in ("1", "4", "16", "64", "256")
        for output in ("200", "5000")
        if isinstance(item := read(avg_batch=seats, avg_output_len=output, max_num_seqs=seats), ServedRun)
    ]
    (seen,) = observed(runs, HWDB).values()
    made = np.array([0.3, 0.9, 0.25])
    share = seen.rest + seen.work @ made
    again = fit(type(seen)(seen.runs, share, seen.work, seen.rest))
    assert again == pytest.approx(made, abs=0.1)
    assert len(PRIORS) == seen.work.shape[1]


@pytest.mark.slow
@pytest.mark.skipif(not TABLE.is_file(), reason="the measured energy rows lie in ../shared")
def test_watts_of_models_left_out_are_nearer_than_nameplate() -> None:
    runs = [read_run for read_run in read_runs(TABLE, HWDB) if isinstance(read_run, ServedRun)]
    assert len(runs) == 440
    for part in observed(runs, HWDB).values():
        predicted, measured = left_out(part)
        assert np.median(np.abs(predicted / measured - 1)) < 0.5 * np.median(np.abs(1 / measured - 1))


@pytest.mark.slow
@pytest.mark.skipif(not TABLE.is_file(), reason="the measured runs lie in ../shared")
def test_half_of_the_power_slows_prompts_and_not_decodes_as_published() -> None:
    """Splitwise's H100 at 350 W: prompts take 1.30 times as long, decodes as long as before."""
    table = CalibrationTable.load(HWDB)
    runs = [
        read_run
        for read_run in read_runs(TABLE.parent / "measurements.csv", HWDB)
        if isinstance(read_run, ServedRun) and read_run.power_cap_w
    ]
    assert len(runs) == 76
    capped, _ = predict(runs, HWDB, table)
    free, _ = predict([replace(served_run, power_cap_w=0.0) for served_run in runs], HWDB, table)
    for metric, low, high in (("ttft", 1.1, 1.4), ("tpot", 0.99, 1.03)):
        longer = [
            predicted_run.predicted / other.predicted
            for predicted_run, other in zip(capped, free, strict=True)
            if predicted_run.metric == metric
        ]
        assert low < np.median(longer) < high


def test_a_fit_without_a_table_says_what_it_wants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "TABLE" in capsys.readouterr().err
    assert main([str(tmp_path / "none.csv")]) == 2
    assert "none.csv: cannot be read" in capsys.readouterr().err
