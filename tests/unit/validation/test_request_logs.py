"""Logs of requests in `serve validate`: grouped by setup, played, scored; what cannot be read is refused."""

import csv
from pathlib import Path

import pytest
from tangram_validate.serving import report
from tangram_validate.serving.reading import read_runs
from tangram_validate.serving.runs import LOG, RefusedRun, ServedRun

from tangram_sim.datafiles import shipped
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import CalibrationTable
from tests.places import SHARED

LOGS = SHARED / "data" / "serving" / "vllm_requests.csv"
HEADER = "gpu,model,tp,vllm,max_num_seqs,arrival_s,input_toks,output_toks,ttft_ms,tpot_ms,e2e_ms\n"


def log(path: Path, rows: list[str]) -> Path:
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return path


def test_requests_of_a_setup_are_one_run_and_are_played(tmp_path: Path) -> None:
    rows = [f"H100,llama3-8b,1,0.19.0,64,{k * 0.1},500,40,30,9,390" for k in range(50)]
    rows += [f"A100-SXM4-80GB,llama3-8b,1,0.19.0,64,{k * 0.1},500,40,50,16,680" for k in range(50)]
    read = read_runs(log(tmp_path / "log.csv", rows), Hwdb.load(()))
    assert [item.load for item in read if isinstance(item, ServedRun)] == [LOG, LOG]
    found, refused = report.predictions(read, Hwdb.load(()))
    answer = report.document(read, found, refused)
    assert (answer["rows"], answer["rows_used"], refused) == (100, 100, [])
    by_gpu = {
        predicted_run.run.gpu: predicted_run.predicted
        for predicted_run in found
        if predicted_run.metric == "tpot"
    }
    assert by_gpu["A100-SXM4-80GB"] > by_gpu["H100-SXM5-80GB"]
    for predicted_run in found:
        assert predicted_run.measured == pytest.approx(predicted_run.run.value(predicted_run.metric))
        if predicted_run.metric.endswith("_p99"):
            mean = next(
                other.predicted
                for other in found
                if other.run is predicted_run.run
                and other.metric == predicted_run.metric.removesuffix("_p99")
            )
            assert predicted_run.predicted >= mean * (1 - 1e-9)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("H100,llama3-8b,1,0.19.0,64,0,0,40,30,9,390", "no tokens in or out"),
        ("H100,llama3-8b,1,0.19.0,64,-3,500,40,30,9,390", "zero or more"),
        ("H100,llama3-8b,1,0.19.0,64,soon,500,40,30,9,390", "no number"),
        ("H100,nobody-knows-13b,1,0.19.0,64,0,500,40,30,9,390", "unknown model"),
    ],
)
def test_a_log_with_holes_is_refused_in_words(row: str, words: str, tmp_path: Path) -> None:
    (found,) = read_runs(log(tmp_path / "log.csv", [row]), Hwdb.load(()))
    assert isinstance(found, RefusedRun)
    assert words in found.reason


@pytest.mark.skipif(not LOGS.exists(), reason="the shared facts are not beside this checkout")
def test_the_shared_logs_are_read_whole_and_a_dense_model_is_near() -> None:
    """vLLM 0.19 on an RTX PRO 6000, whose kernels were not measured here."""
    read = read_runs(LOGS, Hwdb.load(()))
    found, refused = report.predictions(read, Hwdb.load(()))
    with LOGS.open() as file:
        assert report.document(read, found, refused)["rows_used"] == sum(1 for _ in csv.DictReader(file))
    dense = {
        predicted_run.metric: predicted_run
        for predicted_run in found
        if predicted_run.run.model.name == "llama3-8b"
    }
    assert dense["tpot"].low <= dense["tpot"].measured <= dense["tpot"].high


def test_a_kind_of_gpu_without_runs_is_predicted_less_surely() -> None:
    """By the factors found with kinds left out, where those are above what any new source is wider by."""
    table = CalibrationTable.load(Hwdb.load(()))
    seen, unseen = (table.fit("vllm", gpu=gpu).residuals for gpu in ("H100-SXM5-80GB", "MI300X"))
    with (shipped("hwdb") / "serving" / "calibration.csv").open() as file:
        rows = {
            row["parameter"]: row for row in csv.DictReader(file) if row["engine"] == row["subject"] == "*"
        }
    for metric in ("tpot", "ttft", "output_tok_s"):
        kind, source = (float(rows[f"{novelty}_{metric}"]["value"]) for novelty in ("unseen", "new_source"))
        assert kind > source > 1.0
        assert unseen[f"residual_{metric}"] == pytest.approx(seen[f"residual_{metric}"] * kind / source)
    assert unseen["residual_kv_tokens"] == seen["residual_kv_tokens"]
    assert table.fit("vllm").residuals == seen
