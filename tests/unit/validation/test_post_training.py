"""Measured post-training runs: reading rows as people write them, scores, calibration on a log."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from tangram_validate.post_training.calibrate import LEAST_SIGMA, calibrate
from tangram_validate.post_training.logs import read_logs
from tangram_validate.post_training.predict import Prediction, predict_rows
from tangram_validate.post_training.reading import RlRun, Unpredicted, read_run
from tangram_validate.post_training.report import document
from tangram_validate.post_training.syncs import score_syncs

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.training.step.intervals import Z90
from tests.commands import tangram

HWDB = Hwdb.load()
# Llama-3.1-8B on 8 H100, NeMo-RL v0.3.0: NVIDIA-NeMo/RL issue 959.
ROW = {
    **{"run_id": "a", "source": "nemo", "framework": "NeMo-RL", "mode": "colocated_sync", "gpus": "8"},
    **{"gpu": "H100-SXM5-80GB", "model": "Llama-3.1-8B-Instruct", "sequences_per_step": "2048"},
    **{"prompts_per_step": "64", "samples_per_prompt": "32", "train_batch_sequences": "512"},
    **{"max_total": "4096", "mean_response": "795", "train_pp": "2", "train_tp": "1", "step_s": "112"},
    **{"recompute": "none", "gen_s": "58", "logprob_all_s": "18", "update_actor_s": "28", "score": "step"},
    **{"mean_prompt": "", "max_response": "", "gen_tp": "1", "gen_memory_utilization": "0.6"},
}


def predicted(**cells: str) -> Prediction | Unpredicted:
    return predict_rows([ROW | cells], HWDB)[0]


def test_a_published_run_and_its_phases_are_met_within_a_quarter() -> None:
    found = predicted()
    assert isinstance(found, Prediction) and found.error is not None
    assert abs(found.error) < 0.25 and found.inside
    assert all(abs(found.phase_error(column)) < 0.25 for column in found.run.phases_s)


def test_blank_cells_get_their_usual_meaning_and_a_wider_interval() -> None:
    stated, blank = predicted(), predicted(gen_tp="", gen_memory_utilization="", mean_response="")
    assert isinstance(stated, Prediction) and isinstance(blank, Prediction)
    assert blank.high_s / blank.low_s > stated.high_s / stated.low_s
    assert {item.split("=")[0] for item in blank.run.assumed} >= {"gen_tp", "mean_response"}


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": ""}, "gpu is not stated"),
        ({"gpu": "abacus"}, "unknown GPU"),
        ({"model": "nobody-knows"}, "params_b"),
        ({"model": "nobody-knows", "params_b": "0"}, "params_b"),
        ({"mean_response": "", "max_total": ""}, "how much is generated"),
        ({"gpus": "eight"}, "gpus is 'eight'"),
        ({"sequences_per_step": "", "prompts_per_step": "", "samples_per_prompt": ""}, "sequences_per_step"),
    ],
)
def test_a_row_without_a_prediction_says_why(cells: dict[str, str], reason: str) -> None:
    found = predicted(**cells)
    assert isinstance(found, Unpredicted) and reason in found.reason


@pytest.mark.parametrize(
    "name",
    ["meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B", "Qwen2.5-Math-7B", "gemma-2-2b-it", "DeepSeek-V3"],
)
def test_models_are_known_by_the_names_that_sources_use(name: str) -> None:
    run = read_run(ROW | {"model": name}, 1, HWDB)
    assert isinstance(run, RlRun) and run.stand_in == 1.0


def test_an_unknown_model_of_stated_size_is_stood_in_for() -> None:
    run = read_run(ROW | {"model": "MyLab-9B", "params_b": "9"}, 1, HWDB)
    assert isinstance(run, RlRun) and any(item.startswith("model=") for item in run.assumed)


@pytest.mark.parametrize(
    ("mode", "kind", "placement"),
    [
        ("colocated_sync", "sync", "colocated"),
        ("split_sync", "sync", "split"),
        ("one_step_off", "one-step-off", "split"),
        ("n_step_off", "async", "split"),
        ("fully_async", "async", "split"),
        ("stream_off_policy", "async", "split"),
    ],
)
def test_modes_in_the_words_of_sources(mode: str, kind: str, placement: str) -> None:
    cells = {"mode": mode, "gpus_train": "4", "gpus_rollout": "4", "staleness_fraction": "0.5"}
    run = read_run(ROW | (cells if mode != "one_step_off" else {**cells, "staleness_fraction": ""}), 1, HWDB)
    assert isinstance(run, RlRun)
    assert (run.plan.mode.kind, run.plan.placement) == (kind, placement)


@pytest.mark.parametrize(
    ("mode", "stated", "kind", "placement"),
    [
        ("sync", "colocated", "sync", "colocated"),
        ("colocated_sync", "split", "sync", "split"),
        ("", "split", "sync", "split"),
        ("", "", "sync", "colocated"),
        ("fully_async", "split", "async", "split"),
    ],
)
def test_a_stated_placement_decides_first(mode: str, stated: str, kind: str, placement: str) -> None:
    run = read_run(ROW | {"mode": mode, "placement": stated}, 1, HWDB)
    assert isinstance(run, RlRun)
    assert (run.plan.mode.kind, run.plan.placement) == (kind, placement)


def test_a_row_of_the_wrong_width_is_not_predicted(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    write(path, [ROW])
    path.write_text(path.read_text().rstrip() + ",1\n")
    answer = json.loads(tangram("rl", "validate", path, "--json").out)
    assert not answer["predictions"] and "line 2 has" in answer["unpredicted"][0]["reason"]


def test_scores_have_the_keys_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    write(path, [ROW, ROW | {"run_id": "b", "gpu": ""}, ROW | {"run_id": "c", "score": "no"}])
    answer = json.loads(tangram("rl", "validate", path, "--json").out)
    assert set(answer["overall"]) == {"median_ape", "p90_ape", "bias", "interval_coverage", "n"}
    assert answer["overall"]["n"] == 1 and set(answer["by_source"]) == {"nemo"}
    assert set(answer["by_phase"]) == {"gen_s", "logprob_all_s", "update_actor_s"}
    assert [item["run_id"] for item in answer["unpredicted"]] == ["b"]
    assert answer["floor"]["n"] == 1


def test_modes_on_the_same_gpus_are_held_to_their_measured_ratio() -> None:
    split = {"mode": "one_step_off", "gpus_train": "4", "gpus_rollout": "4", "staleness_versions": "1"}
    rows = [
        ROW | {"step_s": "100", "gen_s": ""},
        ROW | split | {"run_id": "b", "step_s": "125", "gen_s": ""},
        ROW | {"run_id": "c", "gpus": "16"},
    ]
    found = document(predict_rows(rows, HWDB), "")
    (pair,) = found.ratios
    assert (pair.run_id, pair.other, pair.measured) == ("a", "b", pytest.approx(0.8))
    assert pair.predicted == pytest.approx(found.predictions[0].step_s / found.predictions[1].step_s)
    assert found.orders.n == 1
    assert found.orders.right_order == float(pair.predicted < 1)
    assert found.orders.median_ape == pytest.approx(abs(pair.predicted / 0.8 - 1))
    rows = [row | {"total_h_100": hours} for row, hours in zip(rows, ("2", "1", "1"), strict=True)]
    assert document(predict_rows(rows, HWDB), "").ratios[0].measured == 2.0


def test_a_source_left_out_is_predicted_from_the_others() -> None:
    rows = [
        ROW,
        ROW | {"run_id": "b", "source": "other", "step_s": "150"},
        ROW | {"run_id": "c", "source": "third"},
    ]
    found = document(predict_rows(rows, HWDB, "source"), "source")
    steps = {prediction.run_id: prediction.step_s for prediction in found.predictions}
    assert steps["b"] < steps["a"]  # what was slow is not in its own fit
    assert found.overall.n == 3


def write(path: Path, rows: list[dict[str, str]]) -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(ROW), restval="")
    writer.writeheader()
    writer.writerows([{key: row.get(key, "") for key in ROW} for row in rows])
    path.write_text(out.getvalue())


def log_file(path: Path, steps: int = 120) -> Path:
    """A log whose generation follows the lengths and whose update stands still, with 1 % of noise."""
    rng = np.random.default_rng(0)
    mean = np.linspace(300, 200, steps) * rng.normal(1, 0.03, steps)
    lines = ["run_id,step,gen_s,update_actor_s,mean_prompt,mean_response,max_response_seen"]
    for step, tokens in enumerate(mean.tolist()):
        gen, update = (5 + 0.1 * tokens) * rng.normal(1, 0.01), 20 * rng.normal(1, 0.01)
        lines.append(f"a,{step},{gen:.3f},{update:.3f},100,{tokens:.2f},{3 * tokens:.0f}")
    path.write_text("\n".join(lines))
    return path


def test_a_log_tells_which_phases_follow_the_lengths(tmp_path: Path) -> None:
    log = read_logs(log_file(tmp_path / "log.csv"))[0]
    found = calibrate(log, None, HWDB).document
    assert found.padded == {"gen_s": False, "update_actor_s": True}
    assert found.later["step_s"].median_ape < 0.015
    assert found.repeated is not None and found.later["step_s"].median_ape < found.repeated.median_ape


def test_calibrated_overheads_meet_the_log_they_come_from(tmp_path: Path) -> None:
    setup = tmp_path / "runs.csv"
    write(setup, [ROW])
    log = log_file(tmp_path / "log.csv")
    out = tmp_path / "overlay"
    assert not tangram("rl", "calibrate", log, "--setup", setup, "-o", out).code
    row = ROW | {"mean_prompt": "100", "mean_response": "276"}
    found = predict_rows([row], Hwdb.load([out]))[0]
    assert isinstance(found, Prediction)
    assert found.phases_s["update"] == pytest.approx(20, rel=0.1)
    assert found.phases_s["generation"] == pytest.approx(5 + 0.1 * 276, rel=0.15)


def test_a_file_that_is_no_log_says_what_one_holds(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("a,b\n1,2\n")
    found = tangram("rl", "calibrate", path)
    assert found.code == 2 and "max_response_seen" in found.err


def changed_log(path: Path, change: dict[int, str], column: str = "gen_s") -> Path:
    """A log with other text in some rows (0 is the first step) of a column."""
    with log_file(path).open() as lines:
        rows = list(csv.DictReader(lines))
    for number, text in change.items():
        rows[number][column] = text
    with path.open("w") as lines:
        writer = csv.DictWriter(lines, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_cells_of_no_seconds_leave_the_law_of_a_phase_as_it_is(tmp_path: Path) -> None:
    found = calibrate(read_logs(changed_log(tmp_path / "a.csv", {7: "0.0"}))[0], None, HWDB).document
    assert not found.padded["gen_s"] and found.later["gen_s"].median_ape < 0.03
    whole = changed_log(tmp_path / "b.csv", dict.fromkeys(range(50), "0"), "update_actor_s")
    assert calibrate(read_logs(whole)[0], None, HWDB).document.padded["update_actor_s"]


def test_a_phase_that_starts_after_the_fitted_steps_is_left_out(tmp_path: Path) -> None:
    log = read_logs(changed_log(tmp_path / "a.csv", dict.fromkeys(range(50), "")))[0]
    found = calibrate(log, None, HWDB).document
    assert set(found.padded) == {"update_actor_s"} and set(found.later) == {"update_actor_s", "step_s"}


@pytest.mark.parametrize(
    ("text", "told"), [("fast", "line 9: gen_s is 'fast'"), ("9" * 200_000, "not CSV: field larger")]
)
def test_cells_that_are_no_numbers_name_file_and_line(tmp_path: Path, text: str, told: str) -> None:
    path = changed_log(tmp_path / "log.csv", {7: text})
    with pytest.raises(BadInputError, match=rf"log\.csv.*{told}"):
        read_logs(path)


def test_waiting_of_split_runs_is_not_taken_for_generation(tmp_path: Path) -> None:
    log = read_logs(log_file(tmp_path / "log.csv"))[0]
    split = calibrate(log, ROW | {"placement": "split"}, HWDB).document
    assert set(split.factors) == {"update_actor_s"}
    assert {row.parameter for row in split.rows} == {"update_scale", "sigma"}


def test_the_width_of_an_overlay_is_that_of_the_later_steps(tmp_path: Path) -> None:
    log = read_logs(log_file(tmp_path / "log.csv"))[0]
    late = read_logs(changed_log(tmp_path / "b.csv", dict.fromkeys(range(50, 120), "60")))[0]
    for run_log in (log, late):
        found = calibrate(run_log, ROW, HWDB).document
        (sigma,) = (row.value for row in found.rows if row.parameter == "sigma")
        assert sigma == max(found.later["step_s"].p90_ape / Z90, LEAST_SIGMA)
    assert sigma > 0.1
    whole = calibrate(log, ROW, HWDB, fitted=120).document
    assert whole.rows and all(row.parameter != "sigma" for row in whole.rows)


def test_weight_syncs_are_held_to_their_measurement_and_bound(tmp_path: Path) -> None:
    row = {"row_id": "a", "source": "s", "gpu": "H100", "model": "Qwen2.5-7B", "precision": "bf16"}
    row |= {"train_gpus": "8", "method": "full broadcast, NCCL", "seconds_low": "3", "seconds_high": "4"}
    slow = row | {"row_id": "b", "seconds_low": "60", "seconds_high": "60"}
    sharded = row | {"row_id": "c", "framework": "verl, FSDP"}
    unknown = row | {"row_id": "d", "method": "pigeons"}
    found = score_syncs([row, slow, sharded, unknown], HWDB)
    assert [sync.within_factor for sync in found.syncs][:2] == [True, False]
    assert found.syncs[2].seconds > found.syncs[0].seconds > found.syncs[0].bound_s
    assert found.within_factor == pytest.approx(sum(sync.within_factor for sync in found.syncs) / 3)
    assert found.bound_below == 1.0
    assert [rl_unpredicted.run_id for rl_unpredicted in found.unpredicted] == [
        "d"
    ] and "pigeons" in found.unpredicted[0].reason
    runs, syncs = tmp_path / "runs.csv", tmp_path / "syncs.csv"
    for path, rows in ((runs, [ROW]), (syncs, [row, slow])):
        with path.open("w") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    assert "50 % within a factor of 1.5" in tangram("rl", "validate", runs, "--syncs", syncs).out
