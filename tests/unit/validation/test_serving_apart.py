"""Rows with prompts on workers of their own, and bursts: read, priced, scored apart where unclear."""

import numpy as np
import pytest
from tangram_validate.serving import report
from tangram_validate.serving.apart import DOUBT
from tangram_validate.serving.disaggregated_steady_state import ApartClients, PromptStation, apart_loop
from tangram_validate.serving.predict import predict
from tangram_validate.serving.reading import read_rows_as_runs
from tangram_validate.serving.replicas import DeploymentRuns, prompt_station, replicas
from tangram_validate.serving.runs import APART, BURST, DECODE, PromptPool, RefusedRun, ServedRun

from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import Load
from tests.places import SHARED

HWDB = Hwdb.load()
DATA = SHARED / "data" / "serving"
ROW = {
    **{"gpu": "GB200", "n_gpus": "36", "model": "deepseek-ai/DeepSeek-R1", "precision": "fp4"},
    **{"engine": "trtllm", "engine_version": "", "mode": "disagg", "scenario": "closed-loop concurrency"},
    **{"tp": "8", "dp": "1", "ep": "8", "concurrency": "24", "isl": "1024", "osl": "1024"},
    **{"ttft_ms": "220.98", "tpot_ms": "7.468", "note": "P 1x tp1 bs1; D 4x tp8 bs6"},
}
BURSTS = ROW | {
    **{"gpu": "H100-SXM", "model": "Qwen/Qwen3-14B", "precision": "bf16", "engine": "vllm", "mode": "agg"},
    **{
        "scenario": "burst of all prompts at once",
        "tp": "1",
        "ep": "1",
        "concurrency": "",
        "requests": "200",
    },
    **{"isl": "512", "osl": "128", "ttft_ms": "", "tpot_ms": "", "output_tok_s": "3000", "note": ""},
}


def rows(*changes: dict[str, str], base: dict[str, str] = ROW) -> list[ServedRun | RefusedRun]:
    return read_rows_as_runs([base | change for change in changes], HWDB)


def run(**change: str) -> ServedRun:
    (found,) = rows(change)
    assert isinstance(found, ServedRun), found
    return found


def test_a_note_says_how_many_workers_there_were() -> None:
    """36 GPUs, of which four workers of eight decode: the worker for prompts has the other four."""
    found = run()
    assert (found.load, found.workers, found.tp, found.ep, found.doubt) == (APART, 4, 8, 8, "")
    assert found.prompts == PromptPool(workers=1, tp=1, attention_dp=4, ep=1)
    many = {"tp": "1", "dp": "16", "ep": "16", "n_gpus": "56", "concurrency": "4096"}
    wide = run(**many, note="P 10x tp1 bs1; D 1x tp1 bs256")
    assert (wide.attention_dp, wide.workers) == (16, 1)
    assert wide.prompts == PromptPool(workers=10, tp=1, attention_dp=4, ep=4)


def test_one_worker_with_one_request_of_many_is_doubtful_unless_the_run_is_listed_twice() -> None:
    bare = {"n_gpus": "12", "note": "P 1x tp4 bs1; D 1x tp8 bs1"}
    assert run(**bare).doubt == DOUBT
    told, again = rows({}, bare)
    assert isinstance(told, ServedRun) and isinstance(again, ServedRun)
    assert (again.doubt, again.workers, again.prompts) == ("", told.workers, told.prompts)
    (other, _) = rows(bare | {"ttft_ms": "221"}, {})
    assert isinstance(other, ServedRun) and other.doubt == DOUBT


def test_degrees_that_split_no_heads_are_ranks_of_latent_attention() -> None:
    found = run(mode="agg", tp="36", ep="1", note="")
    assert (found.tp, found.attention_dp, found.ep) == (1, 36, 36)
    assert "read as ranks" in found.doubt


def test_rows_without_a_note_are_refused() -> None:
    (found,) = rows({"note": ""})
    assert isinstance(found, RefusedRun) and "no note" in found.reason


def priced() -> tuple[DeploymentRuns, PromptStation]:
    (replica,) = replicas([run()], HWDB, CalibrationTable.load(HWDB))
    assert isinstance(replica, DeploymentRuns)
    return replica, prompt_station(replica, HWDB)


def most_of(station: PromptStation, load: Load) -> Floats:
    """Prompts a second that the workers can take."""
    return station.workers * station.ranks / station.prompt_s(load)


def test_clients_in_flight_are_those_that_decode_and_those_before() -> None:
    """Little's law for any number of clients; more never carry less, and prompts bound what they do."""
    replica, station = priced()
    clients = np.array([1.0, 4.0, 24.0, 200.0, 2000.0, 20000.0])
    load = Load.of(np.full(6, 4096.0), 512.0)
    found = apart_loop(replica.cost, 4, station, load, clients, ApartClients())
    assert found.request_rate * (found.e2e_s + found.tpot_s) == pytest.approx(clients, rel=0.02)
    assert np.all(np.diff(found.request_rate) >= -1e-3 * most_of(station, load)[1:])
    most = most_of(station, load)
    assert np.all(found.request_rate <= most * 1.001)
    assert found.request_rate[-1] == pytest.approx(most[-1], rel=0.05)
    alone = station.prompt_s(load)[0] + station.handover_s
    assert found.ttft_s[0] == pytest.approx(alone, rel=0.05)


def test_prompts_that_come_in_waves_come_later() -> None:
    replica, station = priced()
    load = Load.of(1024.0, 1024.0)
    calm, waves = (
        apart_loop(replica.cost, 4, station, load, 24.0, ApartClients(0.1, wave)) for wave in (0.0, 0.5)
    )
    others = 0.5 * 23 / 2 * station.prompt_s(load) / (station.workers * station.ranks)
    assert waves.ttft_s - calm.ttft_s == pytest.approx(others)
    assert waves.tpot_s == calm.tpot_s


def test_a_burst_is_played_until_its_last_token() -> None:
    """Half the tokens a second measured is twice the error; all at once is slower than one a second."""
    at_once, spread = rows({}, {"scenario": "open-loop ShareGPT 200 requests, 1 sessions/s"}, base=BURSTS)
    assert isinstance(at_once, ServedRun) and isinstance(spread, ServedRun)
    assert (at_once.load, at_once.clients, at_once.rate) == (BURST, 200, 0.0)
    assert (spread.load, spread.clients, spread.rate) == (BURST, 200, 1.0)
    found, refused = predict([at_once, spread], HWDB, CalibrationTable.load(HWDB))
    assert not refused and [predicted_run.metric for predicted_run in found] == [
        "output_tok_s",
        "output_tok_s",
    ]
    assert found[1].predicted == pytest.approx(128, rel=0.02)  # as they come: 1 x 128 tokens
    assert found[0].predicted > 10 * found[1].predicted


def test_streams_that_all_decode_have_no_prompts() -> None:
    row = {"scenario": "decode only, all streams overlap", "concurrency": "64", "tpot_ms": "12"}
    (found,) = rows(row, base=BURSTS)
    assert isinstance(found, ServedRun) and found.load == DECODE
    told = {
        predicted_run.metric: predicted_run
        for predicted_run in predict([found], HWDB, CalibrationTable.load(HWDB))[0]
    }
    assert told["output_tok_s"].predicted == pytest.approx(64 / told["tpot"].predicted)


def test_doubtful_rows_are_scored_apart() -> None:
    bare = {"n_gpus": "12", "note": "P 1x tp4 bs1; D 1x tp8 bs1"}
    read = rows({}, bare | {"ttft_ms": "300"})
    found, refused = report.predictions(read, HWDB)
    answer = report.document(read, found, refused)
    assert answer["rows_used"] == 2
    assert answer["metrics"]["tpot"]["rows"] == answer["doubtful"]["tpot"]["rows"] == 1
    assert answer["doubts"] == [{"reason": DOUBT, "count": 1}]
    assert all(not line[0].startswith("(tpot") for line in report.table_rows(answer | {"doubtful": {}}))
